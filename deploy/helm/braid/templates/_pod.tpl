{{/* Flags of braid-server. */}}
{{- define "braid.args" -}}
- --model_repository=/models
{{- /* Never auto, which silently skips unusable GPUs. */}}
- --devices={{ .Values.server.devices | default (gt (int .Values.gpu.count) 0 | ternary "cuda" "cpu*2") }}
- --model_control_mode={{ .Values.server.modelControlMode }}
{{- if eq .Values.server.modelControlMode "poll" }}
- --repository_poll_seconds={{ .Values.server.repositoryPollSeconds }}
{{- end }}
{{- range .Values.server.loadModels }}
- {{ printf "--load_model=%s" . | quote }}
{{- end }}
{{- if .Values.training.enabled }}
- --data_dir=/data
{{- end }}
{{- if .Values.training.tracking }}
- --tracking_dir=/data/tracking
{{- end }}
{{- if .Values.jobs.dataClaim }}
- --data_root=/datasets
{{- end }}
{{- if include "braid.uploads" . }}
- --dataset_root=/uploads
- --dataset_quota={{ int64 .Values.jobs.uploads.quota }}
{{- end }}
{{- if .Values.training.enabled }}
- --max_running_jobs={{ int64 .Values.jobs.maxRunning }}
{{- with .Values.jobs.maxRunningPerIdentity }}
- --max_running_jobs_per_identity={{ int64 . }}
{{- end }}
- --job_retention_days={{ .Values.jobs.retentionDays }}
{{- end }}
- --listen=0.0.0.0
- --grpc_port=8001
- --metrics_port=8002
- --health_port=8003
- --drain_delay={{ int64 .Values.drain.delaySeconds }}
- --drain_timeout={{ int64 .Values.drain.timeoutSeconds }}
{{- with .Values.server.maxConnectionAge }}
- --max_connection_age={{ . }}
{{- end }}
{{- with .Values.server.maxClientRequests }}
- --max_client_requests={{ int64 . }}
{{- end }}
{{- with .Values.server.maxClientRequestBytes }}
- --max_client_request_bytes={{ int64 . }}
{{- end }}
{{- include "braid.accessArgs" . }}
- --log_format={{ .Values.server.logFormat }}
- --log_level={{ .Values.server.logLevel }}
{{- range .Values.server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* Mounts of both the server and the init containers. */}}
{{- define "braid.tmpMount" -}}
- name: tmp
  mountPath: /tmp
{{- end }}

{{/* Not empty if clients may upload datasets. */}}
{{- define "braid.uploads" -}}
{{- or .Values.jobs.uploads.size .Values.jobs.uploads.existingClaim }}
{{- end }}

{{/* The chart's own volumes, without extraVolumes. */}}
{{- define "braid.ownVolumeMounts" -}}
- name: models
  mountPath: /models
  readOnly: true
  {{- with .Values.models.claimSubPath }}
  subPath: {{ . | quote }}
  {{- end }}
{{- if .Values.training.enabled }}
- name: data
  mountPath: /data
{{- end }}
{{- with .Values.jobs }}
{{- if .dataClaim }}
- name: datasets
  mountPath: /datasets
  readOnly: true
  {{- with .dataSubPath }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- if include "braid.uploads" . }}
- name: uploads
  mountPath: /uploads
{{- end }}
{{ include "braid.tmpMount" . }}
- name: shm
  mountPath: /dev/shm
{{- include "braid.secretMounts" . }}
{{- end }}

{{- define "braid.volumeMounts" -}}
{{ include "braid.ownVolumeMounts" . }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "braid.ownVolumes" -}}
- name: models
  {{- if .Values.models.claimName }}
  persistentVolumeClaim:
    claimName: {{ .Values.models.claimName | quote }}
    readOnly: true
  {{- else if .Values.models.configMap.name }}
  configMap:
    name: {{ .Values.models.configMap.name | quote }}
    {{- with .Values.models.configMap.items }}
    items:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- if .Values.training.data.existingClaim }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.training.data.existingClaim | quote }}
{{- end }}
{{- with .Values.jobs.dataClaim }}
- name: datasets
  persistentVolumeClaim:
    claimName: {{ . | quote }}
    readOnly: true
{{- end }}
{{- with .Values.jobs.uploads.existingClaim }}
- name: uploads
  persistentVolumeClaim:
    claimName: {{ . | quote }}
{{- end }}
- name: tmp
  emptyDir: {}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.sharedMemory.sizeLimit | quote }}
{{- include "braid.secretVolumes" . }}
{{- end }}

{{- define "braid.volumes" -}}
{{ include "braid.ownVolumes" . }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "braid.initMounts" -}}
{{ include "braid.tmpMount" . }}
- name: models
  mountPath: /models
{{- end }}

{{- define "braid.initContainers" -}}
{{- $mounts := include "braid.initMounts" . | fromYamlArray }}
{{- $securityContext := include "braid.securityContext" . | fromYaml }}
{{- range .Values.models.initContainers }}
{{- $added := dict "securityContext" $securityContext }}
{{- $_ := set $added "volumeMounts" (concat (.volumeMounts | default list) $mounts) }}
{{- with .env }}
{{- $_ := set $added "env" (include "braid.env" . | fromYamlArray) }}
{{- end }}
{{- range $field, $items := pick . "command" "args" }}
{{- $_ := set $added $field (include "braid.texts" $items | fromYamlArray) }}
{{- end }}
{{ toYaml (list (merge $added .)) }}
{{- end }}
{{- end }}

{{- define "braid.resources" -}}
{{- $resources := deepCopy .Values.resources }}
{{- if .Values.gpu.count }}
{{- $limits := merge (dict .Values.gpu.resource .Values.gpu.count) ($resources.limits | default dict) }}
{{- $_ := set $resources "limits" $limits }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* Adds a selector for the release's pods to constraints without one. */}}
{{- define "braid.topologySpreadConstraints" -}}
{{- $ours := dict "matchLabels" (include "braid.selectorLabels" . | fromYaml) }}
{{- range .Values.topologySpreadConstraints }}
{{ toYaml (list (hasKey . "labelSelector" | ternary . (merge (dict "labelSelector" $ours) .))) }}
{{- end }}
{{- end }}

{{/* Pod template of the Deployment or StatefulSet. */}}
{{- define "braid.podTemplate" -}}
metadata:
  # Excludes labels that change with the chart's version, because they would replace the pods.
  labels:
    {{- include "braid.selectorLabels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "braid.serviceAccountName" . | quote }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "braid.gracePeriod" . }}
  securityContext:
    {{- include "braid.podSecurityContext" . | nindent 4 }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.gpu.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- if .Values.models.initContainers }}
  initContainers:
    {{- include "braid.initContainers" . | trim | nindent 4 }}
  {{- end }}
  containers:
    - name: braid
      image: {{ include "braid.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        {{- include "braid.args" . | nindent 8 }}
      env:
        # Writes outside the volumes go to /tmp.
        - name: HOME
          value: /tmp
        {{- with .Values.extraEnv }}
        {{- include "braid.env" . | trim | nindent 8 }}
        {{- end }}
      ports:
        - name: grpc
          containerPort: 8001
        - name: metrics
          containerPort: 8002
        - name: health
          containerPort: 8003
      # A separate plaintext port, because the kubelet's probes do not support TLS.
      startupProbe:
        grpc:
          port: 8003
          service: readiness
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ divf .Values.startup.seconds 5 | ceil | int64 }}
      readinessProbe:
        grpc:
          port: 8003
          service: readiness
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      livenessProbe:
        grpc:
          port: 8003
          service: liveness
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      {{- with .Values.drain.preStopSeconds }}
      lifecycle:
        preStop:
          sleep:
            seconds: {{ int64 . }}
      {{- end }}
      resources:
        {{- include "braid.resources" . | nindent 8 }}
      securityContext:
        {{- include "braid.securityContext" . | nindent 8 }}
      volumeMounts:
        {{- include "braid.volumeMounts" . | nindent 8 }}
  volumes:
    {{- include "braid.volumes" . | nindent 4 }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- include "braid.topologySpreadConstraints" . | trim | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Takes {name, volume, context}. */}}
{{- define "braid.claimTemplate" -}}
- metadata:
    name: {{ .name }}
    labels:
      {{- include "braid.selectorLabels" .context | nindent 6 }}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .volume.storageClassName }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources:
      requests:
        storage: {{ .volume.size | quote }}
{{- end }}
