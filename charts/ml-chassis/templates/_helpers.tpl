{{- /* REPOSITORY:TAG or REPOSITORY@DIGEST; the argument has repository, tag and digest. */ -}}
{{- define "ml-chassis.reference" -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end }}
{{- end }}

{{- define "ml-chassis.image" -}}
{{- include "ml-chassis.reference" (merge (dict "tag" (.Values.image.tag | default .Chart.AppVersion)) .Values.image) }}
{{- end }}

{{- /* The sidecar's image: of the same registry and version as the webhook's, unless a value says otherwise. */ -}}
{{- define "ml-chassis.puller" -}}
{{- $beside := regexReplaceAll "[^/]*$" .Values.image.repository "puller" }}
{{- $tag := .Values.puller.image.tag | default .Values.image.tag | default .Chart.AppVersion }}
{{- $repository := .Values.puller.image.repository | default $beside }}
{{- include "ml-chassis.reference" (dict "repository" $repository "tag" $tag "digest" .Values.puller.image.digest) }}
{{- end }}

{{- /* The data of the ConfigMap mlchassis-policy. */ -}}
{{- define "ml-chassis.policy" -}}
{{- $policy := deepCopy .Values.policy }}
{{- $_ := set $policy "rules" (merge (dict "profile" .Values.profile) ($policy.rules | default dict)) }}
{{- $puller := include "ml-chassis.puller" . }}
{{- $settings := index $policy "model-puller" | default dict }}
{{- if kindIs "string" $settings }}
{{- $settings = fromYaml $settings }}
{{- end }}
{{- if and (ne $puller (printf "ghcr.io/ml-chassis/puller:%s" .Chart.AppVersion)) (not $settings.image) }}
{{- $_ := set $policy "model-puller" (merge (dict "image" $puller) $settings) }}
{{- end }}
{{- range $name, $settings := $policy }}
{{ $name }}.yaml: {{ kindIs "string" $settings | ternary $settings (printf "%s\n" (toYaml $settings)) | toJson }}
{{- end }}
{{- end }}
