{{/* Flags for authentication and TLS. */}}
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

{{/* Secrets by their folder in /etc/braid. */}}
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

{{/* Mounts folders, because a subPath mount does not receive changes. The server reloads changed files, so
     the pods need no restart. */}}
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

{{/* Takes {name, secret, authority}. The pod's fsGroup can read the files. */}}
{{- define "braid.secretVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret | quote }}
    defaultMode: 0440
    {{- /* Mounts only the authority, because the Secret may also hold a private key. */}}
    {{- if .authority }}
    items:
      - key: ca.crt
        path: ca.crt
    {{- end }}
{{- end }}
