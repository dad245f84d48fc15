{{- /* What the templates beside this ask for. They are made of src/tonnage/deploy by scripts/gen_chart.py. */ -}}

{{- define "tonnage.labels" -}}
app.kubernetes.io/name: tonnage
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tonnage.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "tonnage.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tonnage.list" -}}
{{- if . }}{{ toYaml . }}{{ end }}
{{- end }}

{{- define "tonnage.map" -}}
{{- if . }}{{ toYaml . }}{{ end }}
{{- end }}

{{- /* Our driver and those that are served beside it, with the keys of their places: as JSON, which CEL reads. */ -}}
{{- define "tonnage.drivers" -}}
{{- merge (dict "csi.tonnage.dev" "topology.tonnage.dev/node") .Values.csiDrivers | toJson }}
{{- end }}

{{- define "tonnage.provisioners" -}}
{{- concat (list "csi.tonnage.dev") (keys .Values.csiDrivers | sortAlpha) | toJson }}
{{- end }}

{{- define "tonnage.controllerDrivers" -}}
{{- range $name, $key := .Values.csiDrivers }}
- --driver={{ $name }}={{ $key }}
{{- end }}
{{- end }}

{{- define "tonnage.config" -}}
{{- $config := dict "pools" .Values.pools "bind" .Values.bind "scope" .Values.scope "kubelet" .Values.kubelet }}
{{- $_ := set $config "metrics" (printf "0.0.0.0:%v" .Values.metricsPort) }}
{{- $endpoints := list }}
{{- range $name, $_ := .Values.csiDrivers }}
{{- $endpoints = append $endpoints (printf "unix://%s/plugins/%s/csi.sock" $.Values.kubelet $name) }}
{{- end }}
{{- with $endpoints }}{{ $_ := set $config "csiEndpoints" . }}{{ end }}
{{- toYaml (mergeOverwrite $config .Values.config) }}
{{- end }}

{{- /* Folders of the node that pools lie in, each once. */ -}}
{{- define "tonnage.poolFolders" -}}
{{- $found := list }}
{{- range .Values.pools }}
{{- if hasPrefix "/" (.path | default "") }}{{ $found = append $found .path }}{{ end }}
{{- end }}
{{- $found | uniq | toJson }}
{{- end }}

{{- define "tonnage.poolMounts" -}}
{{- range $n, $path := include "tonnage.poolFolders" . | fromJsonArray }}
- name: pool-{{ $n }}
  mountPath: {{ $path }}
  mountPropagation: Bidirectional
{{- end }}
{{- end }}

{{- define "tonnage.poolVolumes" -}}
{{- range $n, $path := include "tonnage.poolFolders" . | fromJsonArray }}
- name: pool-{{ $n }}
  hostPath:
    path: {{ $path }}
    type: DirectoryOrCreate
{{- end }}
{{- end }}

{{- define "tonnage.classFields" -}}
{{- $all := dict "reclaimPolicy" "Delete" "volumeBindingMode" "WaitForFirstConsumer" }}
{{- toYaml (merge (omit . "default") $all) }}
{{- end }}

{{- define "tonnage.secretRule" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- with . }}
  resourceNames: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "tonnage.hasScopePolicy" -}}
{{- $wanted := toString .Values.policies.scope }}
{{- $served := semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version }}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") $served (ne .Values.scope "all")) }}yes{{ end }}
{{- end }}

{{- define "tonnage.hasAgentPolicy" -}}
{{- $wanted := toString .Values.policies.agent }}
{{- $served := semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") $served) }}yes{{ end }}
{{- end }}
