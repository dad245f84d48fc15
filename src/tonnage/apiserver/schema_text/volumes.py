"""Volumes of a pod."""

TEXT = """\
@core.v1
Volume: Storage of a pod: a name and exactly one source.
  awsElasticBlockStore AWSElasticBlockStoreVolumeSource
  azureDisk AzureDiskVolumeSource
  azureFile AzureFileVolumeSource
  cephfs CephFSVolumeSource
  cinder CinderVolumeSource
  configMap ConfigMapVolumeSource: A ConfigMap.
  csi CSIVolumeSource: A volume of a CSI driver.
  downwardAPI DownwardAPIVolumeSource: What the pod knows of itself.
  emptyDir EmptyDirVolumeSource: An empty directory.
  ephemeral EphemeralVolumeSource: A claim that is made for the pod.
  fc FCVolumeSource
  flexVolume FlexVolumeSource
  flocker FlockerVolumeSource
  gcePersistentDisk GCEPersistentDiskVolumeSource
  gitRepo GitRepoVolumeSource
  glusterfs GlusterfsVolumeSource
  hostPath HostPathVolumeSource: A path of the node.
  image ImageVolumeSource: Name of the image.
  iscsi ISCSIVolumeSource
  name! str: Name, unique in the pod; a DNS label.
  nfs NFSVolumeSource
  persistentVolumeClaim PersistentVolumeClaimVolumeSource: A claim that exists.
  photonPersistentDisk PhotonPersistentDiskVolumeSource
  portworxVolume PortworxVolumeSource
  projected ProjectedVolumeSource: Several sources in one directory.
  quobyte QuobyteVolumeSource
  rbd RBDVolumeSource
  scaleIO ScaleIOVolumeSource
  secret SecretVolumeSource: A Secret.
  storageos StorageOSVolumeSource
  vsphereVolume VsphereVirtualDiskVolumeSource
ConfigMapVolumeSource: Files made of a ConfigMap.
  defaultMode int?: Permissions of files that name none.
  items [KeyToPath]: The items.
  name str: Name.
  optional bool?: Whether it may be missing.
KeyToPath: A key and the file it becomes.
  key! str: Key.
  mode int?: Permissions of the file.
  path! str: Path.
CSIVolumeSource: A volume that a CSI driver makes for this pod when it starts (inline).
  driver! str: Name of the CSI driver.
  fsType str?: File system to mount; the driver's choice if empty.
  nodePublishSecretRef LocalObjectReference: Secret given to NodePublishVolume.
  readOnly bool?: Mount it read-only.
  volumeAttributes {str}: What the driver told about the volume, given back to it.
DownwardAPIVolumeSource: Files that tell the pod about itself.
  defaultMode int?: Permissions of files that name none.
  items [DownwardAPIVolumeFile]: The items.
DownwardAPIVolumeFile
  fieldRef ObjectFieldSelector
  mode int?: Permissions of the file.
  path! str: Path.
  resourceFieldRef ResourceFieldSelector
EmptyDirVolumeSource: A directory that is empty when the pod starts and goes with it.
  medium str: Memory, or the node's disk if empty.
  sizeLimit quantity: How much may be written.
EphemeralVolumeSource: A claim made for this pod and deleted with it.
  volumeClaimTemplate PersistentVolumeClaimTemplate: The claim to make; it is called <pod>-<volume>.
HostPathVolumeSource: A file or directory of the node.
  path! str: Path.
  type str?: What must be there, or is to be made.
ImageVolumeSource
  pullPolicy str
  reference str
PersistentVolumeClaimVolumeSource: Use of an existing claim of the pod's namespace.
  claimName! str: Name of the claim.
  readOnly bool: Mount it read-only.
ProjectedVolumeSource: Files from several sources in one directory.
  defaultMode int?: Permissions of files that name none.
  sources [VolumeProjection]
VolumeProjection
  clusterTrustBundle ClusterTrustBundleProjection
  configMap ConfigMapProjection: A ConfigMap.
  downwardAPI DownwardAPIProjection: What the pod knows of itself.
  podCertificate PodCertificateProjection
  secret SecretProjection: A Secret.
  serviceAccountToken ServiceAccountTokenProjection
ClusterTrustBundleProjection
  labelSelector LabelSelector
  name str?: Name.
  optional bool?: Whether it may be missing.
  path! str: Path.
  signerName str?
ConfigMapProjection
  items [KeyToPath]: The items.
  name str: Name.
  optional bool?: Whether it may be missing.
DownwardAPIProjection
  items [DownwardAPIVolumeFile]: The items.
PodCertificateProjection
  certificateChainPath str
  credentialBundlePath str
  keyPath str
  keyType! str
  maxExpirationSeconds int?
  signerName! str
SecretProjection
  items [KeyToPath]: The items.
  name str: Name.
  optional bool?: Whether it may be missing.
ServiceAccountTokenProjection
  audience str: Who a token is for.
  expirationSeconds long?: Seconds that a token lives.
  path! str: Path.
SecretVolumeSource: Files made of a Secret.
  defaultMode int?: Permissions of files that name none.
  items [KeyToPath]: The items.
  optional bool?: Whether it may be missing.
  secretName str: Name of the Secret.
LocalVolumeSource: A disk or directory of one node.
  fsType str?: File system to mount; the driver's choice if empty.
  path! str: Path.
"""
