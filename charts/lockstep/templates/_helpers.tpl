{{/* Labels of every object. Call with (dict "root" $ "component" "control-plane"). */}}
{{- define "lockstep.labels" -}}
{{ include "lockstep.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* Labels that select the pods of one component; immutable once installed. */}}
{{- define "lockstep.selectorLabels" -}}
app.kubernetes.io/name: lockstep
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of the pods of one component. None changes with the chart's version, which would restart the pods. */}}
{{- define "lockstep.podLabels" -}}
{{ include "lockstep.selectorLabels" . }}
app.kubernetes.io/part-of: lockstep
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A full image reference. Call with (dict "root" $ "repository" "a/b"). */}}
{{- define "lockstep.image" -}}
{{- with .root.Values.image.registry }}{{ . }}/{{ end }}{{ .repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}
