"""Nodes, namespaces, Events, configuration, quota, leases."""

TEXT = """\
@coordination.v1
Lease
  apiVersion str
  kind str
  metadata ObjectMeta
  spec LeaseSpec
LeaseSpec
  acquireTime microtime
  holderIdentity str?
  leaseDurationSeconds int?
  leaseTransitions int?
  preferredHolder str?
  renewTime microtime
  strategy str?
@core.v1
Namespace
  apiVersion str
  kind str
  metadata ObjectMeta
  spec NamespaceSpec
  status NamespaceStatus
NamespaceSpec
  finalizers [str]
NamespaceStatus
  conditions [NamespaceCondition]+type
  phase str
NamespaceCondition
  lastTransitionTime time
  message str
  reason str
  status! str
  type! str
Node
  apiVersion str
  kind str
  metadata ObjectMeta
  spec NodeSpec
  status NodeStatus
NodeSpec
  configSource NodeConfigSource
  externalID str
  podCIDR str
  podCIDRs [str]+
  providerID str
  taints [Taint]
  unschedulable bool
NodeConfigSource
  configMap ConfigMapNodeConfigSource
ConfigMapNodeConfigSource
  kubeletConfigKey! str
  name! str
  namespace! str
  resourceVersion str
  uid str
Taint
  effect! str
  key! str
  timeAdded time
  value str
NodeStatus
  addresses [NodeAddress]+type
  allocatable {quantity}
  capacity {quantity}
  conditions [NodeCondition]+type
  config NodeConfigStatus
  daemonEndpoints NodeDaemonEndpoints
  features NodeFeatures
  images [ContainerImage]
  nodeInfo NodeSystemInfo
  phase str
  runtimeHandlers [NodeRuntimeHandler]
  volumesAttached [AttachedVolume]
  volumesInUse [str]
NodeAddress
  address! str
  type! str
NodeCondition
  lastHeartbeatTime time
  lastTransitionTime time
  message str
  reason str
  status! str
  type! str
NodeConfigStatus
  active NodeConfigSource
  assigned NodeConfigSource
  error str
  lastKnownGood NodeConfigSource
NodeDaemonEndpoints
  kubeletEndpoint DaemonEndpoint
DaemonEndpoint
  Port! int
NodeFeatures
  supplementalGroupsPolicy bool?
ContainerImage
  names [str]
  sizeBytes long
NodeSystemInfo
  architecture! str
  bootID! str
  containerRuntimeVersion! str
  kernelVersion! str
  kubeProxyVersion! str
  kubeletVersion! str
  machineID! str
  operatingSystem! str
  osImage! str
  swap NodeSwapStatus
  systemUUID! str
NodeSwapStatus
  capacity long?
NodeRuntimeHandler
  features NodeRuntimeHandlerFeatures
  name str
NodeRuntimeHandlerFeatures
  recursiveReadOnlyMounts bool?
  userNamespaces bool?
AttachedVolume
  devicePath! str
  name! str
ObjectReference
  apiVersion str
  fieldPath str
  kind str
  name str
  namespace str
  resourceVersion str
  uid str
Event
  action str
  apiVersion str
  count int
  eventTime microtime
  firstTimestamp time
  involvedObject! ObjectReference
  kind str
  lastTimestamp time
  message str
  metadata! ObjectMeta
  reason str
  related ObjectReference
  reportingComponent str
  reportingInstance str
  series EventSeries
  source EventSource
  type str
EventSeries
  count int
  lastObservedTime microtime
EventSource
  component str
  host str
ConfigMap
  apiVersion str
  binaryData {bytes}
  data {str}
  immutable bool?
  kind str
  metadata ObjectMeta
Secret
  apiVersion str
  data {bytes}
  immutable bool?
  kind str
  metadata ObjectMeta
  stringData {str}
  type str
ServiceAccount
  apiVersion str
  automountServiceAccountToken bool?
  imagePullSecrets [LocalObjectReference]
  kind str
  metadata ObjectMeta
  secrets [ObjectReference]+name
ResourceQuota
  apiVersion str
  kind str
  metadata ObjectMeta
  spec ResourceQuotaSpec
  status ResourceQuotaStatus
ResourceQuotaSpec
  hard {quantity}
  scopeSelector ScopeSelector
  scopes [str]
ScopeSelector
  matchExpressions [ScopedResourceSelectorRequirement]
ScopedResourceSelectorRequirement
  operator! str
  scopeName! str
  values [str]
ResourceQuotaStatus
  hard {quantity}
  used {quantity}
LimitRange
  apiVersion str
  kind str
  metadata ObjectMeta
  spec LimitRangeSpec
LimitRangeSpec
  limits! [LimitRangeItem]
LimitRangeItem
  default {quantity}
  defaultRequest {quantity}
  max {quantity}
  maxLimitRequestRatio {quantity}
  min {quantity}
  type! str
Binding
  apiVersion str
  kind str
  metadata ObjectMeta
  target! ObjectReference
@events.v1
Event
  action str
  apiVersion str
  deprecatedCount int
  deprecatedFirstTimestamp time
  deprecatedLastTimestamp time
  deprecatedSource EventSource
  eventTime! microtime
  kind str
  metadata ObjectMeta
  note str
  reason str
  regarding ObjectReference
  related ObjectReference
  reportingController str
  reportingInstance str
  series EventSeries
  type str
EventSeries
  count! int
  lastObservedTime! microtime
"""
