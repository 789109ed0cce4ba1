{{- define "reprise.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "reprise.selector" -}}
app.kubernetes.io/name: reprise
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "reprise.labels" -}}
{{ include "reprise.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* Requests that wait in all replicas of this release, for KEDA's query. */ -}}
{{- define "reprise.waiting" -}}
sum(vllm:num_requests_waiting{namespace="{{ .Release.Namespace }}",pod=~"{{ include "reprise.name" . }}-.*"})
{{- end -}}
