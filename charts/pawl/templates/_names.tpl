{{/* Name of the operator's objects. */}}
{{- define "pawl.name" -}}
{{- printf "%s-operator" (trunc 54 .Release.Name) -}}
{{- end -}}

{{/* Selector labels of the operator's pods; immutable across versions. */}}
{{- define "pawl.selector" -}}
app.kubernetes.io/name: pawl-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of all objects of this chart. managed-by is Helm, never pawl: pawl labels the objects of TrainingJobs. */}}
{{- define "pawl.labels" -}}
{{ include "pawl.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: pawl
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The operator's image. */}}
{{- define "pawl.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Name of the operator's ServiceAccount. */}}
{{- define "pawl.serviceAccount" -}}
{{- $account := .Values.serviceAccount -}}
{{- $account.name | default (ternary (include "pawl.name" .) "default" $account.create) -}}
{{- end -}}

{{/* Namespaces in which trainer pods are isolated, as JSON. */}}
{{- define "pawl.trainerNamespaces" -}}
{{- .Values.networkPolicy.trainerNamespaces | default .Values.namespaces | toJson -}}
{{- end -}}
