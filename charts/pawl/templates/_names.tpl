{{/* Name of the operator's objects. */}}
{{- define "pawl.name" -}}
{{- printf "%s-operator" (trunc 54 .Release.Name) -}}
{{- end -}}

{{/* Name of its objects that are in no namespace: releases of other namespaces may have the same name. */}}
{{- define "pawl.clusterName" -}}
{{- printf "%s.%s" (include "pawl.name" .) .Release.Namespace -}}
{{- end -}}

{{/* Whether another release that is installed owns an object that all releases share: true or empty.
     Arguments: root, apiVersion, kind, name. */}}
{{- define "pawl.isOfAnother" -}}
{{- $root := index . 0 -}}
{{- $there := lookup (index . 1) (index . 2) "" (index . 3) -}}
{{- $notes := dig "metadata" "annotations" dict $there -}}
{{- $release := get $notes "meta.helm.sh/release-name" -}}
{{- $namespace := get $notes "meta.helm.sh/release-namespace" -}}
{{- if and $release (or (ne $release $root.Release.Name) (ne $namespace $root.Release.Namespace)) -}}
{{- /* One that was uninstalled, and has left its object, owns nothing: Helm says how to take it over. */ -}}
{{- if lookup "apps/v1" "Deployment" $namespace (printf "%s-operator" (trunc 54 $release)) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* Fails if a role of another release allows its operator to act in the same namespaces: two operators would undo what the other
     does. Arguments: root, roles, what they are of. */}}
{{- define "pawl.refuseOverlap" -}}
{{- $root := index . 0 -}}
{{- $place := index . 2 -}}
{{- range index . 1 -}}
{{- $notes := dig "metadata" "annotations" dict . -}}
{{- $release := get $notes "meta.helm.sh/release-name" -}}
{{- $namespace := get $notes "meta.helm.sh/release-namespace" -}}
{{- $operator := printf "%s-operator" (trunc 54 $release) -}}
{{- $labels := dig "metadata" "labels" dict . -}}
{{- $isPawl := eq (get $labels "app.kubernetes.io/part-of") "pawl" -}}
{{- $acts := and $isPawl (has .metadata.name (list $operator (printf "%s.%s" $operator $namespace))) -}}
{{- if and $release $acts (or (ne $release $root.Release.Name) (ne $namespace $root.Release.Namespace)) -}}
{{- fail (printf "the operator of release %s in namespace %s watches %s: set namespaces of one of the releases so that they do not overlap" $release $namespace $place) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The namespaces that the operator watches and that exist, as JSON; all of them where the cluster is not known, as with helm template
     and before the release's own namespace is made. */}}
{{- define "pawl.existing" -}}
{{- $existing := list -}}
{{- $isKnown := lookup "v1" "Namespace" "" .Release.Namespace -}}
{{- range .Values.namespaces -}}
{{- if or (not $isKnown) (lookup "v1" "Namespace" "" .) -}}{{- $existing = append $existing . -}}{{- end -}}
{{- end -}}
{{- $existing | toJson -}}
{{- end -}}

{{/* Selector labels of the operator's pods; immutable across versions. */}}
{{- define "pawl.selector" -}}
app.kubernetes.io/name: pawl-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The same of the pods of the pages. */}}
{{- define "pawl.uiSelector" -}}
app.kubernetes.io/name: pawl-ui
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the objects of the operator. */}}
{{- define "pawl.labels" -}}
{{ include "pawl.selector" . }}
{{ include "pawl.commonLabels" . }}
{{- end -}}

{{/* Labels of the objects of the pages. */}}
{{- define "pawl.uiLabels" -}}
{{ include "pawl.uiSelector" . }}
{{ include "pawl.commonLabels" . }}
{{- end -}}

{{/* Labels of all objects of this chart. managed-by is Helm, never pawl: pawl labels the objects of TrainingJobs. */}}
{{- define "pawl.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: pawl
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The name of an image, in the registry of global.imageRegistry if that is set. As for container runtimes, the first part of a name
     is a registry if it has a dot or a port, or is localhost. Arguments: root, name. */}}
{{- define "pawl.inRegistry" -}}
{{- $registry := ((index . 0).Values.global | default dict).imageRegistry -}}
{{- if $registry -}}
{{ $registry }}/{{ regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" (index . 1) "" }}
{{- else -}}
{{ index . 1 }}
{{- end -}}
{{- end -}}

{{/* The operator's image. */}}
{{- define "pawl.image" -}}
{{- $image := .Values.image -}}
{{- $repository := include "pawl.inRegistry" (list . $image.repository) -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The image of trainers whose jobs name none. */}}
{{- define "pawl.trainerImage" -}}
{{- if .Values.trainerImage -}}
{{ include "pawl.inRegistry" (list . .Values.trainerImage) }}
{{- else -}}
{{ include "pawl.image" . }}
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
