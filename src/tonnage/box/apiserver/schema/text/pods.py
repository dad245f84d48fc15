"""Schema text: pods, without containers and volumes."""

TEXT = """\
@core.v1
Pod: Containers that run together on one node and share its volumes and network.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec PodSpec: What is wanted.
  status PodStatus: What is.
PodSpec: What the pod runs, and where.
  activeDeadlineSeconds long?: Seconds after which it is ended.
  affinity Affinity: Which nodes suit, by nodes and pods.
  automountServiceAccountToken bool?: Whether a token is mounted.
  containers! [Container]+name: The programs that run together.
  dnsConfig PodDNSConfig: Further settings of name lookup.
  dnsPolicy str: How names are looked up.
  enableServiceLinks bool?: Variables for services.
  ephemeralContainers [EphemeralContainer]+name: Containers added to look into a running pod.
  hostAliases [HostAlias]+ip: Lines for /etc/hosts.
  hostIPC bool: Share the node's IPC.
  hostNetwork bool: Use the node's network.
  hostPID bool: See the node's processes.
  hostUsers bool?: Share the node's user ids.
  hostname str: Host name.
  hostnameOverride str?: Host name to use instead.
  imagePullSecrets [LocalObjectReference]+name: Secrets for fetching images.
  initContainers [Container]+name: Programs that run before, one after another.
  nodeName str: Name of the node.
  nodeSelector {str}: Labels that the node must have.
  os PodOS: The system it needs.
  overhead {quantity}: What the runtime itself needs.
  preemptionPolicy str?: Whether others may be pushed out for it.
  priority int?: How important it is; higher goes first.
  priorityClassName str: Name of its priority.
  readinessGates [PodReadinessGate]: Further conditions of readiness.
  resourceClaims [PodResourceClaim]+name~: Devices that are claimed.
  resources ResourceRequirements: Resources that are asked for.
  restartPolicy str: When containers are started again: Always, OnFailure, Never.
  runtimeClassName str?: Which runtime runs it.
  schedulerName str: Which scheduler places the pod.
  schedulingGates [PodSchedulingGate]+name: What must be removed before it is scheduled.
  securityContext PodSecurityContext: As whom and with which rights it runs.
  serviceAccount str: Old name of serviceAccountName.
  serviceAccountName str: The identity it runs as.
  setHostnameAsFQDN bool?: Use the full name as host name.
  shareProcessNamespace bool?: Containers see each other's processes.
  subdomain str: Domain below the namespace.
  terminationGracePeriodSeconds long?: Seconds between the polite and the hard end.
  tolerations [Toleration]: Taints that do not keep it away.
  topologySpreadConstraints [TopologySpreadConstraint]+topologyKey: How evenly pods are spread.
  volumes [Volume]+name~: Storage that containers may mount.
Affinity: Which nodes suit the pod, by nodes and by the pods that are there.
  nodeAffinity NodeAffinity: Which nodes reach it.
  podAffinity PodAffinity: Pods to be near to.
  podAntiAffinity PodAntiAffinity: Pods to be far from.
NodeAffinity: Which nodes suit the pod.
  preferredDuringSchedulingIgnoredDuringExecution [PreferredSchedulingTerm]: What should hold when it is placed.
  requiredDuringSchedulingIgnoredDuringExecution NodeSelector: What must hold when it is placed.
PreferredSchedulingTerm: What is preferred, and how much.
  preference! NodeSelectorTerm: What is preferred.
  weight! int: How much it counts, 1 to 100.
NodeSelectorTerm: Conditions that must all hold for a node; an empty term holds for none.
  matchExpressions [NodeSelectorRequirement]: Conditions on labels.
  matchFields [NodeSelectorRequirement]: Conditions on fields.
NodeSelectorRequirement: One condition on a node's label or field.
  key! str: Key.
  operator! str: How key and values relate.
  values [str]: Values.
NodeSelector: Terms of which one must hold for a node.
  nodeSelectorTerms! [NodeSelectorTerm]: Terms of which one must hold.
PodAffinity: Which pods it should run near.
  preferredDuringSchedulingIgnoredDuringExecution [WeightedPodAffinityTerm]: What should hold when it is placed.
  requiredDuringSchedulingIgnoredDuringExecution [PodAffinityTerm]: What must hold when it is placed.
WeightedPodAffinityTerm: What is preferred, and how much.
  podAffinityTerm! PodAffinityTerm: Which pods, and how near.
  weight! int: How much it counts, 1 to 100.
PodAffinityTerm: Which pods, and how near.
  labelSelector LabelSelector: Which objects, by labels.
  matchLabelKeys [str]: Labels whose values must be alike.
  mismatchLabelKeys [str]: Labels whose values must differ.
  namespaceSelector LabelSelector: Which namespaces, by labels.
  namespaces [str]: Which namespaces.
  topologyKey! str: Node label that names the part of the cluster.
PodAntiAffinity: Which pods it should not run near.
  preferredDuringSchedulingIgnoredDuringExecution [WeightedPodAffinityTerm]: What should hold when it is placed.
  requiredDuringSchedulingIgnoredDuringExecution [PodAffinityTerm]: What must hold when it is placed.
PodDNSConfig: Settings of name lookup.
  nameservers [str]: Name servers.
  options [PodDNSConfigOption]: Options.
  searches [str]: Domains to search.
PodDNSConfigOption
  name str: Name.
  value str?: Value.
HostAlias: A line for /etc/hosts.
  hostnames [str]: Names for the address.
  ip! str: Address.
PodOS
  name! str: Name.
PodReadinessGate: A further condition of readiness.
  conditionType! str: Which condition.
PodResourceClaim
  name! str: Name.
  resourceClaimName str?
  resourceClaimTemplateName str?
PodSchedulingGate: Something that keeps the pod from being scheduled until it is removed.
  name! str: Name.
PodSecurityContext: As whom and with which rights the pod's containers run.
  appArmorProfile AppArmorProfile: AppArmor profile.
  fsGroup long?: Group that owns the volumes.
  fsGroupChangePolicy str?: When volumes get that group: Always, OnRootMismatch.
  runAsGroup long?: Group id.
  runAsNonRoot bool?: Refuse to run as root.
  runAsUser long?: User id.
  seLinuxChangePolicy str?: How volumes get their label.
  seLinuxOptions SELinuxOptions: SELinux label.
  seccompProfile SeccompProfile: Which system calls are allowed.
  supplementalGroups [long]: Further group ids.
  supplementalGroupsPolicy str?: How the image's groups are treated.
  sysctls [Sysctl]: Kernel settings.
  windowsOptions WindowsSecurityContextOptions: Settings for Windows.
Sysctl
  name! str: Name.
  value! str: Value.
Toleration: A taint that does not keep the pod away.
  effect str: What it does: NoSchedule, PreferNoSchedule, NoExecute.
  key str: Key.
  operator str: How key and values relate.
  tolerationSeconds long?: Seconds it is tolerated.
  value str: Value.
TopologySpreadConstraint: How evenly pods are spread over parts of the cluster.
  labelSelector LabelSelector: Which objects, by labels.
  matchLabelKeys [str]: Labels whose values must be alike.
  maxSkew! int: How uneven it may be.
  minDomains int?: How many parts there must be.
  nodeAffinityPolicy str?: Whether nodeAffinity counts.
  nodeTaintsPolicy str?: Whether taints count.
  topologyKey! str: Node label that names the part of the cluster.
  whenUnsatisfiable! str: DoNotSchedule or ScheduleAnyway.
PodStatus: What has become of the pod; written by its kubelet.
  conditions [PodCondition]+type: What holds at present.
  containerStatuses [ContainerStatus]: State of its containers.
  ephemeralContainerStatuses [ContainerStatus]: State of its ephemeral containers.
  extendedResourceClaimStatus PodExtendedResourceClaimStatus
  hostIP str: Address of its node.
  hostIPs [HostIP]+ip: Addresses of its node.
  initContainerStatuses [ContainerStatus]: State of its init containers.
  message str: Why, for people.
  nominatedNodeName str: Node where preemption frees capacity for it.
  observedGeneration long: The generation that this was written for.
  phase str: Pending, Running, Succeeded, Failed or Unknown.
  podIP str: Its address.
  podIPs [PodIP]+ip: Its addresses.
  qosClass str: Guaranteed, Burstable or BestEffort.
  reason str: Why, in one word for programs.
  resize str: How far a change of resources has come.
  resourceClaimStatuses [PodResourceClaimStatus]+name~
  startTime time: When it began.
PodCondition: One condition of the pod.
  lastProbeTime time: When it was looked at last.
  lastTransitionTime time: When status changed last.
  message str: Why, for people.
  observedGeneration long: The generation that this was written for.
  reason str: Why, in one word for programs.
  status! str: What is.
  type! str: Which sort it is.
PodExtendedResourceClaimStatus
  requestMappings! [ContainerExtendedResourceRequest]
  resourceClaimName! str
ContainerExtendedResourceRequest
  containerName! str: Which container.
  requestName! str: Which request.
  resourceName! str: Which resource.
HostIP: An address.
  ip! str: Address.
PodIP: An address.
  ip! str: Address.
PodResourceClaimStatus
  name! str: Name.
  resourceClaimName str?
TopologySelectorTerm: Conditions on the topology of a volume, all of which must hold.
  matchLabelExpressions [TopologySelectorLabelRequirement]: Conditions that must all hold.
TopologySelectorLabelRequirement: A topology key and its allowed values.
  key! str: Key.
  values! [str]: Values.
"""
