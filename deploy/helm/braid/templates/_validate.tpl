{{/* Fails with a message if values contradict each other, which the schema cannot express. */}}
{{- define "braid.validate" -}}
{{- include "braid.validateName" . }}
{{- include "braid.validateModels" .Values.models }}
{{- include "braid.validateAccess" .Values }}
{{- include "braid.validateTest" .Values }}
{{- include "braid.validateServer" . }}
{{- include "braid.validateGpus" .Values }}
{{- include "braid.validateReplicas" .Values }}
{{- include "braid.validateJobs" .Values }}
{{- include "braid.validateStrategy" .Values }}
{{- include "braid.validatePod" . }}
{{- include "braid.validateMounts" . }}
{{- include "braid.validateResources" .Values.resources }}
{{- include "braid.validateService" .Values.service }}
{{- include "braid.validateIngress" .Values.ingress }}
{{- end }}

{{/* Release names allow characters that names of Services do not. */}}
{{- define "braid.validateName" -}}
{{- $name := include "braid.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- fail (printf "invalid Service name '%s' (must start with a letter and contain no dot): set fullnameOverride" $name) }}
{{- end }}
{{- end }}

{{- define "braid.validateModels" -}}
{{- $sources := list }}
{{- if .claimName }}{{ $sources = append $sources "models.claimName" }}{{ end }}
{{- if .configMap.name }}{{ $sources = append $sources "models.configMap.name" }}{{ end }}
{{- if .initContainers }}{{ $sources = append $sources "models.initContainers" }}{{ end }}
{{- if not $sources }}
{{- fail "models: no source is set: set one of models.claimName, models.configMap.name and models.initContainers" }}
{{- else if gt (len $sources) 1 }}
{{- fail (printf "models: several sources are set (%s): keep one of them" (join ", " $sources)) }}
{{- end }}
{{- if and .claimSubPath (not .claimName) }}
{{- fail "models.claimSubPath: needs models.claimName, which is empty" }}
{{- end }}
{{- end }}

{{- define "braid.validateJobs" -}}
{{- if and .jobs.dataClaim (not .training.enabled) }}
{{- fail "jobs.dataClaim: needs training.enabled=true, whose volume keeps the records and outputs of jobs" }}
{{- end }}
{{- if and .jobs.dataSubPath (not .jobs.dataClaim) }}
{{- fail "jobs.dataSubPath: needs jobs.dataClaim, which is empty" }}
{{- end }}
{{- if and .jobs.maxRunningPerIdentity (not .training.enabled) }}
{{- fail "jobs.maxRunningPerIdentity: needs training.enabled=true" }}
{{- end }}
{{- $uploads := or .jobs.uploads.size .jobs.uploads.existingClaim }}
{{- if and $uploads (not .training.enabled) }}
{{- fail "jobs.uploads: needs training.enabled=true, whose volume keeps the records and outputs of jobs" }}
{{- end }}
{{- if and .jobs.uploads.size .jobs.uploads.existingClaim }}
{{- fail "jobs.uploads: size and existingClaim are set: keep one of them" }}
{{- end }}
{{- if and .jobs.uploads.existingClaim (gt (int .replicas) 1) }}
{{- fail "jobs.uploads.existingClaim: supports a single pod: set replicas to 1, or jobs.uploads.size for one claim per pod" }}
{{- end }}
{{- if and (or .jobs.uploads.quota .jobs.uploads.storageClassName) (not $uploads) }}
{{- fail "jobs.uploads: needs jobs.uploads.size or jobs.uploads.existingClaim" }}
{{- end }}
{{- end }}

{{/* Rejects settings with which the server would not start, and likely mistakes. */}}
{{- define "braid.validateAccess" -}}
{{- $authenticated := or .auth.tokensSecret .auth.certificatesSecret }}
{{- if and $authenticated .auth.allowUnauthenticated }}
{{- fail "auth.allowUnauthenticated: conflicts with auth.tokensSecret and auth.certificatesSecret: set one or the other" }}
{{- else if not (or $authenticated .auth.allowUnauthenticated) }}
{{- fail "auth: no client has access: set auth.tokensSecret or auth.certificatesSecret, or auth.allowUnauthenticated=true to serve any client that reaches the port" }}
{{- end }}
{{- if and .tls.clientCASecret (not .tls.secretName) }}
{{- fail "tls.clientCASecret: mutual TLS needs the server's certificate: set tls.secretName" }}
{{- end }}
{{- if and .auth.certificatesSecret (not .tls.clientCASecret) }}
{{- fail "auth.certificatesSecret: needs mutual TLS: set tls.clientCASecret" }}
{{- end }}
{{- if and .tls.terminatedInFront .tls.secretName }}
{{- fail "tls.terminatedInFront: conflicts with tls.secretName: set one or the other" }}
{{- end }}
{{- if and .auth.tokensSecret (not (or .tls.secretName .tls.terminatedInFront)) }}
{{- fail "auth.tokensSecret: tokens would be sent in plaintext: set tls.secretName, or tls.terminatedInFront=true if a proxy in front of the server terminates TLS" }}
{{- end }}
{{- end }}

{{/* Rejects tests that would always fail. */}}
{{- define "braid.validateTest" -}}
{{- if .test.model }}
{{- if and .tls.clientCASecret (not .test.certificateSecret) }}
{{- fail "test: tls.clientCASecret requires a client certificate: set test.certificateSecret" }}
{{- end }}
{{- if and .auth.tokensSecret (not (or .auth.certificatesSecret .test.tokenSecret)) }}
{{- fail "test: auth.tokensSecret requires a token: set test.tokenSecret" }}
{{- end }}
{{- end }}
{{- if and (or .test.certificateSecret .test.caSecret) (not .tls.secretName) }}
{{- fail "test.certificateSecret and test.caSecret: need tls.secretName, which is empty" }}
{{- end }}
{{- if and .test.tokenSecret (not .auth.tokensSecret) }}
{{- fail "test.tokenSecret: needs auth.tokensSecret, which is empty" }}
{{- end }}
{{- end }}

{{- define "braid.validateServer" -}}
{{- with .Values.server }}
{{- if and .loadModels (ne .modelControlMode "explicit") }}
{{- fail "server.loadModels: needs server.modelControlMode=explicit; the other modes load all models" }}
{{- end }}
{{- $managed := list "--model_repository" "--devices" "--model_control_mode" "--repository_poll_seconds" "--load_model" "--data_dir" "--listen" "--grpc_port" "--metrics_port" "--health_port" "--drain_delay" "--drain_timeout" "--max_connection_age" "--max_client_requests" "--max_client_request_bytes" "--tls_cert" "--tls_key" "--tls_client_ca" "--tls_terminated_in_front" "--auth_tokens" "--auth_certificates" "--allow_unauthenticated" "--log_format" "--log_level" }}
{{- if $.Values.training.enabled }}
{{- $managed = concat $managed (list "--max_running_jobs" "--max_running_jobs_per_identity" "--job_retention_days") }}
{{- end }}
{{- if $.Values.training.tracking }}
{{- $managed = append $managed "--tracking_dir" }}
{{- end }}
{{- if include "braid.uploads" $ }}
{{- $managed = append (append $managed "--dataset_root") "--dataset_quota" }}
{{- end }}
{{- range .extraArgs }}
{{- if has (splitList "=" . | first) $managed }}
{{- fail (printf "server.extraArgs: %s is not allowed, because another value of the chart sets it" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "braid.validateGpus" -}}
{{- $cuda := contains "cuda" .server.devices }}
{{- if and $cuda (not .gpu.count) }}
{{- fail (printf "server.devices: %s needs GPUs, but gpu.count is 0" .server.devices) }}
{{- else if and .gpu.count .server.devices (not $cuda) }}
{{- fail (printf "server.devices: %s leaves the pod's GPUs idle: set gpu.count to 0" .server.devices) }}
{{- end }}
{{- if or (hasKey (.resources.limits | default dict) .gpu.resource) (hasKey (.resources.requests | default dict) .gpu.resource) }}
{{- fail (printf "resources: %s is set by gpu.count: remove it from resources" .gpu.resource) }}
{{- end }}
{{- end }}

{{- define "braid.validateReplicas" -}}
{{- if and .training.tracking (not .training.enabled) }}
{{- fail "training.tracking: needs training.enabled=true, whose volume keeps the files" }}
{{- end }}
{{- if and .training.data.existingClaim (not .training.enabled) }}
{{- fail "training.data.existingClaim: needs training.enabled=true" }}
{{- end }}
{{- if and .training.data.existingClaim (gt (int .replicas) 1) }}
{{- fail "training.data.existingClaim: supports a single pod: set replicas to 1, or leave it empty for one claim per pod" }}
{{- end }}
{{- with .autoscaling }}
{{- if .kind }}
{{- if $.training.enabled }}
{{- fail "autoscaling: would terminate pods with trainers (needs training.enabled=false)" }}
{{- end }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail "autoscaling.minReplicas: is greater than autoscaling.maxReplicas" }}
{{- end }}
{{- if and (eq .kind "ScaledObject") (not .prometheusAddress) }}
{{- fail "autoscaling.kind: ScaledObject needs Prometheus: set autoscaling.prometheusAddress" }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
