{{- define "refrain.name" -}}
{{- if contains "refrain" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-refrain{{ end }}
{{- end }}

{{- define "refrain.selector" -}}
app.kubernetes.io/name: refrain
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "refrain.labels" -}}
{{ include "refrain.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- /* A Service named refrain would give its pods variables such as REFRAIN_PORT=tcp://…, so no links. */ -}}
{{- define "refrain.pod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "refrain.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{- define "refrain.settings" -}}
{{- $settings := deepCopy .Values.gateway.settings }}
{{- $several := or (gt (int .Values.gateway.replicas) 1) .Values.gateway.autoscaling.enabled }}
{{- if and $several (not .Values.redis.url) }}
{{- fail "gateway.replicas above 1 and gateway.autoscaling need redis.url: gateways share entries through Redis" }}
{{- end }}
{{- $_ := set $settings "store" (.Values.redis.url | default "disk") }}
{{- $_ := set $settings "vectors" (.Values.qdrant.url | default "faiss") }}
{{- $_ := set $settings "drain_delay" .Values.gateway.drainDelay }}
{{- $_ := set $settings "drain_timeout" .Values.gateway.drainTimeout }}
{{- if .Values.gateway.policy }}
{{- $_ := set $settings "policy" "/etc/refrain/policy/policy.yaml" }}
{{- end }}
{{- if .Values.gateway.keysSecretName }}
{{- $_ := set $settings "gateway_keys" "/etc/refrain/keys/keys" }}
{{- end }}
{{- if .Values.engine.enabled }}
{{- if or $settings.upstream $settings.upstreams }}
{{- fail "gateway.settings names upstreams: set engine.enabled to false, or leave them out" }}
{{- end }}
{{- $name := printf "%s-engine" (include "refrain.name" .) }}
{{- $number := int .Values.engine.replicas }}
{{- if .Values.engine.autoscaling.enabled }}
{{- $number = max $number (int .Values.engine.autoscaling.maxReplicas) }}
{{- end }}
{{- $upstreams := list }}
{{- range $i := until (int $number) }}
{{- $upstreams = append $upstreams (dict "name" (printf "engine-%d" $i) "url" (printf "http://%s-%d.%s:8000/v1" $name $i $name)) }}
{{- end }}
{{- $_ := set $settings "upstreams" $upstreams }}
{{- $_ := set $settings "upstream_name" ($settings.upstream_name | default "engine") }}
{{- $_ := set $settings "upstream_cache_salt" true }}
{{- $_ := set $settings "upstream_warm_up" true }}
{{- else if not (or $settings.upstream $settings.upstreams) }}
{{- fail "without the engine, gateway.settings needs upstream or upstreams" }}
{{- end }}
{{- toYaml $settings }}
{{- end }}
