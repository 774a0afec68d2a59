{{/* Returns an .npy file of zeros in base64. Takes {name, datatype, shape}. */}}
{{- define "braid.zeros" -}}
{{- $types := dict "BOOL" "|b1" "INT8" "|i1" "INT16" "<i2" "INT32" "<i4" "INT64" "<i8" "UINT8" "|u1" "FP16" "<f2" "FP32" "<f4" "FP64" "<f8" }}
{{- $type := get $types .datatype }}
{{- $bytes := substr 2 3 $type | int }}
{{- $shape := "" }}
{{- range .shape }}
{{- $bytes = mul $bytes . }}
{{- $shape = printf "%s%d, " $shape (int .) }}
{{- end }}
{{- if gt $bytes 700000 }}
{{- fail (printf "test.inputs: %s has %d bytes (at most 700000 fit in a ConfigMap): use fewer rows" .name $bytes) }}
{{- end }}
{{- /* Format version 1.0 with a header of 118 bytes ('v'), so that the data starts at byte 128. */}}
{{- $header := printf "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" $type $shape }}
{{- printf "\x93NUMPY\x01\x00v\x00%-117s\n%s" $header (repeat (int $bytes) "\x00") | b64enc }}
{{- end }}
