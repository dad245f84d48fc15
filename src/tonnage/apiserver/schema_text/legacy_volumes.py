"""Volume sources of other systems: known and accepted, but mounted by no kubelet here."""

TEXT = """\
@core.v1
AWSElasticBlockStoreVolumeSource
  fsType str
  partition int
  readOnly bool
  volumeID! str
AzureDiskVolumeSource
  cachingMode str?
  diskName! str
  diskURI! str
  fsType str?
  kind str?
  readOnly bool?
AzureFileVolumeSource
  readOnly bool
  secretName! str
  shareName! str
CephFSVolumeSource
  monitors! [str]
  path str
  readOnly bool
  secretFile str
  secretRef LocalObjectReference
  user str
CinderVolumeSource
  fsType str
  readOnly bool
  secretRef LocalObjectReference
  volumeID! str
FCVolumeSource
  fsType str
  lun int?
  readOnly bool
  targetWWNs [str]
  wwids [str]
FlexVolumeSource
  driver! str
  fsType str
  options {str}
  readOnly bool
  secretRef LocalObjectReference
FlockerVolumeSource
  datasetName str
  datasetUUID str
GCEPersistentDiskVolumeSource
  fsType str
  partition int
  pdName! str
  readOnly bool
GitRepoVolumeSource
  directory str
  repository! str
  revision str
GlusterfsVolumeSource
  endpoints! str
  path! str
  readOnly bool
ISCSIVolumeSource
  chapAuthDiscovery bool
  chapAuthSession bool
  fsType str
  initiatorName str?
  iqn! str
  iscsiInterface str
  lun! int
  portals [str]
  readOnly bool
  secretRef LocalObjectReference
  targetPortal! str
NFSVolumeSource
  path! str
  readOnly bool
  server! str
PhotonPersistentDiskVolumeSource
  fsType str
  pdID! str
PortworxVolumeSource
  fsType str
  readOnly bool
  volumeID! str
QuobyteVolumeSource
  group str
  readOnly bool
  registry! str
  tenant str
  user str
  volume! str
RBDVolumeSource
  fsType str
  image! str
  keyring str
  monitors! [str]
  pool str
  readOnly bool
  secretRef LocalObjectReference
  user str
ScaleIOVolumeSource
  fsType str
  gateway! str
  protectionDomain str
  readOnly bool
  secretRef! LocalObjectReference
  sslEnabled bool
  storageMode str
  storagePool str
  system! str
  volumeName str
StorageOSVolumeSource
  fsType str
  readOnly bool
  secretRef LocalObjectReference
  volumeName str
  volumeNamespace str
VsphereVirtualDiskVolumeSource
  fsType str
  storagePolicyID str
  storagePolicyName str
  volumePath! str
AzureFilePersistentVolumeSource
  readOnly bool
  secretName! str
  secretNamespace str?
  shareName! str
CephFSPersistentVolumeSource
  monitors! [str]
  path str
  readOnly bool
  secretFile str
  secretRef SecretReference
  user str
CinderPersistentVolumeSource
  fsType str
  readOnly bool
  secretRef SecretReference
  volumeID! str
FlexPersistentVolumeSource
  driver! str
  fsType str
  options {str}
  readOnly bool
  secretRef SecretReference
GlusterfsPersistentVolumeSource
  endpoints! str
  endpointsNamespace str?
  path! str
  readOnly bool
ISCSIPersistentVolumeSource
  chapAuthDiscovery bool
  chapAuthSession bool
  fsType str
  initiatorName str?
  iqn! str
  iscsiInterface str
  lun! int
  portals [str]
  readOnly bool
  secretRef SecretReference
  targetPortal! str
RBDPersistentVolumeSource
  fsType str
  image! str
  keyring str
  monitors! [str]
  pool str
  readOnly bool
  secretRef SecretReference
  user str
ScaleIOPersistentVolumeSource
  fsType str
  gateway! str
  protectionDomain str
  readOnly bool
  secretRef! SecretReference
  sslEnabled bool
  storageMode str
  storagePool str
  system! str
  volumeName str
StorageOSPersistentVolumeSource
  fsType str
  readOnly bool
  secretRef ObjectReference
  volumeName str
  volumeNamespace str
"""
