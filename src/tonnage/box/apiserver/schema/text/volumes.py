"""Schema text: volumes of a pod."""

TEXT = """\
@core.v1
Volume: Storage of a pod: a name and exactly one source.
  awsElasticBlockStore AWSElasticBlockStoreVolumeSource: A disk of AWS.
  azureDisk AzureDiskVolumeSource: A disk of Azure.
  azureFile AzureFileVolumeSource: A share of Azure.
  cephfs CephFSVolumeSource: A CephFS.
  cinder CinderVolumeSource: A disk of OpenStack.
  configMap ConfigMapVolumeSource: A ConfigMap.
  csi CSIVolumeSource: A volume of a CSI driver.
  downwardAPI DownwardAPIVolumeSource: What the pod knows of itself.
  emptyDir EmptyDirVolumeSource: An empty directory.
  ephemeral EphemeralVolumeSource: A claim that is made for the pod.
  fc FCVolumeSource: A Fibre Channel disk.
  flexVolume FlexVolumeSource: A FlexVolume.
  flocker FlockerVolumeSource: A Flocker volume.
  gcePersistentDisk GCEPersistentDiskVolumeSource: A disk of Google.
  gitRepo GitRepoVolumeSource: A clone of a repository.
  glusterfs GlusterfsVolumeSource: A Gluster volume.
  hostPath HostPathVolumeSource: A path of the node.
  image ImageVolumeSource: Name of the image.
  iscsi ISCSIVolumeSource: An iSCSI disk.
  name! str: Name, unique in the pod; a DNS label.
  nfs NFSVolumeSource: An NFS export.
  persistentVolumeClaim PersistentVolumeClaimVolumeSource: A claim that exists.
  photonPersistentDisk PhotonPersistentDiskVolumeSource: A disk of Photon.
  portworxVolume PortworxVolumeSource: A Portworx volume.
  projected ProjectedVolumeSource: Several sources in one directory.
  quobyte QuobyteVolumeSource: A Quobyte volume.
  rbd RBDVolumeSource: A Ceph block device.
  scaleIO ScaleIOVolumeSource: A ScaleIO volume.
  secret SecretVolumeSource: A Secret.
  storageos StorageOSVolumeSource: A StorageOS volume.
  vsphereVolume VsphereVirtualDiskVolumeSource: A disk of vSphere.
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
  volumeAttributes {str}: Attributes for the driver.
DownwardAPIVolumeSource: Files that tell the pod about itself.
  defaultMode int?: Permissions of files that name none.
  items [DownwardAPIVolumeFile]: The items.
DownwardAPIVolumeFile: One file about the pod.
  fieldRef ObjectFieldSelector: A field of the pod.
  mode int?: Permissions of the file.
  path! str: Path.
  resourceFieldRef ResourceFieldSelector: A resource of a container.
EmptyDirVolumeSource: A directory that is empty when the pod starts and goes with it.
  medium str: Memory, or the node's disk if empty.
  sizeLimit quantity: How much may be written.
EphemeralVolumeSource: A claim made for this pod and deleted with it.
  volumeClaimTemplate PersistentVolumeClaimTemplate: The claim to make; it is called <pod>-<volume>.
HostPathVolumeSource: A file or directory of the node.
  path! str: Path.
  type str?: What must be there, or is to be made.
ImageVolumeSource: The files of an image.
  pullPolicy str: When it is fetched.
  reference str: Name of the image.
PersistentVolumeClaimVolumeSource: Use of an existing claim of the pod's namespace.
  claimName! str: Name of the claim.
  readOnly bool: Mount it read-only.
ProjectedVolumeSource: Files from several sources in one directory.
  defaultMode int?: Permissions of files that name none.
  sources [VolumeProjection]: The sources.
VolumeProjection: One of several sources.
  clusterTrustBundle ClusterTrustBundleProjection: Certificates of authorities.
  configMap ConfigMapProjection: A ConfigMap.
  downwardAPI DownwardAPIProjection: What the pod knows of itself.
  podCertificate PodCertificateProjection: A certificate of the pod.
  secret SecretProjection: A Secret.
  serviceAccountToken ServiceAccountTokenProjection: A token of the service account.
ClusterTrustBundleProjection
  labelSelector LabelSelector: Which objects, by labels.
  name str?: Name.
  optional bool?: Whether it may be missing.
  path! str: Path.
  signerName str?: Who signs.
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
  signerName! str: Who signs.
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
