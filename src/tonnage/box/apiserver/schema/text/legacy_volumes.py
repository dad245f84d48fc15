"""Schema text: volume sources that are accepted, but that the box's kubelet does not mount."""

TEXT = """\
@core.v1
AWSElasticBlockStoreVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  partition int: Number of the partition.
  readOnly bool: Mount it read-only.
  volumeID! str: Id of the volume.
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
  shareName! str: Name of the share.
CephFSVolumeSource
  monitors! [str]: Addresses of monitors.
  path str: Path.
  readOnly bool: Mount it read-only.
  secretFile str
  secretRef LocalObjectReference: The Secret that holds credentials.
  user str: Name of the user.
CinderVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  readOnly bool: Mount it read-only.
  secretRef LocalObjectReference: The Secret that holds credentials.
  volumeID! str: Id of the volume.
FCVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  lun int?: Number of the unit.
  readOnly bool: Mount it read-only.
  targetWWNs [str]
  wwids [str]
FlexVolumeSource
  driver! str: Name of the CSI driver.
  fsType str: File system to mount; the driver's choice if empty.
  options {str}: Options.
  readOnly bool: Mount it read-only.
  secretRef LocalObjectReference: The Secret that holds credentials.
FlockerVolumeSource
  datasetName str
  datasetUUID str
GCEPersistentDiskVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  partition int: Number of the partition.
  pdName! str: Name of the disk.
  readOnly bool: Mount it read-only.
GitRepoVolumeSource
  directory str: Directory.
  repository! str: Repository.
  revision str: Commit.
GlusterfsVolumeSource
  endpoints! str: Servers.
  path! str: Path.
  readOnly bool: Mount it read-only.
ISCSIVolumeSource: An iSCSI disk.
  chapAuthDiscovery bool
  chapAuthSession bool
  fsType str: File system to mount; the driver's choice if empty.
  initiatorName str?
  iqn! str
  iscsiInterface str
  lun! int: Number of the unit.
  portals [str]
  readOnly bool: Mount it read-only.
  secretRef LocalObjectReference: The Secret that holds credentials.
  targetPortal! str
NFSVolumeSource: An NFS export.
  path! str: Path.
  readOnly bool: Mount it read-only.
  server! str: Name of the server.
PhotonPersistentDiskVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  pdID! str: Id of the disk.
PortworxVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  readOnly bool: Mount it read-only.
  volumeID! str: Id of the volume.
QuobyteVolumeSource
  group str: Group.
  readOnly bool: Mount it read-only.
  registry! str: Addresses of the registry.
  tenant str: Tenant of the volume.
  user str: Name of the user.
  volume! str: Name of the volume.
RBDVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  image! str: Name of the image.
  keyring str: Key file of the user.
  monitors! [str]: Addresses of monitors.
  pool str: Name of the pool.
  readOnly bool: Mount it read-only.
  secretRef LocalObjectReference: The Secret that holds credentials.
  user str: Name of the user.
ScaleIOVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  gateway! str: Address of the gateway.
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
  volumeNamespace str: Namespace of the volume.
VsphereVirtualDiskVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  storagePolicyID str
  storagePolicyName str
  volumePath! str: Path of the volume.
AzureFilePersistentVolumeSource
  readOnly bool: Mount it read-only.
  secretName! str: Name of the Secret.
  secretNamespace str?: Namespace of the Secret.
  shareName! str: Name of the share.
CephFSPersistentVolumeSource
  monitors! [str]: Addresses of monitors.
  path str: Path.
  readOnly bool: Mount it read-only.
  secretFile str
  secretRef SecretReference: The Secret that holds credentials.
  user str: Name of the user.
CinderPersistentVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  readOnly bool: Mount it read-only.
  secretRef SecretReference: The Secret that holds credentials.
  volumeID! str: Id of the volume.
FlexPersistentVolumeSource
  driver! str: Name of the CSI driver.
  fsType str: File system to mount; the driver's choice if empty.
  options {str}: Options.
  readOnly bool: Mount it read-only.
  secretRef SecretReference: The Secret that holds credentials.
GlusterfsPersistentVolumeSource
  endpoints! str: Servers.
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
  lun! int: Number of the unit.
  portals [str]
  readOnly bool: Mount it read-only.
  secretRef SecretReference: The Secret that holds credentials.
  targetPortal! str
RBDPersistentVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  image! str: Name of the image.
  keyring str: Key file of the user.
  monitors! [str]: Addresses of monitors.
  pool str: Name of the pool.
  readOnly bool: Mount it read-only.
  secretRef SecretReference: The Secret that holds credentials.
  user str: Name of the user.
ScaleIOPersistentVolumeSource
  fsType str: File system to mount; the driver's choice if empty.
  gateway! str: Address of the gateway.
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
  volumeNamespace str: Namespace of the volume.
"""
