"""Schema text: PersistentVolumes and PersistentVolumeClaims."""

TEXT = """\
@core.v1
LocalObjectReference: An object of the same namespace, by name.
  name str: Name.
PersistentVolumeClaimTemplate: What the claim that is made for the pod looks like.
  metadata ObjectMeta: Name, labels, owners and times.
  spec! PersistentVolumeClaimSpec: What is wanted.
PersistentVolumeClaimSpec: What storage is asked for.
  accessModes [str]: How it is to be mounted: ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod.
  dataSource TypedLocalObjectReference: What the new volume is filled from: a claim or a snapshot.
  dataSourceRef TypedObjectReference: As dataSource, also for other kinds and namespaces.
  resources VolumeResourceRequirements: How large it must be: requests.storage.
  selector LabelSelector: Labels that a volume must have.
  storageClassName str?: Name of its StorageClass.
  volumeAttributesClassName str?: Name of its VolumeAttributesClass.
  volumeMode str?: Filesystem (mounted) or Block (raw device).
  volumeName str: The volume it is bound to.
TypedLocalObjectReference: An object of the same namespace, by group, kind and name.
  apiGroup str?: Group of the object; the core group if empty.
  kind! str: Kind of the object.
  name! str: Name.
TypedObjectReference: An object by group, kind, name and perhaps namespace.
  apiGroup str?: Group of the object; the core group if empty.
  kind! str: Kind of the object.
  name! str: Name.
  namespace str?: Namespace.
VolumeResourceRequirements: How large a volume is asked for.
  limits {quantity}: What may be used at most, by resource.
  requests {quantity}: What is asked for, by resource.
PersistentVolumeClaim: A request for storage: size, class and how it is to be used.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec PersistentVolumeClaimSpec: What is wanted.
  status PersistentVolumeClaimStatus: What is.
PersistentVolumeClaimStatus: What the claim has got.
  accessModes [str]: How it is to be mounted: ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod.
  allocatedResourceStatuses {str}: How far a growth has come.
  allocatedResources {quantity}: What is set aside.
  capacity {quantity}: The size it has got, under storage.
  conditions [PersistentVolumeClaimCondition]+type: What holds at present.
  currentVolumeAttributesClassName str?: The attributes class in force.
  modifyVolumeStatus ModifyVolumeStatus: How far a change of the attributes class has come.
  phase str: Pending, Bound or Lost.
PersistentVolumeClaimCondition: One condition of the claim.
  lastProbeTime time: When it was looked at last.
  lastTransitionTime time: When status changed last.
  message str: Why, for people.
  reason str: Why, in one word for programs.
  status! str: What is.
  type! str: Which sort it is.
ModifyVolumeStatus: State of a change of the attributes class.
  status! str: What is.
  targetVolumeAttributesClassName str: The attributes class that is wanted.
PersistentVolume: A piece of storage of the cluster, bound to at most one claim.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec PersistentVolumeSpec: What is wanted.
  status PersistentVolumeStatus: What is.
PersistentVolumeSpec: What the volume is, and which nodes reach it.
  accessModes [str]: How it is to be mounted: ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod.
  awsElasticBlockStore AWSElasticBlockStoreVolumeSource: A disk of AWS.
  azureDisk AzureDiskVolumeSource: A disk of Azure.
  azureFile AzureFilePersistentVolumeSource: A share of Azure.
  capacity {quantity}: Its size, under storage.
  cephfs CephFSPersistentVolumeSource: A CephFS.
  cinder CinderPersistentVolumeSource: A disk of OpenStack.
  claimRef ObjectReference: The claim it is bound to.
  csi CSIPersistentVolumeSource: A volume of a CSI driver.
  fc FCVolumeSource: A Fibre Channel disk.
  flexVolume FlexPersistentVolumeSource: A FlexVolume.
  flocker FlockerVolumeSource: A Flocker volume.
  gcePersistentDisk GCEPersistentDiskVolumeSource: A disk of Google.
  glusterfs GlusterfsPersistentVolumeSource: A Gluster volume.
  hostPath HostPathVolumeSource: A path of the node.
  iscsi ISCSIPersistentVolumeSource: An iSCSI disk.
  local LocalVolumeSource: A disk of one node.
  mountOptions [str]: Options of mount.
  nfs NFSVolumeSource: An NFS export.
  nodeAffinity VolumeNodeAffinity: Which nodes reach it.
  persistentVolumeReclaimPolicy str: What happens when the claim goes: Retain, Delete or Recycle.
  photonPersistentDisk PhotonPersistentDiskVolumeSource: A disk of Photon.
  portworxVolume PortworxVolumeSource: A Portworx volume.
  quobyte QuobyteVolumeSource: A Quobyte volume.
  rbd RBDPersistentVolumeSource: A Ceph block device.
  scaleIO ScaleIOPersistentVolumeSource: A ScaleIO volume.
  storageClassName str: Name of its StorageClass.
  storageos StorageOSPersistentVolumeSource: A StorageOS volume.
  volumeAttributesClassName str?: Name of its VolumeAttributesClass.
  volumeMode str?: Filesystem (mounted) or Block (raw device).
  vsphereVolume VsphereVirtualDiskVolumeSource: A disk of vSphere.
SecretReference: A Secret by name and namespace.
  name str: Name.
  namespace str: Namespace.
CSIPersistentVolumeSource: A volume of a CSI driver.
  controllerExpandSecretRef SecretReference: Secret given to ControllerExpandVolume.
  controllerPublishSecretRef SecretReference: Secret given to ControllerPublishVolume.
  driver! str: Name of the CSI driver.
  fsType str: File system to mount; the driver's choice if empty.
  nodeExpandSecretRef SecretReference: Secret given to NodeExpandVolume.
  nodePublishSecretRef SecretReference: Secret given to NodePublishVolume.
  nodeStageSecretRef SecretReference: Secret given to NodeStageVolume.
  readOnly bool: Mount it read-only.
  volumeAttributes {str}: Attributes that the driver returned for the volume; passed to its later calls.
  volumeHandle! str: The driver's id of the volume.
VolumeNodeAffinity: Which nodes reach a volume.
  required NodeSelector: What must hold.
PersistentVolumeStatus: The state of the volume.
  lastPhaseTransitionTime time: When phase changed last.
  message str: Why, for people.
  phase str: Pending, Available, Bound, Released or Failed.
  reason str: Why, in one word for programs.
"""
