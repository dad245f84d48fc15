"""storage.k8s.io/v1."""

TEXT = """\
@storage.v1
StorageClass
  allowVolumeExpansion bool?
  allowedTopologies [TopologySelectorTerm]
  apiVersion str
  kind str
  metadata ObjectMeta
  mountOptions [str]
  parameters {str}
  provisioner! str
  reclaimPolicy str?
  volumeBindingMode str?
CSIDriver
  apiVersion str
  kind str
  metadata ObjectMeta
  spec! CSIDriverSpec
CSIDriverSpec
  attachRequired bool?
  fsGroupPolicy str?
  nodeAllocatableUpdatePeriodSeconds long?
  podInfoOnMount bool?
  requiresRepublish bool?
  seLinuxMount bool?
  storageCapacity bool?
  tokenRequests [TokenRequest]
  volumeLifecycleModes [str]
TokenRequest
  audience! str
  expirationSeconds long?
CSINode
  apiVersion str
  kind str
  metadata ObjectMeta
  spec! CSINodeSpec
CSINodeSpec
  drivers! [CSINodeDriver]+name
CSINodeDriver
  allocatable VolumeNodeResources
  name! str
  nodeID! str
  topologyKeys [str]
VolumeNodeResources
  count int?
CSIStorageCapacity
  apiVersion str
  capacity quantity
  kind str
  maximumVolumeSize quantity
  metadata ObjectMeta
  nodeTopology LabelSelector
  storageClassName! str
VolumeAttachment
  apiVersion str
  kind str
  metadata ObjectMeta
  spec! VolumeAttachmentSpec
  status VolumeAttachmentStatus
VolumeAttachmentSpec
  attacher! str
  nodeName! str
  source! VolumeAttachmentSource
VolumeAttachmentSource
  inlineVolumeSpec PersistentVolumeSpec
  persistentVolumeName str?
VolumeAttachmentStatus
  attachError VolumeError
  attached! bool
  attachmentMetadata {str}
  detachError VolumeError
VolumeError
  errorCode int?
  message str
  time time
"""
