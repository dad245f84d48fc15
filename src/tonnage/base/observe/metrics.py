"""Every metric that tonnage exports, in one list. Label sets are small and known in advance."""

from __future__ import annotations

from functools import partial

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, generate_latest

from tonnage.base.observe import sums

REGISTRY = CollectorRegistry()
Counter = partial(prometheus.Counter, registry=REGISTRY)
Gauge = partial(prometheus.Gauge, registry=REGISTRY)
Histogram = partial(prometheus.Histogram, registry=REGISTRY)
Sums = partial(sums.Sums, registry=REGISTRY)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # client_golang's default
_CALL_SECONDS = (0.002, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
"""csi-lib-utils' bounds, and finer ones below them: a call here takes milliseconds."""

API_REQUESTS = Counter(
    "tonnage_apiserver_requests", "Requests answered, by verb, resource and code.", ["verb", "resource", "code"]
)
API_WATCHERS = Gauge("tonnage_apiserver_watchers", "Open watches.")
API_WATCH_EVENTS = Counter("tonnage_apiserver_watch_events", "Events sent to watchers.")
API_WATCHERS_DROPPED = Counter("tonnage_apiserver_watchers_dropped", "Watchers dropped for not keeping up.")
API_OBJECTS = Gauge("tonnage_apiserver_objects", "Objects stored, by resource.", ["resource"])
RECONCILES = Counter("tonnage_reconciles", "Reconciliations, by controller and result.", ["controller", "result"])
BUSY = Counter(
    "tonnage_reconciles_busy",
    "Reconciliations that delayed all others of the process for longer than a second, by controller. The log "
    "names their keys.",
    ["controller"],
)
REQUESTS = Counter(
    "rest_client_requests",
    "Requests to the API server, by method and HTTP status (<error>: no answer), named as in Kubernetes' clients.",
    ["code", "method"],
)
REJECTED = Gauge("tonnage_credentials_refused", "1 while the API server does not accept our credentials, else 0.")
QUEUES = Sums(
    "tonnage_queue_keys",
    "Keys of controllers: waiting for a worker, being worked on, delayed (most of them after a failure).",
    ("controller", "state"),
)
RESERVATIONS = Sums(
    "tonnage_claims_reserved",
    "Claims with this node as selected-node, by phase: observed, reserved, rejected, guarded, creating, created (until "
    "the next GetCapacity).",
    ("node", "phase"),
)
WAITING = Sums(
    "tonnage_claims_waiting",
    "Claims that have waited on a node for more than a minute, by reason: siblings, capacity, rescheduling, source, "
    "infeasible, driver (CreateVolume), other.",
    ("node", "reason"),
)
RECEIVED = Counter(
    "tonnage_objects_received",
    "Objects that an agent received by list and watch, by resource and owner: own, or other for claims and "
    "volumes of other nodes (none where claims carry the label of their node).",
    ["resource", "owner"],
)
UNREADABLE = Gauge(
    "tonnage_unreadable_objects",
    "Objects of the API server that cannot be read, by resource: a field has the wrong type. The log names each.",
    ["resource"],
)
LEADS = Gauge("tonnage_controller_leads", "1 for the controller that does the work, else 0.")
SCHEDULER_LEADS = Gauge("tonnage_scheduler_leads", "1 for the scheduler that places pods, else 0.")
GONE = Gauge("tonnage_volumes_of_gone_nodes", "Bound PersistentVolumes whose node is gone or out of service.")
ATTACHMENTS = Sums(
    "tonnage_volume_attachments",
    "VolumeAttachments of drivers whose volumes this controller attaches, by state: attached, attaching, detaching, "
    "failed (the last attempt; the object says why).",
    ("driver", "state"),
)
CSI_OPERATIONS = Histogram(
    "csi_sidecar_operations_seconds",
    "CSI calls made, by driver, method and gRPC code.",
    ["driver_name", "method_name", "grpc_status_code"],
    buckets=_CALL_SECONDS,
)
CSI_CALLS = Histogram(
    "csi_plugin_operations_seconds",
    "CSI calls answered, by driver, method and gRPC code.",
    ["driver_name", "method_name", "grpc_status_code"],
    buckets=_CALL_SECONDS,
)
POOL_SIZE = Gauge("tonnage_pool_size_bytes", "What a pool may hold.", ["pool", "kind"])
POOL_FREE = Gauge("tonnage_pool_free_bytes", "What is left for new volumes.", ["pool", "kind"])
POOL_LARGEST = Gauge("tonnage_pool_largest_volume_bytes", "The largest volume that fits now.", ["pool", "kind"])
POOL_VOLUMES = Gauge("tonnage_pool_volumes", "Volumes in a pool.", ["pool", "kind"])
POOL_RESERVED = Gauge("tonnage_pool_reserved_bytes", "Bytes reserved for volumes and snapshots.", ["pool", "kind"])
POOL_SNAPSHOTS = Gauge("tonnage_pool_snapshots", "Snapshots in a pool.", ["pool", "kind"])
POOL_ABNORMAL = Gauge(
    "tonnage_pool_abnormal_volumes", "Volumes with something wrong (VolumeCondition).", ["pool", "kind"]
)
POOL_ERASING = Gauge(
    "tonnage_pool_erasing_bytes", "Bytes of deleted volumes that are not erased yet.", ["pool", "kind"]
)
POOL_ERASING_VOLUMES = Gauge(
    "tonnage_pool_erasing_volumes", "Deleted volumes whose content is being erased.", ["pool", "kind"]
)
POOL_ERASED = Counter(
    "tonnage_pool_erased_bytes", "Bytes of deleted volumes erased, of shred each pass.", ["pool", "kind"]
)
POOL_TRASH = Gauge("tonnage_pool_trash_bytes", "Bytes of deleted volumes that can be restored.", ["pool", "kind"])
TRASH_EVICTED = Counter(
    "tonnage_pool_trash_evicted", "Deleted volumes that made way for a volume before their time.", ["pool", "kind"]
)
POOL_UP = Gauge("tonnage_pool_up", "1 when a pool can be read and written, else 0.", ["pool", "kind"])
# Names, labels and meaning of sig-storage-lib-external-provisioner (controller/metrics).
FILLED = Counter(
    "tonnage_volumes_filled",
    "Fillings of new volumes that ended, by form of the content (image, url, s3, folder) and outcome (filled, failed).",
    ["form", "outcome"],
)
FILLED_BYTES = Counter("tonnage_content_bytes", "Bytes that were fetched into filled volumes.", ["form"])
IMAGE_PULLS = Counter(
    "tonnage_image_pulls",
    "Pulls of images that ended, by source (registry, containerd) and code: pulled, or the kind of the error "
    "(unavailable, notfound, precondition ...).",
    ["source", "code"],
)
IMAGE_PULL_BYTES = Counter("tonnage_image_pull_bytes", "Bytes of layers that were downloaded by pulls.")
IMAGE_PULL_SECONDS = Histogram(
    "tonnage_image_pull_seconds",
    "How long pulls took, with unpacking; failed ones are left out.",
    buckets=_CALL_SECONDS,
)
IMAGE_BYTES = Gauge(
    "tonnage_image_store_bytes",
    "Unpacked bytes of the layers of the image store, by state: used by a volume or container, or unreferenced.",
    ["state"],
)
IMAGE_LAYERS = Gauge("tonnage_image_store_layers", "Layers in the image store.")
PROVISIONED = Counter(
    "controller_persistentvolumeclaim_provision",
    "Volumes made, by storage class and source of the claim.",
    ["class", "source"],
)
PROVISION_FAILED = Counter(
    "controller_persistentvolumeclaim_provision_failed",
    "Tries to make a volume that failed, by storage class and source of the claim.",
    ["class", "source"],
)
PROVISION_SECONDS = Histogram(
    "controller_persistentvolumeclaim_provision_duration_seconds",
    "How long it took to make a volume; tries that failed are left out.",
    ["class", "source"],
    buckets=_SECONDS,
)
DELETED = Counter("controller_persistentvolume_delete", "Volumes deleted, by storage class.", ["class"])
DELETE_FAILED = Counter(
    "controller_persistentvolume_delete_failed", "Tries to delete a volume that failed, by storage class.", ["class"]
)
DELETE_SECONDS = Histogram(
    "controller_persistentvolume_delete_duration_seconds",
    "How long it took to delete a volume; tries that failed are left out.",
    ["class"],
    buckets=_SECONDS,
)
RECLAIMED = Counter(
    "tonnage_volumes_reclaimed", "Volumes whose data was deleted because their pod had finished, by class.", ["class"]
)
RECLAIMED_BYTES = Counter("tonnage_reclaimed_bytes", "Bytes of such volumes, by class.", ["class"])
RESCHEDULED = Counter("tonnage_claims_rescheduled", "Rescheduled claims, by node.", ["node"])
ORPHANS = Gauge(
    "tonnage_orphan_volumes",
    "Orphans: volumes without a PersistentVolume, until a person adopts or purges them.",
    ["node", "pool"],
)
WENT_BACK = Gauge(
    "tonnage_api_server_went_back",
    "1 while volumes are not deleted because the API server may be in an older state, until a person says so.",
    ["node"],
)
EPHEMERAL_CREATED = Counter(
    "ephemeral_volume_controller_create", "Claims made for ephemeral volumes, failures included."
)
EPHEMERAL_FAILED = Counter(
    "ephemeral_volume_controller_create_failures", "Claims for ephemeral volumes that could not be made."
)
INLINE_VOLUMES = Gauge(
    "tonnage_inline_volumes", "Volumes of inline drivers, by driver and state: asked, shown.", ["driver", "state"]
)
INLINE_STALE = Gauge(
    "tonnage_inline_stale", "Volumes of inline drivers whose last fill failed; pods see the old content.", ["driver"]
)
INLINE_BYTES = Gauge("tonnage_inline_bytes", "Bytes of the files in memory of inline drivers, by driver.", ["driver"])
INLINE_VOLUME_SIZE = Gauge(
    "tonnage_inline_volume_capacity_bytes",
    "Bytes that a volume of an inline driver can have: its files in memory, or its file system.",
    ["namespace", "pod", "volume"],
)
INLINE_VOLUME_USED = Gauge(
    "tonnage_inline_volume_used_bytes",
    "Bytes that a volume of an inline driver has.",
    ["namespace", "pod", "volume"],
)
INLINE_FILLS = Counter("tonnage_inline_fills", "Fills of inline volumes, by driver and result.", ["driver", "code"])
INLINE_FILL_SECONDS = Histogram(
    "tonnage_inline_fill_seconds", "Seconds of fills of inline volumes, by driver.", ["driver"], buckets=_SECONDS
)
CERTIFICATE_EXPIRY = Gauge(
    "tonnage_cert_seconds_to_expiry",
    "Seconds until the first certificate of inline volumes ends, by issuer.",
    ["issuer"],
)
CERTIFICATES_ISSUED = Counter(
    "tonnage_cert_issued",
    "Answers to requests for certificates of inline volumes, by issuer and code: ok, denied, unavailable.",
    ["issuer", "code"],
)
CERTIFICATE_RENEWALS = Counter("tonnage_cert_renewals", "Certificates of inline volumes that replaced an older one.")
SCHEDULED = Counter("tonnage_scheduler_attempts", "Scheduling attempts by result.", ["result"])


def render() -> bytes:
    """All metrics in the Prometheus text format. Blocks for milliseconds: call it in a thread."""
    return generate_latest(REGISTRY)
