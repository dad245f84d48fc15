"""Persistent volumes and claims."""

TEXT = """\
@core.v1
LocalObjectReference
  name str
PersistentVolumeClaimTemplate
  metadata ObjectMeta
  spec! PersistentVolumeClaimSpec
PersistentVolumeClaimSpec
  accessModes [str]
  dataSource TypedLocalObjectReference
  dataSourceRef TypedObjectReference
  resources VolumeResourceRequirements
  selector LabelSelector
  storageClassName str?
  volumeAttributesClassName str?
  volumeMode str?
  volumeName str
TypedLocalObjectReference
  apiGroup str?
  kind! str
  name! str
TypedObjectReference
  apiGroup str?
  kind! str
  name! str
  namespace str?
VolumeResourceRequirements
  limits {quantity}
  requests {quantity}
PersistentVolumeClaim
  apiVersion str
  kind str
  metadata ObjectMeta
  spec PersistentVolumeClaimSpec
  status PersistentVolumeClaimStatus
PersistentVolumeClaimStatus
  accessModes [str]
  allocatedResourceStatuses {str}
  allocatedResources {quantity}
  capacity {quantity}
  conditions [PersistentVolumeClaimCondition]+type
  currentVolumeAttributesClassName str?
  modifyVolumeStatus ModifyVolumeStatus
  phase str
PersistentVolumeClaimCondition
  lastProbeTime time
  lastTransitionTime time
  message str
  reason str
  status! str
  type! str
ModifyVolumeStatus
  status! str
  targetVolumeAttributesClassName str
PersistentVolume
  apiVersion str
  kind str
  metadata ObjectMeta
  spec PersistentVolumeSpec
  status PersistentVolumeStatus
PersistentVolumeSpec
  accessModes [str]
  awsElasticBlockStore AWSElasticBlockStoreVolumeSource
  azureDisk AzureDiskVolumeSource
  azureFile AzureFilePersistentVolumeSource
  capacity {quantity}
  cephfs CephFSPersistentVolumeSource
  cinder CinderPersistentVolumeSource
  claimRef ObjectReference
  csi CSIPersistentVolumeSource
  fc FCVolumeSource
  flexVolume FlexPersistentVolumeSource
  flocker FlockerVolumeSource
  gcePersistentDisk GCEPersistentDiskVolumeSource
  glusterfs GlusterfsPersistentVolumeSource
  hostPath HostPathVolumeSource
  iscsi ISCSIPersistentVolumeSource
  local LocalVolumeSource
  mountOptions [str]
  nfs NFSVolumeSource
  nodeAffinity VolumeNodeAffinity
  persistentVolumeReclaimPolicy str
  photonPersistentDisk PhotonPersistentDiskVolumeSource
  portworxVolume PortworxVolumeSource
  quobyte QuobyteVolumeSource
  rbd RBDPersistentVolumeSource
  scaleIO ScaleIOPersistentVolumeSource
  storageClassName str
  storageos StorageOSPersistentVolumeSource
  volumeAttributesClassName str?
  volumeMode str?
  vsphereVolume VsphereVirtualDiskVolumeSource
SecretReference
  name str
  namespace str
CSIPersistentVolumeSource
  controllerExpandSecretRef SecretReference
  controllerPublishSecretRef SecretReference
  driver! str
  fsType str
  nodeExpandSecretRef SecretReference
  nodePublishSecretRef SecretReference
  nodeStageSecretRef SecretReference
  readOnly bool
  volumeAttributes {str}
  volumeHandle! str
VolumeNodeAffinity
  required NodeSelector
PersistentVolumeStatus
  lastPhaseTransitionTime time
  message str
  phase str
  reason str
"""
