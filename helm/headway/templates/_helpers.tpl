{{/* Names, labels, and what several objects have in common. */}}

{{- define "headway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes over the life of a release, so that selectors may use it. */}}
{{- define "headway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "headway.serviceSelector" -}}
{{ include "headway.selector" . }}
app.kubernetes.io/component: service
{{- end -}}

{{- define "headway.valkeySelector" -}}
{{ include "headway.selector" . }}
app.kubernetes.io/component: valkey
{{- end -}}

{{- define "headway.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "headway.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* A setting as the service reads it: helm makes numbers floats, and writes large ones with an exponent. */}}
{{- define "headway.text" -}}
{{- if kindIs "float64" . -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* Whole seconds of a span such as 500ms, 5s, 2m, 12h, 7d or 5; rounded up. */}}
{{- define "headway.seconds" -}}
{{- $number := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := regexFind "[a-z]+$" . | default "s" -}}
{{- ceil (mulf $number (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0) $unit)) | int64 -}}
{{- end -}}

{{/*
From SIGTERM to the end, at the very most: the drain delay, the grace, and 30 s for the store and for whatever hangs.
There is no preStop hook: during the drain delay the service says NOT_SERVING and goes on serving, which is what such a
hook would wait for.
*/}}
{{- define "headway.terminationGrace" -}}
{{- $delay := include "headway.seconds" .Values.settings.drain_delay | int64 -}}
{{- $grace := include "headway.seconds" .Values.settings.shutdown_grace | int64 -}}
{{- add $delay $grace 30 -}}
{{- end -}}

{{/* Refuses what cannot work, with what to do about it. */}}
{{- define "headway.check" -}}
{{- $stores := 0 -}}
{{- if .Values.store.url }}{{ $stores = add1 $stores }}{{ end -}}
{{- if .Values.store.existingSecret.name }}{{ $stores = add1 $stores }}{{ end -}}
{{- if .Values.valkey.enabled }}{{ $stores = add1 $stores }}{{ end -}}
{{- if ne (int $stores) 1 -}}
{{- fail "say where queues are kept, once: store.url, store.existingSecret.name, or valkey.enabled=true" -}}
{{- end -}}
{{- if not .Values.settings.insecure -}}
{{- fail "there is no TLS yet: settings.insecure=true says that the cluster's network is the fence" -}}
{{- end -}}
{{- end -}}

{{/* Pod security "restricted", with the number of the image's user. */}}
{{- define "headway.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "headway.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where pods run, and how they get their image. */}}
{{- define "headway.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}
