"""Pods, apart from containers and volumes."""

TEXT = """\
@core.v1
Pod
  apiVersion str
  kind str
  metadata ObjectMeta
  spec PodSpec
  status PodStatus
PodSpec
  activeDeadlineSeconds long?
  affinity Affinity
  automountServiceAccountToken bool?
  containers! [Container]+name
  dnsConfig PodDNSConfig
  dnsPolicy str
  enableServiceLinks bool?
  ephemeralContainers [EphemeralContainer]+name
  hostAliases [HostAlias]+ip
  hostIPC bool
  hostNetwork bool
  hostPID bool
  hostUsers bool?
  hostname str
  hostnameOverride str?
  imagePullSecrets [LocalObjectReference]+name
  initContainers [Container]+name
  nodeName str
  nodeSelector {str}
  os PodOS
  overhead {quantity}
  preemptionPolicy str?
  priority int?
  priorityClassName str
  readinessGates [PodReadinessGate]
  resourceClaims [PodResourceClaim]+name~
  resources ResourceRequirements
  restartPolicy str
  runtimeClassName str?
  schedulerName str
  schedulingGates [PodSchedulingGate]+name
  securityContext PodSecurityContext
  serviceAccount str
  serviceAccountName str
  setHostnameAsFQDN bool?
  shareProcessNamespace bool?
  subdomain str
  terminationGracePeriodSeconds long?
  tolerations [Toleration]
  topologySpreadConstraints [TopologySpreadConstraint]+topologyKey
  volumes [Volume]+name~
Affinity
  nodeAffinity NodeAffinity
  podAffinity PodAffinity
  podAntiAffinity PodAntiAffinity
NodeAffinity
  preferredDuringSchedulingIgnoredDuringExecution [PreferredSchedulingTerm]
  requiredDuringSchedulingIgnoredDuringExecution NodeSelector
PreferredSchedulingTerm
  preference! NodeSelectorTerm
  weight! int
NodeSelectorTerm
  matchExpressions [NodeSelectorRequirement]
  matchFields [NodeSelectorRequirement]
NodeSelectorRequirement
  key! str
  operator! str
  values [str]
NodeSelector
  nodeSelectorTerms! [NodeSelectorTerm]
PodAffinity
  preferredDuringSchedulingIgnoredDuringExecution [WeightedPodAffinityTerm]
  requiredDuringSchedulingIgnoredDuringExecution [PodAffinityTerm]
WeightedPodAffinityTerm
  podAffinityTerm! PodAffinityTerm
  weight! int
PodAffinityTerm
  labelSelector LabelSelector
  matchLabelKeys [str]
  mismatchLabelKeys [str]
  namespaceSelector LabelSelector
  namespaces [str]
  topologyKey! str
PodAntiAffinity
  preferredDuringSchedulingIgnoredDuringExecution [WeightedPodAffinityTerm]
  requiredDuringSchedulingIgnoredDuringExecution [PodAffinityTerm]
PodDNSConfig
  nameservers [str]
  options [PodDNSConfigOption]
  searches [str]
PodDNSConfigOption
  name str
  value str?
HostAlias
  hostnames [str]
  ip! str
PodOS
  name! str
PodReadinessGate
  conditionType! str
PodResourceClaim
  name! str
  resourceClaimName str?
  resourceClaimTemplateName str?
PodSchedulingGate
  name! str
PodSecurityContext
  appArmorProfile AppArmorProfile
  fsGroup long?
  fsGroupChangePolicy str?
  runAsGroup long?
  runAsNonRoot bool?
  runAsUser long?
  seLinuxChangePolicy str?
  seLinuxOptions SELinuxOptions
  seccompProfile SeccompProfile
  supplementalGroups [long]
  supplementalGroupsPolicy str?
  sysctls [Sysctl]
  windowsOptions WindowsSecurityContextOptions
Sysctl
  name! str
  value! str
Toleration
  effect str
  key str
  operator str
  tolerationSeconds long?
  value str
TopologySpreadConstraint
  labelSelector LabelSelector
  matchLabelKeys [str]
  maxSkew! int
  minDomains int?
  nodeAffinityPolicy str?
  nodeTaintsPolicy str?
  topologyKey! str
  whenUnsatisfiable! str
PodStatus
  conditions [PodCondition]+type
  containerStatuses [ContainerStatus]
  ephemeralContainerStatuses [ContainerStatus]
  extendedResourceClaimStatus PodExtendedResourceClaimStatus
  hostIP str
  hostIPs [HostIP]+ip
  initContainerStatuses [ContainerStatus]
  message str
  nominatedNodeName str
  observedGeneration long
  phase str
  podIP str
  podIPs [PodIP]+ip
  qosClass str
  reason str
  resize str
  resourceClaimStatuses [PodResourceClaimStatus]+name~
  startTime time
PodCondition
  lastProbeTime time
  lastTransitionTime time
  message str
  observedGeneration long
  reason str
  status! str
  type! str
PodExtendedResourceClaimStatus
  requestMappings! [ContainerExtendedResourceRequest]
  resourceClaimName! str
ContainerExtendedResourceRequest
  containerName! str
  requestName! str
  resourceName! str
HostIP
  ip! str
PodIP
  ip! str
PodResourceClaimStatus
  name! str
  resourceClaimName str?
TopologySelectorTerm
  matchLabelExpressions [TopologySelectorLabelRequirement]
TopologySelectorLabelRequirement
  key! str
  values! [str]
"""
