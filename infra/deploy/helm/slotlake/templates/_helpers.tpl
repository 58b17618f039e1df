{{- define "slotlake.name" -}}
{{- printf "%s-slotlake" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "slotlake.selector" -}}
app.kubernetes.io/name: slotlake
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "slotlake.labels" -}}
{{ include "slotlake.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "slotlake.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "slotlake.name" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "slotlake.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* "yes" if the state is in an object store, so that several pods can work on the pipeline. */}}
{{- define "slotlake.shared" -}}
{{- $own := dig "state" "path" "" .Values.pipeline -}}
{{- $log := dig "changelog" "path" "" .Values.pipeline -}}
{{- if contains "://" (default $log $own) -}}yes{{- end -}}
{{- end -}}

{{/* What both containers share: image, user, variables, folders. */}}
{{- define "slotlake.container" -}}
image: {{ include "slotlake.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{- toYaml .Values.resources | nindent 2 }}
env:
  # In the state folder too: what this machine needs for itself.
  - {name: SLOTLAKE_HOME, value: /var/lib/slotlake/home}
  {{- if .Values.caBundle.configMap }}
  - {name: SSL_CERT_FILE, value: /etc/slotlake-ca/ca.crt}
  {{- end }}
  {{- range $name, $value := .Values.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
  {{- range $name, $from := .Values.secrets }}
  - name: {{ $name }}
    valueFrom:
      secretKeyRef: {name: {{ $from.name | quote }}, key: {{ $from.key | quote }}}
  {{- end }}
volumeMounts:
  - {name: state, mountPath: /var/lib/slotlake}
  # Next to the state folder, and read-only; a change of it makes a new pod (checksum/pipeline).
  - {name: pipeline, mountPath: /var/lib/slotlake/pipeline.yaml, subPath: pipeline.yaml, readOnly: true}
  - {name: scratch, mountPath: /tmp}
  {{- if .Values.caBundle.configMap }}
  - {name: ca, mountPath: /etc/slotlake-ca, readOnly: true}
  {{- end }}
{{- end -}}
