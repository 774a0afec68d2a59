{{/* Truncated to leave room for the suffixes of StatefulSets and "-headless". */}}
{{- define "braid.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "braid" $name) }}{{ $name = printf "%s-braid" $name }}{{ end -}}
{{- .Values.fullnameOverride | default $name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{/* Labels that select this release's pods. */}}
{{- define "braid.instanceLabels" -}}
app.kubernetes.io/name: braid
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "braid.selectorLabels" -}}
{{ include "braid.instanceLabels" . }}
app.kubernetes.io/component: server
{{- end }}

{{/* Labels of the server's objects. */}}
{{- define "braid.labels" -}}
{{ include "braid.selectorLabels" . }}
{{ include "braid.chartLabels" . }}
{{- end }}

{{- define "braid.chartLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "braid.image" -}}
{{- with .Values.image }}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{- define "braid.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (include "braid.fullname" .) }}
{{- end }}

{{/* Security contexts for the restricted pod security standard. */}}
{{- define "braid.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
{{- with .Values.podSecurityContext }}
{{- if not (kindIs "invalid" .fsGroup) }}
fsGroup: {{ int64 .fsGroup }}
fsGroupChangePolicy: {{ .fsGroupChangePolicy | default "OnRootMismatch" }}
{{- end }}
{{- with .supplementalGroups }}
supplementalGroups:
{{- range . }}
  - {{ int64 . }}
{{- end }}
{{- end }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "braid.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Omits the defaults of the other strategy type, which Kubernetes rejects. */}}
{{- define "braid.strategy" -}}
{{- toYaml (eq .type "Recreate" | ternary (dict "type" .type) .) }}
{{- end }}

{{/* Converts a scalar to a string. Helm reads numbers as float64, which holds 15 digits. */}}
{{- define "braid.text" -}}
{{- if not (kindIs "float64" .) -}}
{{ toString . }}
{{- else if gt (max . (mulf . -1) | float64) 1e15 -}}
{{ fail (printf "number %v: too large to be exact: write it in quotes" .) }}
{{- else if eq . (floor .) -}}
{{ printf "%.0f" . }}
{{- else -}}
{{ toString . }}
{{- end }}
{{- end }}

{{/* Converts the items of a list to strings. */}}
{{- define "braid.texts" -}}
{{- range . }}
- {{ include "braid.text" . | quote }}
{{- end }}
{{- end }}

{{/* Converts the values of a list of EnvVars to strings, which Kubernetes needs. */}}
{{- define "braid.env" -}}
{{- range . }}
{{ toYaml (list (kindIs "invalid" .value | ternary . (merge (dict "value" (include "braid.text" .value)) .))) }}
{{- end }}
{{- end }}

{{/* Termination grace period in seconds. */}}
{{- define "braid.gracePeriod" -}}
{{- with .Values.drain -}}
{{ add .preStopSeconds .delaySeconds .timeoutSeconds .marginSeconds }}
{{- end -}}
{{- end }}
