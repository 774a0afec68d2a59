{{/* Ends with one sentence where values contradict each other, which the schema cannot tell. */}}
{{- define "braid.validate" -}}
{{- include "braid.validateName" . }}
{{- include "braid.validateModels" .Values.models }}
{{- include "braid.validateAccess" .Values }}
{{- include "braid.validateTest" .Values }}
{{- include "braid.validateServer" .Values.server }}
{{- include "braid.validateGpus" .Values }}
{{- include "braid.validateReplicas" .Values }}
{{- include "braid.validateStrategy" .Values }}
{{- include "braid.validatePod" . }}
{{- include "braid.validateMounts" . }}
{{- include "braid.validateResources" .Values.resources }}
{{- include "braid.validateService" .Values.service }}
{{- include "braid.validateIngress" .Values.ingress }}
{{- end }}

{{/* A release may be called what no Service may. */}}
{{- define "braid.validateName" -}}
{{- $name := include "braid.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- fail (printf "no Service can be called '%s', which has to begin with a letter and to have no dot: set fullnameOverride" $name) }}
{{- end }}
{{- end }}

{{- define "braid.validateModels" -}}
{{- $sources := list }}
{{- if .claimName }}{{ $sources = append $sources "models.claimName" }}{{ end }}
{{- if .configMap.name }}{{ $sources = append $sources "models.configMap.name" }}{{ end }}
{{- if .initContainers }}{{ $sources = append $sources "models.initContainers" }}{{ end }}
{{- if not $sources }}
{{- fail "there are no models: set one of models.claimName, models.configMap.name and models.initContainers" }}
{{- else if gt (len $sources) 1 }}
{{- fail (printf "models come from one place: leave all but one of %s empty" (join ", " $sources)) }}
{{- end }}
{{- if and .claimSubPath (not .claimName) }}
{{- fail "models.claimSubPath is a folder of models.claimName, which is empty" }}
{{- end }}
{{- end }}

{{/* What the server would end with exit code 2 for, and what would not be meant. */}}
{{- define "braid.validateAccess" -}}
{{- $authenticated := or .auth.tokensSecret .auth.certificatesSecret }}
{{- if and $authenticated .auth.allowUnauthenticated }}
{{- fail "auth.allowUnauthenticated contradicts auth.tokensSecret and auth.certificatesSecret: set one or the other" }}
{{- else if not (or $authenticated .auth.allowUnauthenticated) }}
{{- fail "nobody may call: set auth.tokensSecret or auth.certificatesSecret, or auth.allowUnauthenticated=true to serve everybody who reaches the port" }}
{{- end }}
{{- if and .tls.clientCASecret (not .tls.secretName) }}
{{- fail "tls.clientCASecret asks for mutual TLS, which needs the server's certificate: set tls.secretName" }}
{{- end }}
{{- if and .auth.certificatesSecret (not .tls.clientCASecret) }}
{{- fail "auth.certificatesSecret gives roles to clients' certificates, for which nobody asks: set tls.clientCASecret" }}
{{- end }}
{{- if and .tls.terminatedInFront .tls.secretName }}
{{- fail "tls.terminatedInFront contradicts tls.secretName: set one or the other" }}
{{- end }}
{{- if and .auth.tokensSecret (not (or .tls.secretName .tls.terminatedInFront)) }}
{{- fail "tokens would travel in plaintext: set tls.secretName, or tls.terminatedInFront=true where something in front of the server has TLS" }}
{{- end }}
{{- end }}

{{/* A test that could only be refused. */}}
{{- define "braid.validateTest" -}}
{{- if .test.model }}
{{- if and .tls.clientCASecret (not .test.certificateSecret) }}
{{- fail "tls.clientCASecret asks the test for a certificate, too: set test.certificateSecret" }}
{{- end }}
{{- if and .auth.tokensSecret (not (or .auth.certificatesSecret .test.tokenSecret)) }}
{{- fail "auth.tokensSecret asks the test for a token, too: set test.tokenSecret" }}
{{- end }}
{{- end }}
{{- if and (or .test.certificateSecret .test.caSecret) (not .tls.secretName) }}
{{- fail "test.certificateSecret and test.caSecret are for tls.secretName, which is empty" }}
{{- end }}
{{- if and .test.tokenSecret (not .auth.tokensSecret) }}
{{- fail "test.tokenSecret is for auth.tokensSecret, which is empty" }}
{{- end }}
{{- end }}

{{- define "braid.validateServer" -}}
{{- if and .loadModels (ne .modelControlMode "explicit") }}
{{- fail "server.loadModels is for server.modelControlMode explicit: the other modes load all models" }}
{{- end }}
{{- $managed := list "--model_repository" "--devices" "--model_control_mode" "--repository_poll_seconds" "--load_model" "--data_dir" "--listen" "--grpc_port" "--metrics_port" "--health_port" "--drain_delay" "--drain_timeout" "--max_connection_age" "--max_client_requests" "--max_client_request_bytes" "--tls_cert" "--tls_key" "--tls_client_ca" "--tls_terminated_in_front" "--auth_tokens" "--auth_certificates" "--allow_unauthenticated" "--log_format" "--log_level" }}
{{- range .extraArgs }}
{{- if has (splitList "=" . | first) $managed }}
{{- fail (printf "server.extraArgs may not have %s: other values of the chart set it" .) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "braid.validateGpus" -}}
{{- $cuda := contains "cuda" .server.devices }}
{{- if and $cuda (not .gpu.count) }}
{{- fail (printf "server.devices %s needs GPUs, but gpu.count is 0" .server.devices) }}
{{- else if and .gpu.count .server.devices (not $cuda) }}
{{- fail (printf "server.devices %s would leave the pod's GPUs idle: set gpu.count to 0" .server.devices) }}
{{- end }}
{{- if or (hasKey (.resources.limits | default dict) .gpu.resource) (hasKey (.resources.requests | default dict) .gpu.resource) }}
{{- fail (printf "gpu.count says how many %s a pod has: leave it out of resources" .gpu.resource) }}
{{- end }}
{{- end }}

{{- define "braid.validateReplicas" -}}
{{- if and .training.data.existingClaim (not .training.enabled) }}
{{- fail "training.data.existingClaim is for training.enabled" }}
{{- end }}
{{- if and .training.data.existingClaim (gt (int .replicas) 1) }}
{{- fail "training.data.existingClaim is one pod's: set replicas to 1, or leave it empty for a claim a pod" }}
{{- end }}
{{- with .autoscaling }}
{{- if .kind }}
{{- if $.training.enabled }}
{{- fail "autoscaling would end pods that hold trainers: it is for training.enabled=false" }}
{{- end }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" }}
{{- end }}
{{- if and (eq .kind "ScaledObject") (not .prometheusAddress) }}
{{- fail "autoscaling.kind ScaledObject asks Prometheus: set autoscaling.prometheusAddress" }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
