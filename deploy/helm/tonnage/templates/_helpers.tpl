{{- /* What the templates beside this ask for. They are made of src/tonnage/tools/ops/install/templates by scripts/gen_chart.py. */ -}}

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
{{- $all := merge (dict "csi.tonnage.dev" "topology.tonnage.dev/node") .Values.csiDrivers }}
{{- range include "tonnage.flexProvisioners" . | fromJson }}{{- $_ := set $all . "topology.tonnage.dev/node" }}{{ end }}
{{- $all | toJson }}
{{- end }}

{{- /* Provisioner of FlexVolumes -> their driver; none where agents serve no FlexVolumes. */ -}}
{{- define "tonnage.flexProvisioners" -}}
{{- if .Values.config.flexvolume }}{{ .Files.Get "flex-provisioners.json" | fromJson | toJson }}{{ else }}{}{{ end }}
{{- end }}

{{- /* What agents provision for beside our driver, with the keys of their places. */ -}}
{{- define "tonnage.moreProvisioners" -}}
{{- $all := merge (dict) .Values.csiDrivers }}
{{- range $name, $_ := include "tonnage.flexProvisioners" . | fromJson }}{{- $_ := set $all $name "topology.tonnage.dev/node" }}{{ end }}
{{- $all | toJson }}
{{- end }}

{{- define "tonnage.provisioners" -}}
{{- concat (list "csi.tonnage.dev") (include "tonnage.moreProvisioners" . | fromJson | keys | sortAlpha) | toJson }}
{{- end }}

{{- define "tonnage.controllerDrivers" -}}
{{- range $name, $key := include "tonnage.moreProvisioners" . | fromJson }}
- --driver={{ $name }}={{ $key }}
{{- end }}
{{- end }}

{{- define "tonnage.controllerIssuers" -}}
{{- range $name, $issuer := .Values.controller.certificateIssuers }}
- --certificate-issuer={{ $name }}=/issuers/{{ $name }}{{ range $issuer.options }},{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "tonnage.issuerSigners" -}}
{{- $found := list }}
{{- range $name := keys .Values.controller.certificateIssuers | sortAlpha }}
{{- $found = append $found (printf "tonnage.dev/%s" $name) }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- define "tonnage.signers" -}}
{{- $ours := include "tonnage.issuerSigners" . | fromJsonArray }}
{{- $others := list }}
{{- range $target := regexFindAll "=csr:[^,;]+" (join "," .Values.inlineDrivers) -1 }}
{{- $others = append $others (trimPrefix "=csr:" $target) }}
{{- end }}
{{- concat $ours ($others | uniq | sortAlpha) | uniq | toJson }}
{{- end }}

{{- define "tonnage.controllerAttaches" -}}
{{- range .Values.controller.attachEndpoints }}
- --attach-endpoint={{ . }}
{{- end }}
{{- end }}

{{- define "tonnage.controllerUser" -}}
{{- if .Values.controller.attachEndpoints }}
runAsUser: 0
runAsGroup: 0
{{- else }}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
{{- end }}
{{- end }}

{{- define "tonnage.attachSecretReader" -}}
{{- if .Values.controller.attachEndpoints }}
- kind: ServiceAccount
  name: tonnage-controller
  namespace: {{ .Release.Namespace }}
{{- end }}
{{- end }}

{{- define "tonnage.socketFolders" -}}
{{- $folders := list }}
{{- range .Values.controller.attachEndpoints }}
{{- $folders = append $folders (trimPrefix "unix://" . | trimPrefix "unix:" | dir) }}
{{- end }}
{{- $folders | uniq | toJson }}
{{- end }}

{{- define "tonnage.controllerMounts" -}}
{{- if or .Values.controller.certificateIssuers .Values.controller.attachEndpoints }}
volumeMounts:
{{- range $name, $issuer := .Values.controller.certificateIssuers }}
- name: issuer-{{ sha256sum $name | trunc 8 }}
  mountPath: /issuers/{{ $name }}
  readOnly: true
{{- end }}
{{- range $number, $folder := include "tonnage.socketFolders" . | fromJsonArray }}
- name: driver-{{ $number }}
  mountPath: {{ $folder }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tonnage.controllerVolumes" -}}
{{- if or .Values.controller.certificateIssuers .Values.controller.attachEndpoints }}
volumes:
{{- range $name, $issuer := .Values.controller.certificateIssuers }}
- name: issuer-{{ sha256sum $name | trunc 8 }}
  secret:
    secretName: {{ $issuer.secret }}
{{- end }}
{{- range $number, $folder := include "tonnage.socketFolders" . | fromJsonArray }}
- name: driver-{{ $number }}
  hostPath:
    path: {{ $folder }}
    type: DirectoryOrCreate
{{- end }}
{{- end }}
{{- end }}

{{- define "tonnage.controllerTemplates" -}}
{{- range .Values.controller.nodeGroupLabels }}
- --node-group-label={{ . }}
{{- end }}
{{- range $group, $classes := .Values.controller.nodeTemplates }}
{{- $rooms := list }}
{{- range $class, $size := $classes }}
{{- $rooms = append $rooms (printf "%s=%s" $class $size) }}
{{- end }}
- {{ printf "--node-template=%s:%s" $group (join "," $rooms) }}
{{- end }}
{{- end }}

{{- define "tonnage.config" -}}
{{- $values := .root.Values }}
{{- $config := dict "pools" .pools "bind" $values.bind "scope" $values.scope "capacity" $values.capacity "kubelet" $values.kubelet }}
{{- $_ := set $config "metrics" (printf "0.0.0.0:%v" $values.metricsPort) }}
{{- $endpoints := list }}
{{- range $name, $_ := $values.csiDrivers }}
{{- $endpoints = append $endpoints (printf "unix://%s/plugins/%s/csi.sock" $values.kubelet $name) }}
{{- end }}
{{- with $endpoints }}{{ $_ := set $config "csiEndpoints" . }}{{ end }}
{{- with $values.fetch }}{{ $_ := set $config "fetch" . }}{{ end }}
{{- with $values.imageStores }}{{ $_ := set $config "imageStores" . }}{{ end }}
{{- with $values.sources }}{{ $_ := set $config "sources" . }}{{ end }}
{{- with $values.inlineDrivers }}{{ $_ := set $config "inline" . }}{{ end }}
{{- toYaml (mergeOverwrite $config $values.config) }}
{{- end }}

{{- /* The name of an inline driver: KIND[,key=value...], with a key `name` or without. */ -}}
{{- define "tonnage.inlineName" -}}
{{- $name := printf "%s.tonnage.dev" (splitList "," . | first) }}
{{- range splitList "," . | rest }}
{{- if hasPrefix "name=" . }}{{ $name = trimPrefix "name=" . }}{{ end }}
{{- end }}
{{- $name }}
{{- end }}

{{- /* The nodes of no group, and those of each: name -> pools, as JSON. */ -}}
{{- define "tonnage.groups" -}}
{{- $found := dict "" .Values.pools }}
{{- range $name, $group := .Values.nodeGroups }}{{ $_ := set $found $name $group.pools }}{{ end }}
{{- $found | toJson }}
{{- end }}

{{- /* Whether each volume of each node is a file system that can be mounted with an SELinux context of its own. */ -}}
{{- define "tonnage.seLinuxMount" -}}
{{- $kinds := .Files.Get "selinux-kinds.json" | fromJsonArray }}
{{- $all := true }}
{{- range $pools := include "tonnage.groups" . | fromJson }}
{{- range $pool := $.Values.config.pools | default $pools }}{{ if not (has $pool.kind $kinds) }}{{ $all = false }}{{ end }}{{ end }}
{{- end }}
{{- $all }}
{{- end }}

{{- define "tonnage.groupLabel" -}}
{{- with . }}tonnage.dev/group: {{ . }}{{ end }}
{{- end }}

{{- /* Nodes of a group have that label; those of no group have none that is one. */ -}}
{{- define "tonnage.nodeAffinity" -}}
{{- if and (empty .group) .root.Values.nodeGroups }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - key: tonnage.dev/group
              operator: NotIn
              values: {{ keys .root.Values.nodeGroups | sortAlpha | toJson }}
{{- end }}
{{- end }}

{{- define "tonnage.peers" -}}
{{- with .peers }}
{{ $.key }}:
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- define "tonnage.apiPorts" -}}
{{- range .Values.networkPolicy.apiPorts }}
- port: {{ . }}
  protocol: TCP
{{- end }}
{{- end }}

{{- /* "yes" when a folder is one of the others or is in one. */ -}}
{{- define "tonnage.isWithin" -}}
{{- $path := printf "%s/" .path }}
{{- range .folders }}{{ if hasPrefix (printf "%s/" .) $path }}yes{{ end }}{{ end }}
{{- end }}

{{- /* Folders of the node that pools need a mount for, each once.
  None inside another's folder or the kubelet's: those are mounted with propagation, so a mount in them would
  show on the node and stay there, and their number would double each time that the agent starts. */ -}}
{{- define "tonnage.poolFolders" -}}
{{- $kubelet := .root.Values.kubelet }}
{{- $paths := list }}
{{- range $pool := .pools }}
{{- with $path := $pool.path | default "" | regexFind "^/.*" }}
{{- range $other := list $kubelet "/dev" "/etc/tonnage" "/run/lock/lvm" "/run/tonnage" "/sys/fs/cgroup" "/tmp" }}
{{- if include "tonnage.isWithin" (dict "path" $other "folders" (list $path)) }}
{{- fail (printf "pool %s: path %s: the agent's pod has another folder at %s; name a folder that does not hold it" ($pool.name | default $path) $path $other) }}
{{- end }}
{{- end }}
{{- $paths = append $paths $path }}
{{- end }}
{{- end }}
{{- $found := list }}
{{- range $path := uniq $paths }}
{{- $others := append (without $paths $path) $kubelet }}
{{- if not (include "tonnage.isWithin" (dict "path" $path "folders" $others)) }}{{ $found = append $found $path }}{{ end }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- /* Folders of the node that are mounted with propagation. */ -}}
{{- define "tonnage.sharedFolders" -}}
{{- append (include "tonnage.poolFolders" . | fromJsonArray) .root.Values.kubelet | toJson }}
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

{{- /* Folders that volumes are filled from, each once; not in one that is shared. */ -}}
{{- define "tonnage.contentFolders" -}}
{{- $shared := include "tonnage.sharedFolders" . | fromJsonArray }}
{{- $seen := list }}
{{- $found := list }}
{{- $values := .root.Values }}
{{- $written := false }}
{{- $read := list }}
{{- range $values.config.inline | default $values.inlineDrivers }}
{{- if regexMatch "^image(,|$)" . }}
{{- $written = true }}
{{- range $part := splitList "," . }}
{{- if hasPrefix "folder=" $part }}{{ $read = append $read (trimPrefix "folder=" $part) }}{{ end }}
{{- if hasPrefix "containerd=" $part }}{{ $read = append $read (dir (trimPrefix "containerd=" $part)) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $values.config.imageStores | default $values.imageStores }}
{{- if not (or (has . $seen) (include "tonnage.isWithin" (dict "path" . "folders" $shared))) }}{{ $found = append $found (dict "path" . "type" "DirectoryOrCreate" "written" $written) }}{{ end }}
{{- $seen = append $seen . }}
{{- end }}
{{- range $values.config.sources | default $values.sources }}
{{- if not (or (has . $seen) (include "tonnage.isWithin" (dict "path" . "folders" $shared))) }}{{ $found = append $found (dict "path" . "type" "Directory") }}{{ end }}
{{- $seen = append $seen . }}
{{- end }}
{{- range $read }}
{{- if not (or (has . $seen) (include "tonnage.isWithin" (dict "path" . "folders" $shared))) }}{{ $found = append $found (dict "path" . "type" "Directory") }}{{ end }}
{{- $seen = append $seen . }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- /* The kubelet's folder of FlexVolume drivers, where the pod needs a mount for it: not in one that is shared. */ -}}
{{- define "tonnage.pluginFolder" -}}
{{- $shared := include "tonnage.sharedFolders" . | fromJsonArray }}
{{- with .root.Values.config.flexvolume }}
{{- if not (include "tonnage.isWithin" (dict "path" . "folders" $shared)) }}{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "tonnage.contentMounts" -}}
{{- range $n, $folder := include "tonnage.contentFolders" . | fromJsonArray }}
- name: content-{{ $n }}
  mountPath: {{ $folder.path }}
  {{- if not $folder.written }}
  readOnly: true
  {{- end }}
  mountPropagation: HostToContainer
{{- end }}
{{- with include "tonnage.pluginFolder" . }}
- name: flexvolume
  mountPath: {{ . }}
{{- end }}
{{- end }}

{{- define "tonnage.contentVolumes" -}}
{{- range $n, $folder := include "tonnage.contentFolders" . | fromJsonArray }}
- name: content-{{ $n }}
  hostPath:
    path: {{ $folder.path }}
    type: {{ $folder.type }}
{{- end }}
{{- with include "tonnage.pluginFolder" . }}
- name: flexvolume
  hostPath:
    path: {{ . }}
    type: DirectoryOrCreate
{{- end }}
{{- end }}

{{- define "tonnage.classFields" -}}
{{- $all := dict "reclaimPolicy" "Delete" "volumeBindingMode" "WaitForFirstConsumer" }}
{{- if not (hasKey . "allowVolumeExpansion") }}{{- $_ := set $all "allowVolumeExpansion" true }}{{- end }}
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
