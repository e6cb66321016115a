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

{{- /* At most 52 characters: the pods' label of the revision has 11 more, of 63. */ -}}
{{- define "headway.valkeyName" -}}
{{- printf "%s-valkey" (include "headway.fullname" . | trunc 45 | trimSuffix "-") -}}
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

{{/* A setting as the service reads it: helm makes numbers floats, and writes large whole ones with an exponent. */}}
{{- define "headway.text" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* Whole seconds of a span such as 500ms, 5s, 2m, 12h, 7d or 5; rounded up. */}}
{{- define "headway.seconds" -}}
{{- $number := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := regexFind "[a-z]+$" . | default "s" -}}
{{- ceil (mulf $number (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0) $unit)) | int64 -}}
{{- end -}}

{{/*
From the wish that a pod goes to its end, at the very most: what it waits before it is told, the drain delay, the grace,
and 30 s for the store and for whatever hangs. By default there is no preStop hook: during the drain delay the service
says NOT_SERVING and goes on serving, which is what such a hook would wait for.
*/}}
{{- define "headway.terminationGrace" -}}
{{- $delay := include "headway.seconds" .Values.settings.drain_delay | int64 -}}
{{- $grace := include "headway.seconds" .Values.settings.shutdown_grace | int64 -}}
{{- add .Values.preStopSeconds $delay $grace 30 -}}
{{- end -}}

{{/* The name of the Secret with the store's URL; empty if there is none, because the URL is no secret. */}}
{{- define "headway.urlSecret" -}}
{{- if .Values.store.url -}}
{{- include "headway.fullname" . -}}
{{- else -}}
{{- .Values.store.existingSecret.name -}}
{{- end -}}
{{- end -}}

{{/* The store's URL where it is no secret. */}}
{{- define "headway.plainUrl" -}}
{{- $scheme := ternary "rediss" "redis" .Values.store.tls -}}
{{- $user := .Values.store.user | empty | ternary "" (printf "%s@" (urlquery .Values.store.user)) -}}
{{- with .Values.store.sentinel -}}
{{- if .addresses -}}
{{- printf "%s+sentinel://%s%s/%s/%d" $scheme $user (join "," .addresses) .service (int .database) -}}
{{- end -}}
{{- end -}}
{{- if .Values.store.cluster.addresses -}}
{{- printf "%s+cluster://%s%s" $scheme $user (join "," .Values.store.cluster.addresses) -}}
{{- end -}}
{{- if .Values.valkey.enabled -}}
{{- printf "redis://%s:6379/0" (include "headway.valkeyName" .) -}}
{{- end -}}
{{- end -}}

{{/* The file that a Secret's key is mounted as, by what it is for. */}}
{{- define "headway.file" -}}
/etc/headway/{{ .for }}/{{ .key }}
{{- end -}}

{{/* Secrets that the service reads as files: what for, which Secret, which keys. Files, because they are read anew. */}}
{{- define "headway.mounted" -}}
{{- with .Values.tls.existingSecret }}
- {for: tls, secret: {{ . | quote }}, keys: [tls.crt, tls.key{{ if $.Values.tls.clients }}, ca.crt{{ end }}]}
{{- end }}
{{- with .Values.auth.existingSecret }}
{{- if .name }}
- {for: auth, secret: {{ .name | quote }}, keys: [{{ .key | quote }}]}
{{- end }}
{{- end }}
{{- with .Values.store.passwordSecret }}
{{- if .name }}
- {for: store, secret: {{ .name | quote }}, keys: [{{ .key | quote }}]}
{{- end }}
{{- end }}
{{- with .Values.store.sentinel.passwordSecret }}
{{- if .name }}
- {for: sentinels, secret: {{ .name | quote }}, keys: [{{ .key | quote }}]}
{{- end }}
{{- end }}
{{- end -}}

{{/*
How the kubelet asks: by HTTP, which answers also while gRPC's threads are kept busy by calls that are refused; it does
not look at the certificate. Without that port by gRPC, which it does not speak over TLS. If clients need certificates,
which it has none of, by the image's own program, which is dear, or just by connecting.
*/}}
{{- define "headway.probe" -}}
{{- $tls := .root.Values.tls -}}
{{- if and .root.Values.httpPort (not (and $tls.existingSecret $tls.clients)) -}}
httpGet: {port: http, path: {{ ternary "/readyz" "/healthz" (eq .asks "readiness") }}, scheme: {{ ternary "HTTPS" "HTTP" (not (empty $tls.existingSecret)) }}}
{{- else if not $tls.existingSecret -}}
grpc: {port: {{ .root.Values.port }}, service: {{ .asks }}}
{{- else if eq .asks "readiness" -}}
exec: {command: [headwayd, check, --ready, "localhost:{{ .root.Values.port }}"]}
{{- else -}}
tcpSocket: {port: grpc}
{{- end -}}
{{- end -}}

{{/* Refuses what cannot work, with what to do about it. */}}
{{- define "headway.check" -}}
{{- $stores := list .Values.store.url .Values.store.existingSecret.name .Values.store.sentinel.addresses
  .Values.store.cluster.addresses .Values.valkey.enabled | compact -}}
{{- if ne (len $stores) 1 -}}
{{- fail "say where queues are kept, once: store.url, store.existingSecret.name, store.sentinel.addresses, store.cluster.addresses, or valkey.enabled=true" -}}
{{- end -}}
{{- $knowsCallers := or .Values.auth.existingSecret.name .Values.settings.jwt_jwks .Values.tls.clients -}}
{{- if not (or .Values.settings.insecure (and .Values.tls.existingSecret $knowsCallers)) -}}
{{- fail "say who may call, by tls.existingSecret with auth.existingSecret.name, settings.jwt_jwks or tls.clients; or settings.insecure=true says that the cluster's network is the fence" -}}
{{- end -}}
{{- if and .Values.tls.clients (not .Values.tls.existingSecret) -}}
{{- fail "tls.clients needs tls.existingSecret, whose ca.crt they are checked by" -}}
{{- end -}}
{{- range .Values.env -}}
{{- if regexMatch "^(HEADWAY|REDIS|PRESSURE)_" .name -}}
{{- fail (printf "env names %s: settings are said in settings, and by the values that they follow from" .name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.keda.scaledObjects (not .Values.settings.keda) -}}
{{- fail "keda.scaledObjects needs settings.keda=true" -}}
{{- end -}}
{{- if and (or .Values.serviceMonitor.enabled .Values.httpRoute.enabled) (not .Values.httpPort) -}}
{{- fail "serviceMonitor and httpRoute need httpPort" -}}
{{- end -}}
{{- if .Values.httpRoute.enabled -}}
{{- $off := dict -}}
{{- range $name := list "dashboard" "http_calls" -}}
{{- $_ := set $off $name (eq (get $.Values.settings $name | toString) "false") -}}
{{- end -}}
{{- if and .Values.httpRoute.dashboard (or $off.dashboard $off.http_calls) -}}
{{- fail "httpRoute.dashboard needs settings.dashboard and settings.http_calls, and one of them is false" -}}
{{- end -}}
{{- range .Values.httpRoute.paths -}}
{{- if and $off.http_calls (regexMatch "^/(headway|queues|place)" .) -}}
{{- fail (printf "httpRoute.paths lets %s through, which is not served with settings.http_calls=false" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range list (list "grpcRoute" .Values.grpcRoute) (list "httpRoute" .Values.httpRoute) -}}
{{- if and (last .).enabled (not (last .).parentRefs) -}}
{{- fail (printf "%s.parentRefs names no gateway" (first .)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts is empty" -}}
{{- end -}}
{{- if eq (int .Values.port) (int .Values.httpPort) -}}
{{- fail "port and httpPort are the same" -}}
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
