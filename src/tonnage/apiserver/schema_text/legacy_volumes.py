"""Volume sources of other systems: known and accepted, but mounted by no kubelet here."""

TEXT = """\
@core.v1
AWSElasticBlockStoreVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  partition int
  readOnly bool: Mount it read-only.
  volumeID! str
AzureDiskVolumeSource
  cachingMode str?
  diskName! str
  diskURI! str
  fsType str?: File system to mount; the driver's choice if empty.
  kind str?: Kind of the object.
  readOnly bool?: Mount it read-only.
AzureFileVolumeSource
  readOnly bool: Mount it read-only.
  secretName! str: Name of the Secret.
  shareName! str
CephFSVolumeSource
  monitors! [str]
  path str: Path.
  readOnly bool: Mount it read-only.
  secretFile str
  secretRef LocalObjectReference: The Secret that holds credentials.
  user str
CinderVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  readOnly bool: Mount it read-only.
  secretRef LocalObjectReference: The Secret that holds credentials.
  volumeID! str
FCVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  lun int?
  readOnly bool: Mount it read-only.
  targetWWNs [str]
  wwids [str]
FlexVolumeSource
  driver! str: Name of the CSI driver.
  fsType str: File system to mount; the driver's choice if empty.
  options {str}
  readOnly bool: Mount it read-only.
  secretRef LocalObjectReference: The Secret that holds credentials.
FlockerVolumeSource
  datasetName str
  datasetUUID str
GCEPersistentDiskVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  partition int
  pdName! str
  readOnly bool: Mount it read-only.
GitRepoVolumeSource
  directory str
  repository! str
  revision str
GlusterfsVolumeSource
  endpoints! str
  path! str: Path.
  readOnly bool: Mount it read-only.
ISCSIVolumeSource
  chapAuthDiscovery bool
  chapAuthSession bool
  fsType str: File system to mount; the driver's choice if empty.
  initiatorName str?
  iqn! str
  iscsiInterface str
  lun! int
  portals [str]
  readOnly bool: Mount it read-only.
  secretRef LocalObjectReference: The Secret that holds credentials.
  targetPortal! str
NFSVolumeSource
  path! str: Path.
  readOnly bool: Mount it read-only.
  server! str
PhotonPersistentDiskVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  pdID! str
PortworxVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  readOnly bool: Mount it read-only.
  volumeID! str
QuobyteVolumeSource
  group str
  readOnly bool: Mount it read-only.
  registry! str
  tenant str
  user str
  volume! str
RBDVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  image! str: Name of the image.
  keyring str
  monitors! [str]
  pool str
  readOnly bool: Mount it read-only.
  secretRef LocalObjectReference: The Secret that holds credentials.
  user str
ScaleIOVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  gateway! str
  protectionDomain str
  readOnly bool: Mount it read-only.
  secretRef! LocalObjectReference: The Secret that holds credentials.
  sslEnabled bool
  storageMode str
  storagePool str
  system! str
  volumeName str: Name of the PersistentVolume.
StorageOSVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  readOnly bool: Mount it read-only.
  secretRef LocalObjectReference: The Secret that holds credentials.
  volumeName str: Name of the PersistentVolume.
  volumeNamespace str
VsphereVirtualDiskVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  storagePolicyID str
  storagePolicyName str
  volumePath! str
AzureFilePersistentVolumeSource
  readOnly bool: Mount it read-only.
  secretName! str: Name of the Secret.
  secretNamespace str?
  shareName! str
CephFSPersistentVolumeSource
  monitors! [str]
  path str: Path.
  readOnly bool: Mount it read-only.
  secretFile str
  secretRef SecretReference: The Secret that holds credentials.
  user str
CinderPersistentVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  readOnly bool: Mount it read-only.
  secretRef SecretReference: The Secret that holds credentials.
  volumeID! str
FlexPersistentVolumeSource
  driver! str: Name of the CSI driver.
  fsType str: File system to mount; the driver's choice if empty.
  options {str}
  readOnly bool: Mount it read-only.
  secretRef SecretReference: The Secret that holds credentials.
GlusterfsPersistentVolumeSource
  endpoints! str
  endpointsNamespace str?
  path! str: Path.
  readOnly bool: Mount it read-only.
ISCSIPersistentVolumeSource
  chapAuthDiscovery bool
  chapAuthSession bool
  fsType str: File system to mount; the driver's choice if empty.
  initiatorName str?
  iqn! str
  iscsiInterface str
  lun! int
  portals [str]
  readOnly bool: Mount it read-only.
  secretRef SecretReference: The Secret that holds credentials.
  targetPortal! str
RBDPersistentVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  image! str: Name of the image.
  keyring str
  monitors! [str]
  pool str
  readOnly bool: Mount it read-only.
  secretRef SecretReference: The Secret that holds credentials.
  user str
ScaleIOPersistentVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  gateway! str
  protectionDomain str
  readOnly bool: Mount it read-only.
  secretRef! SecretReference: The Secret that holds credentials.
  sslEnabled bool
  storageMode str
  storagePool str
  system! str
  volumeName str: Name of the PersistentVolume.
StorageOSPersistentVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  readOnly bool: Mount it read-only.
  secretRef ObjectReference: The Secret that holds credentials.
  volumeName str: Name of the PersistentVolume.
  volumeNamespace str
"""
