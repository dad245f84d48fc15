"""Volumes of a pod."""

TEXT = """\
@core.v1
Volume
  awsElasticBlockStore AWSElasticBlockStoreVolumeSource
  azureDisk AzureDiskVolumeSource
  azureFile AzureFileVolumeSource
  cephfs CephFSVolumeSource
  cinder CinderVolumeSource
  configMap ConfigMapVolumeSource
  csi CSIVolumeSource
  downwardAPI DownwardAPIVolumeSource
  emptyDir EmptyDirVolumeSource
  ephemeral EphemeralVolumeSource
  fc FCVolumeSource
  flexVolume FlexVolumeSource
  flocker FlockerVolumeSource
  gcePersistentDisk GCEPersistentDiskVolumeSource
  gitRepo GitRepoVolumeSource
  glusterfs GlusterfsVolumeSource
  hostPath HostPathVolumeSource
  image ImageVolumeSource
  iscsi ISCSIVolumeSource
  name! str
  nfs NFSVolumeSource
  persistentVolumeClaim PersistentVolumeClaimVolumeSource
  photonPersistentDisk PhotonPersistentDiskVolumeSource
  portworxVolume PortworxVolumeSource
  projected ProjectedVolumeSource
  quobyte QuobyteVolumeSource
  rbd RBDVolumeSource
  scaleIO ScaleIOVolumeSource
  secret SecretVolumeSource
  storageos StorageOSVolumeSource
  vsphereVolume VsphereVirtualDiskVolumeSource
ConfigMapVolumeSource
  defaultMode int?
  items [KeyToPath]
  name str
  optional bool?
KeyToPath
  key! str
  mode int?
  path! str
CSIVolumeSource
  driver! str
  fsType str?
  nodePublishSecretRef LocalObjectReference
  readOnly bool?
  volumeAttributes {str}
DownwardAPIVolumeSource
  defaultMode int?
  items [DownwardAPIVolumeFile]
DownwardAPIVolumeFile
  fieldRef ObjectFieldSelector
  mode int?
  path! str
  resourceFieldRef ResourceFieldSelector
EmptyDirVolumeSource
  medium str
  sizeLimit quantity
EphemeralVolumeSource
  volumeClaimTemplate PersistentVolumeClaimTemplate
HostPathVolumeSource
  path! str
  type str?
ImageVolumeSource
  pullPolicy str
  reference str
PersistentVolumeClaimVolumeSource
  claimName! str
  readOnly bool
ProjectedVolumeSource
  defaultMode int?
  sources [VolumeProjection]
VolumeProjection
  clusterTrustBundle ClusterTrustBundleProjection
  configMap ConfigMapProjection
  downwardAPI DownwardAPIProjection
  podCertificate PodCertificateProjection
  secret SecretProjection
  serviceAccountToken ServiceAccountTokenProjection
ClusterTrustBundleProjection
  labelSelector LabelSelector
  name str?
  optional bool?
  path! str
  signerName str?
ConfigMapProjection
  items [KeyToPath]
  name str
  optional bool?
DownwardAPIProjection
  items [DownwardAPIVolumeFile]
PodCertificateProjection
  certificateChainPath str
  credentialBundlePath str
  keyPath str
  keyType! str
  maxExpirationSeconds int?
  signerName! str
SecretProjection
  items [KeyToPath]
  name str
  optional bool?
ServiceAccountTokenProjection
  audience str
  expirationSeconds long?
  path! str
SecretVolumeSource
  defaultMode int?
  items [KeyToPath]
  optional bool?
  secretName str
LocalVolumeSource
  fsType str?
  path! str
"""
