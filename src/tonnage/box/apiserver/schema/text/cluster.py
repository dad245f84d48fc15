"""Schema text: nodes, namespaces, Events, configuration, quota, leases."""

TEXT = """\
@coordination.v1
Lease: Who leads, and until when.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec LeaseSpec: What is wanted.
LeaseSpec: Holder and times of the lease.
  acquireTime microtime: When it was taken.
  holderIdentity str?: Who holds it.
  leaseDurationSeconds int?: Seconds that others wait after the last renewal.
  leaseTransitions int?: How often it changed hands.
  preferredHolder str?: Who should hold it.
  renewTime microtime: When it was renewed last.
  strategy str?: How the holder is chosen.
@core.v1
Namespace: A name space for objects; deleting it deletes them.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec NamespaceSpec: What is wanted.
  status NamespaceStatus: What is.
NamespaceSpec: Finalizers that must be removed before the namespace is deleted.
  finalizers [str]: Who must act before it goes.
NamespaceStatus: The state of the namespace.
  conditions [NamespaceCondition]+type: What holds at present.
  phase str: Where it is in its life.
NamespaceCondition: One condition of the namespace.
  lastTransitionTime time: When status changed last.
  message str: Why, for people.
  reason str: Why, in one word for programs.
  status! str: What is.
  type! str: Which sort it is.
Node: A machine that runs pods.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec NodeSpec: What is wanted.
  status NodeStatus: What is.
NodeSpec: How the node takes part.
  configSource NodeConfigSource: Not used any more.
  externalID str: Not used any more.
  podCIDR str: Addresses of its pods.
  podCIDRs [str]+: Addresses of its pods.
  providerID str: The cloud's id of it.
  taints [Taint]: What keeps pods away.
  unschedulable bool: Whether new pods stay away.
NodeConfigSource
  configMap ConfigMapNodeConfigSource: A ConfigMap.
ConfigMapNodeConfigSource
  kubeletConfigKey! str
  name! str: Name.
  namespace! str: Namespace.
  resourceVersion str: Which version of the object this is.
  uid str: Identity, unique in space and time.
Taint: A mark of a node that keeps pods away which do not tolerate it.
  effect! str: What it does: NoSchedule, PreferNoSchedule, NoExecute.
  key! str: Key.
  timeAdded time: When it was added.
  value str: Value.
NodeStatus: What the node has and how it is.
  addresses [NodeAddress]+type: Where it can be reached.
  allocatable {quantity}: What pods may use, by resource.
  capacity {quantity}: What there is, by resource.
  conditions [NodeCondition]+type: What holds at present.
  config NodeConfigStatus: Not used any more.
  daemonEndpoints NodeDaemonEndpoints: Ports of the node's daemons.
  features NodeFeatures: What it can do.
  images [ContainerImage]: Images that are there.
  nodeInfo NodeSystemInfo: What runs on it.
  phase str: Where it is in its life.
  runtimeHandlers [NodeRuntimeHandler]: Which runtimes there are.
  volumesAttached [AttachedVolume]: Volumes that are attached.
  volumesInUse [str]: Volumes that are mounted.
NodeAddress: An address of the node.
  address! str: The address.
  type! str: Which sort it is.
NodeCondition: One condition of the node.
  lastHeartbeatTime time: When it was heard of last.
  lastTransitionTime time: When status changed last.
  message str: Why, for people.
  reason str: Why, in one word for programs.
  status! str: What is.
  type! str: Which sort it is.
NodeConfigStatus
  active NodeConfigSource: The configuration in use.
  assigned NodeConfigSource: The configuration that is wanted.
  error str: What went wrong.
  lastKnownGood NodeConfigSource: The configuration that worked last.
NodeDaemonEndpoints
  kubeletEndpoint DaemonEndpoint: Port of the kubelet.
DaemonEndpoint
  Port! int: The port.
NodeFeatures
  supplementalGroupsPolicy bool?: How the image's groups are treated.
ContainerImage: An image that is there.
  names [str]: Names.
  sizeBytes long: Size in bytes.
NodeSystemInfo: What runs on the node.
  architecture! str: Processor architecture.
  bootID! str: Changes with each boot.
  containerRuntimeVersion! str: Name and version of the runtime.
  kernelVersion! str: Version of the kernel.
  kubeProxyVersion! str: Not used any more.
  kubeletVersion! str: Version of the kubelet.
  machineID! str: Identity of the machine.
  operatingSystem! str: Sort of system.
  osImage! str: Name of the system.
  swap NodeSwapStatus: Swap space.
  systemUUID! str: Identity of the hardware.
NodeSwapStatus
  capacity long?: What there is, by resource.
NodeRuntimeHandler
  features NodeRuntimeHandlerFeatures: What it can do.
  name str: Name.
NodeRuntimeHandlerFeatures
  recursiveReadOnlyMounts bool?
  userNamespaces bool?
AttachedVolume: A volume that is attached.
  devicePath! str: Device file inside the container.
  name! str: Name.
ObjectReference: An object anywhere in the cluster.
  apiVersion str: Group and version of the object.
  fieldPath str: Path of the field.
  kind str: Kind of the object.
  name str: Name.
  namespace str: Namespace.
  resourceVersion str: Which version of the object this is.
  uid str: Identity, unique in space and time.
Event: Something that happened to an object.
  action str: What was done.
  apiVersion str: Group and version of the object.
  count int: How often.
  eventTime microtime: When it was seen first.
  firstTimestamp time: When first.
  involvedObject! ObjectReference: What it happened to.
  kind str: Kind of the object.
  lastTimestamp time: When last.
  message str: Why, for people.
  metadata! ObjectMeta: Name, labels, owners and times.
  reason str: Why, in one word for programs.
  related ObjectReference: A second object that took part.
  reportingComponent str: Who reports.
  reportingInstance str: Which copy of it.
  series EventSeries: How it went on.
  source EventSource: Who reports.
  type str: Which sort it is.
EventSeries: How often it happened again.
  count int: How often.
  lastObservedTime microtime: When last.
EventSource: Who reports.
  component str: Which program.
  host str: Host.
ConfigMap: Configuration: text and bytes by key.
  apiVersion str: Group and version of the object.
  binaryData {bytes}: Bytes by key.
  data {str}: Text by key.
  immutable bool?: Whether it may never change again.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
Secret: Confidential bytes by key.
  apiVersion str: Group and version of the object.
  data {bytes}: Bytes by key, in base64.
  immutable bool?: Whether it may never change again.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  stringData {str}: Text by key; written only.
  type str: Which sort it is.
ServiceAccount: An identity that pods run as.
  apiVersion str: Group and version of the object.
  automountServiceAccountToken bool?: Whether a token is mounted.
  imagePullSecrets [LocalObjectReference]: Secrets for fetching images.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  secrets [ObjectReference]+name: Secrets it may use.
ResourceQuota: Bounds of what a namespace may use.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec ResourceQuotaSpec: What is wanted.
  status ResourceQuotaStatus: What is.
ResourceQuotaSpec: The bounds.
  hard {quantity}: The bounds, by resource.
  scopeSelector ScopeSelector: Which objects count.
  scopes [str]: Which objects count.
ScopeSelector: Which objects count.
  matchExpressions [ScopedResourceSelectorRequirement]: Conditions on labels.
ScopedResourceSelectorRequirement
  operator! str: How key and values relate.
  scopeName! str: Which scope.
  values [str]: Values.
ResourceQuotaStatus: The bounds in force, and what is used.
  hard {quantity}: The bounds, by resource.
  used {quantity}: What is used, by resource.
LimitRange: Bounds of single objects of a namespace.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec LimitRangeSpec: What is wanted.
LimitRangeSpec: The bounds, by type of object.
  limits! [LimitRangeItem]: What may be used at most, by resource.
LimitRangeItem: The bounds of one type of object.
  default {quantity}: Limits of those that name none.
  defaultRequest {quantity}: Requests of those that name none.
  max {quantity}: Upper bounds.
  maxLimitRequestRatio {quantity}: How many times its request a limit may be.
  min {quantity}: Lower bounds.
  type! str: Container, Pod or PersistentVolumeClaim.
Binding: Gives a pod its node.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  target! ObjectReference: Where it goes.
@events.v1
Event: Something that happened to an object.
  action str: What was done.
  apiVersion str: Group and version of the object.
  deprecatedCount int
  deprecatedFirstTimestamp time
  deprecatedLastTimestamp time
  deprecatedSource EventSource
  eventTime! microtime: When it was seen first.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  note str: What happened, for people.
  reason str: Why, in one word for programs.
  regarding ObjectReference: What it happened to.
  related ObjectReference: A second object that took part.
  reportingController str: Who reports.
  reportingInstance str: Which copy of it.
  series EventSeries: How it went on.
  type str: Which sort it is.
EventSeries: How often it happened again.
  count! int: How often.
  lastObservedTime! microtime: When last.
"""
