"""Schema text: storage.k8s.io/v1."""

TEXT = """\
@storage.v1
StorageClass: A kind of storage that claims may ask for: who makes it, and how.
  allowVolumeExpansion bool?: Whether claims may grow.
  allowedTopologies [TopologySelectorTerm]: Where volumes may be made.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  mountOptions [str]: Options of mount.
  parameters {str}: Parameters for the driver.
  provisioner! str: Name of the driver that makes volumes.
  reclaimPolicy str?: What happens to a volume when its claim goes: Delete or Retain.
  volumeBindingMode str?: Immediate, or WaitForFirstConsumer.
CSIDriver: What Kubernetes must know of a CSI driver.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec! CSIDriverSpec: What is wanted.
CSIDriverSpec: How the driver works together with Kubernetes.
  attachRequired bool?: Whether volumes must be attached to a node first.
  fsGroupPolicy str?: How fsGroup is applied: ReadWriteOnceWithFSType, File, None.
  nodeAllocatableUpdatePeriodSeconds long?: How often the node's limit is asked for.
  podInfoOnMount bool?: Tell the driver which pod it mounts for.
  requiresRepublish bool?: Call NodePublishVolume again and again.
  seLinuxMount bool?: Whether it understands -o context.
  storageCapacity bool?: Whether the scheduler looks at CSIStorageCapacity.
  tokenRequests [TokenRequest]: Service account tokens the driver wants.
  volumeLifecycleModes [str]: Persistent, Ephemeral (inline), or both.
TokenRequest: A token that the driver wants.
  audience! str: Who a token is for.
  expirationSeconds long?: Seconds that a token lives.
CSINode: The CSI drivers of one node; written by its kubelet.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec! CSINodeSpec: What is wanted.
CSINodeSpec: The drivers of the node.
  drivers! [CSINodeDriver]+name: The drivers.
CSINodeDriver: One driver of the node.
  allocatable VolumeNodeResources: How many of its volumes the node takes.
  name! str: Name.
  nodeID! str: The driver's name for the node.
  topologyKeys [str]: Node labels that tell the driver's topology.
VolumeNodeResources: How many volumes of a driver the node takes.
  count int?: How many volumes; no bound without it.
CSIStorageCapacity: How much storage of one class there is for one set of nodes.
  apiVersion str: Group and version of the object.
  capacity quantity: Bytes that are free, as GetCapacity said; nothing known without it.
  kind str: Kind of the object.
  maximumVolumeSize quantity: The largest single volume that fits.
  metadata ObjectMeta: The name has no meaning.
  nodeTopology LabelSelector: Nodes that reach the storage; none without it, all if empty.
  storageClassName! str: The class that this counts for; it need not exist.
VolumeAttachment: The wish to attach a volume to a node, and what came of it.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec! VolumeAttachmentSpec: What is wanted.
  status VolumeAttachmentStatus: What is.
VolumeAttachmentSpec: What is to be attached where.
  attacher! str: Name of the driver that attaches.
  nodeName! str: Name of the node.
  source! VolumeAttachmentSource: Where it comes from.
VolumeAttachmentSource: The volume to attach.
  inlineVolumeSpec PersistentVolumeSpec: The volume itself, instead of its name.
  persistentVolumeName str?: Name of the PersistentVolume.
VolumeAttachmentStatus: What came of it.
  attachError VolumeError: Last error of attaching.
  attached! bool: Whether it is attached.
  attachmentMetadata {str}: Metadata that the driver returned for the attachment.
  detachError VolumeError: Last error of detaching.
VolumeError: An error of attaching or detaching.
  errorCode int?: gRPC code of the error.
  message str: Why, for people.
  time time: When.
"""
