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

{{- /* Fails at a mode that YAML read as a boolean. The argument is (list PATH MODE). */ -}}
{{- define "ml-chassis.mode" -}}
{{- if kindIs "bool" (index . 1) }}
{{- fail (printf "%s: write \"off\" in quotes, since YAML reads the bare word as the boolean false" (index . 0)) }}
{{- end }}
{{- end }}

{{- /* The data of the ConfigMap mlchassis-policy. */ -}}
{{- define "ml-chassis.policy" -}}
{{- $policy := deepCopy .Values.policy }}
{{- range $name, $settings := $policy }}
{{- if kindIs "map" $settings }}
{{- include "ml-chassis.mode" (list (printf "policy.%s.mode" $name) (index $settings "mode")) }}
{{- range $rule, $mode := index $settings "modes" }}
{{- include "ml-chassis.mode" (list (printf "policy.%s.modes.%s" $name $rule) $mode) }}
{{- end }}
{{- end }}
{{- end }}
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

{{- /* Rules of a ClusterRole without the resources of rights.without. The argument is (list . RULES). */ -}}
{{- define "ml-chassis.granted" -}}
{{- $without := (index . 0).Values.rights.without }}
{{- range index . 1 }}
{{- $resources := list }}
{{- range .resources }}
{{- if not (has . $without) }}
{{- $resources = append $resources . }}
{{- end }}
{{- end }}
{{- if $resources }}
- {{ merge (dict "resources" $resources) . | toJson }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ml-chassis.port" -}}
{{- if and .Values.hostNetwork (eq (int .Values.port) 10250) }}
{{- fail "port: the kubelet listens on 10250 of every node, so with hostNetwork the webhook could not start there; choose a port that is free on every node" }}
{{- end }}
{{- .Values.port }}
{{- end }}

{{- define "ml-chassis.serviceAccount" -}}
{{- .Values.serviceAccount.name | default "mlchassis" }}
{{- end }}

{{- /* A list: further variables of the webhook's container. */ -}}
{{- define "ml-chassis.env" -}}
{{- $port := list (dict "name" "CHASSIS_PORT" "value" (.Values.port | toString)) }}
{{- concat (eq (int .Values.port) 8443 | ternary list $port) .Values.extraEnv | toYaml }}
{{- end }}

{{- /*
The number of replicas in the manifest. While an autoscaler decides, and in the upgrade that removes it, this is
the number that runs: a manifest without one makes it 1 until the autoscaler looks again. A Deployment that somebody
scaled to 0 stays there. Without access to the cluster (helm template, Argo CD) the live number is unknown, and with
an autoscaler none is written.
*/ -}}
{{- define "ml-chassis.replicas" -}}
{{- $deployment := lookup "apps/v1" "Deployment" .Release.Namespace "mlchassis" }}
{{- $scaler := lookup "autoscaling/v2" "HorizontalPodAutoscaler" .Release.Namespace "mlchassis" }}
{{- $live := dig "spec" "replicas" 0 $deployment | int }}
{{- if and $deployment (or .Values.hpa.enabled (eq $live 0)) }}
{{- $live }}
{{- else if and $deployment $scaler }}
{{- max $live (int .Values.replicas) }}
{{- else if not .Values.hpa.enabled }}
{{- int .Values.replicas }}
{{- end }}
{{- end }}

{{- /* What somebody chose by hand: a key of the ConfigMap mlchassis-override. The argument is (list . KEY). */ -}}
{{- define "ml-chassis.override" -}}
{{- $found := lookup "v1" "ConfigMap" (index . 0).Release.Namespace "mlchassis-override" }}
{{- dig "data" (index . 1) "" $found | trim }}
{{- end }}

{{- /* The failurePolicy of an entry that is to fail closed, unless somebody opened it by hand. */ -}}
{{- define "ml-chassis.fail" -}}
{{- eq (include "ml-chassis.override" (list . "failurePolicy")) "Ignore" | ternary "Ignore" "Fail" }}
{{- end }}
