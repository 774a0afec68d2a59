{{/* Rejects pod settings that Kubernetes would reject or that would block updates. */}}
{{- define "braid.validateStrategy" -}}
{{- with .strategy.rollingUpdate }}
{{- $none := list "0" "0%" }}
{{- if and (eq $.strategy.type "RollingUpdate") (not $.training.enabled) (has (toString .maxSurge) $none) (has (toString .maxUnavailable) $none) }}
{{- fail "strategy.rollingUpdate: maxSurge and maxUnavailable are both 0, so no pod can be replaced: set one of them to 1 or more" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "braid.validatePod" -}}
{{- range $label, $_ := include "braid.selectorLabels" . | fromYaml }}
{{- if hasKey $.Values.podLabels $label }}
{{- fail (printf "podLabels: %s is not allowed, because it selects the release's pods" $label) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "braid.validateMounts" -}}
{{- $names := list }}
{{- range include "braid.ownVolumes" . | fromYamlArray }}
{{- $names = append $names .name }}
{{- end }}
{{- /* Comes from a volume claim template, which is not a volume of the pod template. */}}
{{- if .Values.training.enabled }}{{ $names = append $names "data" }}{{ end }}
{{- if include "braid.uploads" . }}{{ $names = append $names "uploads" }}{{ end }}
{{- range .Values.extraVolumes }}
{{- if has .name $names }}
{{- fail (printf "extraVolumes: %s is already a volume of the pod: use another name" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- $own := include "braid.ownVolumeMounts" . | fromYamlArray }}
{{- include "braid.validateMountsOf" (dict "own" $own "more" .Values.extraVolumeMounts "field" "extraVolumeMounts" "volumes" $names) }}
{{- $own = include "braid.initMounts" . | fromYamlArray }}
{{- range $i, $container := .Values.models.initContainers }}
{{- $field := printf "models.initContainers[%d].volumeMounts" $i }}
{{- include "braid.validateMountsOf" (dict "own" $own "more" $container.volumeMounts "field" $field "volumes" $names) }}
{{- end }}
{{- end }}

{{/* Takes {own, more, field, volumes}: the chart's mounts of a container, the mounts in value `field`, and the pod's volumes. */}}
{{- define "braid.validateMountsOf" -}}
{{- $paths := list }}
{{- range .own }}
{{- $paths = append $paths .mountPath }}
{{- end }}
{{- range .more }}
{{- $path := clean .mountPath }}
{{- if has $path $paths }}
{{- fail (printf "%s: %s is already a mount path: use another path" $.field .mountPath) }}
{{- end }}
{{- $paths = append $paths $path }}
{{- end }}
{{- range .more }}
{{- if not (has .name $.volumes) }}
{{- fail (printf "%s: volume %s for %s does not exist: add it to extraVolumes (existing volumes: %s)" $.field .name .mountPath (join ", " $.volumes)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "braid.validateResources" -}}
{{- $limits := .limits | default dict }}
{{- range $name, $request := .requests | default dict }}
{{- if hasKey $limits $name }}
{{- $limit := get $limits $name }}
{{- if gt (include "braid.amount" $request | float64) (include "braid.amount" $limit | float64) }}
{{- fail (printf "resources.requests.%s: %s exceeds resources.limits.%s %s: lower the request or raise the limit" $name (include "braid.quantity" $request) $name (include "braid.quantity" $limit)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Returns a quantity as text. */}}
{{- define "braid.quantity" -}}
{{ kindIs "string" . | ternary . (printf "%d" (int64 .)) }}
{{- end }}

{{/* Returns the number of a quantity. */}}
{{- define "braid.amount" -}}
{{- $factors := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 }}
{{- $text := include "braid.quantity" . }}
{{- $suffix := regexFind "[A-Za-z]*$" $text }}
{{- mulf (trimSuffix $suffix $text | float64) (get $factors $suffix) }}
{{- end }}

{{- define "braid.validateService" -}}
{{- if and .nodePort (eq .type "ClusterIP") }}
{{- fail (printf "service.nodePort: %d needs service.type NodePort or LoadBalancer (service.type is ClusterIP)" (int .nodePort)) }}
{{- end }}
{{- if and .loadBalancerSourceRanges (ne .type "LoadBalancer") }}
{{- fail "service.loadBalancerSourceRanges: needs service.type LoadBalancer" }}
{{- end }}
{{- end }}

{{- define "braid.validateIngress" -}}
{{- if and .enabled (not .hosts) }}
{{- fail "ingress.hosts: empty, but ingress.enabled is true (needs at least one host)" }}
{{- end }}
{{- end }}
