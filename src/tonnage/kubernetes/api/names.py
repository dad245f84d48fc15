"""Every label, annotation, finalizer and name: Kubernetes' and ours (docs/reference/annotations.md)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from tonnage.base.errors import InvalidError

# Kubernetes: names of claims and volumes
SELECTED_NODE = "volume.kubernetes.io/selected-node"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
BETA_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
DELETION_SECRET_NAME = "volume.kubernetes.io/provisioner-deletion-secret-name"
DELETION_SECRET_NAMESPACE = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
MODIFY_SECRET_NAME = "volume.kubernetes.io/controller-modify-secret-name"
MODIFY_SECRET_NAMESPACE = "volume.kubernetes.io/controller-modify-secret-namespace"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
BETA_DEFAULT_CLASS = "storageclass.beta.kubernetes.io/is-default-class"
CSI_PROVISIONER_IDENTITY = "storage.kubernetes.io/csiProvisionerIdentity"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
IMMEDIATE = "Immediate"
READ_WRITE_ONCE = "ReadWriteOnce"
READ_ONLY_MANY = "ReadOnlyMany"
READ_WRITE_MANY = "ReadWriteMany"
READ_WRITE_ONCE_POD = "ReadWriteOncePod"
ACCESS_MODES = (READ_WRITE_ONCE, READ_ONLY_MANY, READ_WRITE_MANY, READ_WRITE_ONCE_POD)

# Kubernetes: names of finalizers
PVC_PROTECTION = "kubernetes.io/pvc-protection"
PV_PROTECTION = "kubernetes.io/pv-protection"
VAC_PROTECTION = "kubernetes.io/vac-protection"
PROVISIONER_FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
NAMESPACE_FINALIZER = "kubernetes"

# Kubernetes: capacity objects, nodes, CSI
CAPACITY_DRIVER = "csi.storage.k8s.io/drivername"
CAPACITY_MANAGED_BY = "csi.storage.k8s.io/managed-by"
NODE_ID_ANNOTATION = "csi.volume.kubernetes.io/nodeid"
HOSTNAME_LABEL = "kubernetes.io/hostname"
UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
STARTUP_TAINT = "tonnage.dev/agent-not-ready"
"""On nodes whose agent has yet to register: a cluster may give it to new nodes, the agent takes it away."""
POOL_UNAVAILABLE = "TonnagePoolUnavailable"
"""Type of a Node's condition: True while a pool of the node cannot write or is not open."""
TEMPLATE_NODE = "cluster-autoscaler.kubernetes.io/template-node"
"""On nodes that the cluster autoscaler imagines: what a new node of a group would be. No real node has it."""
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
CSI_PREFIX = "csi.storage.k8s.io/"
CSI_EPHEMERAL = "csi.storage.k8s.io/ephemeral"
CSI_POD_NAME = "csi.storage.k8s.io/pod.name"
CSI_POD_NAMESPACE = "csi.storage.k8s.io/pod.namespace"
CSI_POD_UID = "csi.storage.k8s.io/pod.uid"
CSI_SERVICE_ACCOUNT = "csi.storage.k8s.io/serviceAccount.name"
CSI_TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
TOKEN_VOLUME = "kube-api-access-"
"""Prefix of the volume with which pods reach the API server."""
ROOT_CA = "kube-root-ca.crt"
"""ConfigMap with the certificate of the API server, in each namespace."""
CSI_PVC_NAME = "csi.storage.k8s.io/pvc/name"
CSI_PVC_NAMESPACE = "csi.storage.k8s.io/pvc/namespace"
CSI_PV_NAME = "csi.storage.k8s.io/pv/name"
CSI_FSTYPE = "csi.storage.k8s.io/fstype"

# Kubernetes: names of workloads
POD_TEMPLATE_HASH = "pod-template-hash"
CONTROLLER_REVISION_HASH = "controller-revision-hash"
REVISION_HASH = "controller.kubernetes.io/hash"
POD_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED_REPLICAS = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"
JOB_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
JOB_TRACKING = "batch.kubernetes.io/job-tracking"
"""Finalizer of a Job's pod that is yet to be counted."""
SCHEDULED_AT = "batch.kubernetes.io/cronjob-scheduled-timestamp"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

# tonnage
DRIVER = "csi.tonnage.dev"
PMEM_CSI = "pmem-csi.intel.com"
FLEX_DRIVERS = ("tonnage.dev/local", "monostream.com/localflex", "volumes.k8s.elastic.co/elastic-local")
"""Names of our FlexVolume driver: its own, and those of drivers whose manifests it serves."""
FLEX_SIZES = ("size", "sizeBytes")
"""Options of a FlexVolume that name its size."""
FLEX_HANDLE = "volumeHandle"
"""Option of a PersistentVolume's FlexVolume: the handle of the volume that was made for its claim."""
FLEX_COUNTED = "flex.tonnage.dev"
"""Provisioner of FlexVolumes whose capacity kube-scheduler reads: a CSIDriver has that name, so it has no slash."""
FLEX_PROVISIONERS = {
    FLEX_COUNTED: "tonnage.dev/local",
    "tonnage.dev/flex-provisioner": "tonnage.dev/local",
    "monostream.com/localflex-provisioner": "monostream.com/localflex",
    "volumes.k8s.elastic.co/elastic-local": "volumes.k8s.elastic.co/elastic-local",
}
"""Provisioner of a StorageClass -> FlexVolume driver of the PersistentVolumes that DRIVER's agents make for it."""
COMPAT_DRIVERS = {"pmem-csi": PMEM_CSI}
"""Word of --compat -> name of the driver that is served in addition to our own."""
IMAGE_POPULATOR, CONTAINER_IMAGE = "image.csi.k8s.io", "container-image.csi.k8s.io"
IMAGE_DRIVERS = frozenset({"image.tonnage.dev", IMAGE_POPULATOR, CONTAINER_IMAGE})
"""Names of the inline driver `image`, whose writable layers are volumes of DRIVER's pools."""
TOPOLOGY_NODE = "topology.tonnage.dev/node"
NODE_LABEL = "tonnage.dev/node"
# On a claim that no pod owns: names of the other claims of its claim group, joined by commas.
CLAIM_GROUP = "tonnage.dev/claim-group"
# On a claim: how often a node has rescheduled it, which removes its selected-node.
RESCHEDULES = "tonnage.dev/reschedules"
# On an ephemeral claim, by our scheduler: its own uid where its pod has no other claim. What a template brought along,
# or a copy, has another uid and says nothing.
SINGLE_CLAIM = "tonnage.dev/single-claim"
POOL_LABEL = "tonnage.dev/pool"
# On a capacity object: the highest resourceVersion of a claim that its numbers count (the scheduler then drops its own
# count of the claims it sent up to there).
OBSERVED_CLAIM_VERSION = "tonnage.dev/observed-claim-version"
# On a capacity object: why its driver can never serve that class there (the capacity is then 0).
REASON = "tonnage.dev/reason"
# The reason where volumes are made before there is a claim: no mistake, the class has what its disks are.
AHEAD = "its volumes are whole disks, which are PersistentVolumes already; a claim waits until one that is free fits"
# On a capacity object: bytes that inline volumes can have of its pool, where some are reserved for them. Without it
# they can have the object's capacity.
INLINE_CAPACITY = "tonnage.dev/inline-capacity"
# On a Node: tier.tonnage.dev/<class> = how much of the class it has at least, a power of two (capacity/tier.py).
TIER_PREFIX = "tier.tonnage.dev/"
# On a capacity object for all nodes of a tier: which; TIER_NOTICE on the one that says that a class is in tiers.
TIER = "tonnage.dev/tier"
TIER_NOTICE = "0"
TIERS_MANAGED_BY = "tiers.tonnage.dev"
# On the notice of a class: bytes that some claim asks and no tier admits, and the nodes (a,b,c) that publish exactly
# for it, if they have them.
EXACT_CAPACITY_MIN = "tonnage.dev/exact-capacity-min"
EXACT_CAPACITY_NODES = "tonnage.dev/exact-capacity-nodes"
# In a driver's manifest (GetPluginInfo): the pool that classes get which name none; says that pools are named.
MANIFEST_DEFAULT_POOL = "tonnage.dev/default-pool"
# On a capacity object of that pool, where its node has several: "true".
DEFAULT_POOL = "tonnage.dev/default-pool"
# Reason of the Event on a pod whose inline volume does not fit on its node, by the agent there.
UNFIT = "InlineVolumeUnfit"
# Reason of the Event on a claim that left a node where its populator's claim does not fit, by the agent there.
POPULATOR_RESCHEDULED = "PopulatorRescheduled"
# On a pod or its namespace, "true": a pod whose inline volume does not fit may be evicted (controller/evict_unfit.py).
EVICT_UNFIT = "tonnage.dev/evict-unfit"
# In a driver's manifest: its pools and their kinds, "scratch=image,disks=static", in their order.
MANIFEST_POOLS = "tonnage.dev/pools"
# In a driver's manifest: those of its pools that reserve capacity for inline volumes, "scratch,fast".
MANIFEST_INLINE = "tonnage.dev/inline-pools"
# In a volume's context, and on a PersistentVolume that was published ahead of its claim: which disk it is.
DISK = "tonnage.dev/disk"
PARAMETER_PREFIX = "tonnage.dev/"
ROLLBACK = "tonnage.dev/rollback"
ROLLED_BACK = "tonnage.dev/rolled-back"
"""Annotation of a claim whose unused volume the agent deletes, and then the claim, so that its pod can go elsewhere."""
HISTORY = "tonnage.dev/history"
"""Annotation of a Node: the mark of its agent, by which the agent notices that the API server has an older state."""
DELETIONS_STOPPED = "tonnage.dev/deletions-stopped"
"""Annotation of a Node: why its agent deletes nothing. A person removes it, and the agent goes on."""
# Keys that tonnage's agent adds to CreateVolume's parameters; the driver keeps them in the volume's record.
PARAM_CLUSTER = "tonnage.dev/cluster"
FORMER_CLUSTERS = "tonnage.dev/former-clusters"
"""Annotation of the namespace kube-system: uids, joined by commas, of clusters whose database was lost. Their volumes
are orphans."""
PARAM_EPHEMERAL = "tonnage.dev/ephemeral"
PARAM_RECLAIM = "tonnage.dev/reclaim"
PARAM_CLASS = "tonnage.dev/class"
# What the volume is to be filled with, as text; the driver records its digest.
PARAM_CONTENT = "tonnage.dev/content"
# "true": a volume of that name that is there already will do only if it was never published. Not recorded.
PARAM_UNUSED = "tonnage.dev/unused"
# "true" in GetCapacity's parameters: capacity for inline volumes is asked for.
PARAM_INLINE = "tonnage.dev/inline"
SCRATCH_CLASS = "tonnage-scratch"
IMMEDIATE_CLASS = "tonnage-immediate"
SNAPSHOT_CLASS = "tonnage"
# Label of the VolumeSnapshotClass that velero takes for volumes of its driver.
VELERO_CLASS = "velero.io/csi-volumesnapshot-class"
SYSTEM_NAMESPACE = "tonnage-system"
AGENT_ACCOUNT = "tonnage-node"
# The MutatingAdmissionPolicy, and its binding, that label claims in the write which sends them to a node.
SCOPE_POLICY = "tonnage-scope"
CONTROLLER_LEASE = "tonnage-controller"
# Of pods that `tonnage scheduler` places (spec.schedulerName), and of its Lease.
SCHEDULER = "tonnage-scheduler"
# On the capacity object of a group's nodes to come: since when the group has none.
WITHOUT_NODES_SINCE = "tonnage.dev/without-nodes-since"
# On a class: what becomes of its volumes or snapshots when their node is gone (controller/node_loss.py).
ON_NODE_GONE = "tonnage.dev/on-node-gone"
# On a class, and on a claim to override it: when its volumes grow by themselves, by how much, and how far.
AUTOGROW_AT = "tonnage.dev/autogrow-at"
AUTOGROW_BY = "tonnage.dev/autogrow-by"
AUTOGROW_MAX = "tonnage.dev/autogrow-max"
AUTOGROW_KEYS = (AUTOGROW_AT, AUTOGROW_BY, AUTOGROW_MAX)
# On a namespace or pod, "limited": emptyDirs with a sizeLimit become ephemeral volumes. A pod's own counts first.
EMPTY_DIR = "tonnage.dev/empty-dir"
LIMITED = "limited"
# On a class: how long a deleted volume can be restored (24h), unless its capacity is needed. Recorded in seconds.
UNDELETE = "tonnage.dev/undelete"
# On a class, "true": the data of an ephemeral volume is deleted as soon as its pod has finished (node/reclaim).
RECLAIM_FINISHED = "tonnage.dev/reclaim-finished"
# Type of the condition of such a claim, and the reason in the status of its PersistentVolume.
RECLAIMED = "Reclaimed"
# On a PersistentVolume or VolumeSnapshotContent of a node that is gone: since when.
NODE_GONE_SINCE = "tonnage.dev/node-gone-since"
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"

FORMER_KEYS: Mapping[str, str] = {
    CLAIM_GROUP: "tonnage.dev/with",
    RESCHEDULES: "tonnage.dev/withdrawn",
    SINGLE_CLAIM: "tonnage.dev/alone",
    OBSERVED_CLAIM_VERSION: "tonnage.dev/counted",
    EXACT_CAPACITY_MIN: "tonnage.dev/exact-from",
    EXACT_CAPACITY_NODES: "tonnage.dev/exact-on",
    INLINE_CAPACITY: "tonnage.dev/inline-room",
}
"""Key of an annotation -> its former key. Objects outlive names: both are read, the present one is written."""

MAX_LABEL_VALUE = 63
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def annotation(annotations: Mapping[str, str], key: str) -> str:
    """Return an annotation under its present key, else under its former one, else ""."""
    return annotations.get(key) or annotations.get(FORMER_KEYS[key], "")


def former(annotations: Mapping[str, str], key: str) -> dict[str, None]:
    """Return what removes the former key in a merge patch: nothing where the object has none."""
    return {FORMER_KEYS[key]: None} if FORMER_KEYS[key] in annotations else {}


def is_dns_label(text: str) -> bool:
    """RFC 1123 label: lower case letters, digits and '-', at most 63."""
    return _LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """RFC 1123 subdomain: labels with dots between, at most 253 characters."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def check_driver_name(name: str) -> str:
    """Return the name of a CSI driver. Raises: InvalidError unless CSI allows it."""
    if not is_dns_subdomain(name.lower()) or len(name) > 63:
        raise InvalidError(f"driver name {name[:80]!r}: want a DNS name of at most 63 characters")
    return name


def is_label_key(text: str) -> bool:
    """A label's key: a name, which may have a domain and a slash before it."""
    prefix, slash, name = text.rpartition("/")
    return is_label_value(name) and (not slash or is_dns_subdomain(prefix))


def is_label_value(text: str) -> bool:
    """A label's value that is not empty."""
    return _LABEL_PART.fullmatch(text) is not None


def label_value(name: str) -> str:
    """A node's name as a label value: itself up to 63 characters, else a hash that starts alike."""
    if len(name) <= MAX_LABEL_VALUE:
        return name
    return f"{name[:46].rstrip('.-_')}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def tier_label(storage_class: str) -> str:
    """Key of the label that says a node's tier of a class."""
    return TIER_PREFIX + label_value(storage_class)


def is_fault(reason: str) -> bool:
    """Whether a capacity object's reason is a fault of its class: that of pre-provisioned volumes is none."""
    return bool(reason) and reason != AHEAD


def volume_name(claim_uid: str) -> str:
    """Name of the PV and of the volume that a claim gets."""
    return f"pvc-{claim_uid}"


def csi_driver(provisioner: str) -> str:
    """The CSI driver that makes the volumes of a provisioner: ours for FlexVolumes, else the one of that name."""
    return DRIVER if provisioner in FLEX_PROVISIONERS else provisioner


def flex_volume(volume_uid: str) -> str:
    """Name of the volume that a PersistentVolume with a FlexVolume of ours gets, by the uid of that object."""
    return f"flex-{volume_uid}"


def flex_uid(volume_id: str) -> str:
    """The uid of the PersistentVolume of a FlexVolume, by the volume's id; "" for other volumes."""
    _, _, name = volume_id.partition("/")
    return name.removeprefix(flex_volume("")) if name.startswith(flex_volume("")) else ""


def inline_handle(pod_uid: str, volume: str) -> str:
    """Handle of a CSI inline volume (KEP-596)."""
    return "csi-" + hashlib.sha256(f"{pod_uid}{volume}".encode()).hexdigest()


def attachment_name(handle: str, driver: str, node: str) -> str:
    """Name of the VolumeAttachment of a volume on a node."""
    return f"csi-{hashlib.sha256(f'{handle}{driver}{node}'.encode()).hexdigest()}"


def attacher_finalizer(driver: str) -> str:
    """Finalizer of a driver's VolumeAttachments and of attached PVs, as external-attacher's."""
    name = re.sub("[^a-zA-Z0-9-]", "-", driver)
    return f"external-attacher/{name}{'X' if name.endswith('-') else ''}"


def attached_volume(driver: str, handle: str) -> str:
    """Name of a volume in a Node's status."""
    return f"kubernetes.io/csi/{driver}^{handle}"


def pool_driver(driver: str) -> str:
    """Return the driver in whose pools an inline volume of a driver is."""
    return DRIVER if driver in IMAGE_DRIVERS else driver
