{{/* Ends with one sentence where values contradict each other, which the schema cannot tell. */}}
{{- define "braid.validate" -}}
{{- include "braid.validateModels" .Values.models }}
{{- include "braid.validateServer" .Values.server }}
{{- include "braid.validateGpus" .Values }}
{{- include "braid.validateReplicas" .Values }}
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

{{- define "braid.validateServer" -}}
{{- if and .loadModels (ne .modelControlMode "explicit") }}
{{- fail "server.loadModels is for server.modelControlMode explicit: the other modes load all models" }}
{{- end }}
{{- $managed := list "--model_repository" "--devices" "--model_control_mode" "--repository_poll_seconds" "--load_model" "--data_dir" "--listen" "--grpc_port" "--metrics_port" "--health_port" "--drain_delay" "--drain_timeout" }}
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
