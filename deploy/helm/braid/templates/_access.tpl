{{/* Who may call, and TLS: flags, and the files that they name. */}}
{{- define "braid.accessArgs" -}}
{{- with .Values.tls }}
{{- if .secretName }}
- --tls_cert=/etc/braid/tls/tls.crt
- --tls_key=/etc/braid/tls/tls.key
{{- end }}
{{- if .clientCASecret }}
- --tls_client_ca=/etc/braid/client-ca/ca.crt
{{- end }}
{{- if .terminatedInFront }}
- --tls_terminated_in_front
{{- end }}
{{- end }}
{{- with .Values.auth }}
{{- if .tokensSecret }}
- --auth_tokens=/etc/braid/tokens/tokens
{{- end }}
{{- if .certificatesSecret }}
- --auth_certificates=/etc/braid/certificates/certificates
{{- end }}
{{- if .allowUnauthenticated }}
- --allow_unauthenticated
{{- end }}
{{- end }}
{{- end }}

{{/* The Secrets, by the folder of /etc/braid that each is mounted at. */}}
{{- define "braid.secrets" -}}
{{- with .Values.tls.secretName }}
tls: {{ . | quote }}
{{- end }}
{{- with .Values.tls.clientCASecret }}
client-ca: {{ . | quote }}
{{- end }}
{{- with .Values.auth.tokensSecret }}
tokens: {{ . | quote }}
{{- end }}
{{- with .Values.auth.certificatesSecret }}
certificates: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Folders: a subPath would not follow what changes, which the server takes up while it runs. So
     nothing has to replace the pods. */}}
{{- define "braid.secretMounts" -}}
{{- range $name, $_ := include "braid.secrets" . | fromYaml }}
- name: {{ $name }}
  mountPath: /etc/braid/{{ $name }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "braid.secretVolumes" -}}
{{- range $name, $secret := include "braid.secrets" . | fromYaml }}
{{ include "braid.secretVolume" (dict "name" $name "secret" $secret "authority" (eq $name "client-ca")) }}
{{- end }}
{{- end }}

{{/* Takes {name, secret, authority}. Read by the group, which is the pod's fsGroup. */}}
{{- define "braid.secretVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret | quote }}
    defaultMode: 0440
    {{- /* A Secret for TLS holds a private key beside the authority. */}}
    {{- if .authority }}
    items:
      - key: ca.crt
        path: ca.crt
    {{- end }}
{{- end }}
