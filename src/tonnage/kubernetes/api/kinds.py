"""The table of kinds: their API names and Structs. A new kind is a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import (
    certificate,
    content,
    core,
    group_snapshot,
    pods,
    policy,
    rbac,
    snapshot,
    storage,
    workloads,
)
from tonnage.kubernetes.api.decode import decode
from tonnage.kubernetes.api.meta import KubeObject, PartialObject

T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True)
class Kind(Generic[T]):
    """One kind. plural: in URL paths; short: kubectl's abbreviations.

    newer: versions with the same fields that newer servers have, the newest first.
    """

    group: str
    kind: str
    plural: str
    struct: type[T]
    namespaced: bool = True
    short: tuple[str, ...] = ()
    version: str = "v1"
    newer: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """`v1` or `<group>/<version>`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """`<plural>`, or `<group>/<plural>`: unique among the kinds of one API server."""
        return f"{self.group}/{self.plural}" if self.group else self.plural

    @property
    def qualified(self) -> str:
        """`pods`, `storageclasses.storage.k8s.io`: how messages name the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def singular(self) -> str:
        """Lower-case singular."""
        return self.kind.lower()

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of the collection, of one object or of a subresource.

        Names may come from other objects. One that would lead to another path cannot exist: ApiNotFound (client-go
        rejects the same ones: rest.IsValidPathSegmentName).
        """
        for segment in (namespace, name):
            if "/" in segment or "%" in segment or segment in (".", ".."):
                raise ApiNotFoundError(f"{self.plural} {segment!r} not found: no object can have this name")
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [p for p in (self.plural, name, subresource) if p]
        return "/".join(parts)

    def head(self) -> dict[str, Any]:
        """apiVersion and kind of a new object."""
        return {"apiVersion": self.api_version, "kind": self.kind}

    def decode(self, data: bytes | msgspec.Raw) -> T:
        """Decode one object; null is absent. Raises: ValueError on a wrong type, RecursionError."""
        return decode(data, self.struct)


_STORAGE = "storage.k8s.io"
NAMESPACES = Kind("", "Namespace", "namespaces", core.Namespace, namespaced=False, short=("ns",))
NODES = Kind("", "Node", "nodes", core.Node, namespaced=False, short=("no",))
PODS = Kind("", "Pod", "pods", pods.Pod, short=("po",))
CLAIMS = Kind("", "PersistentVolumeClaim", "persistentvolumeclaims", core.PersistentVolumeClaim, short=("pvc",))
VOLUMES = Kind("", "PersistentVolume", "persistentvolumes", core.PersistentVolume, namespaced=False, short=("pv",))
EVENTS = Kind("", "Event", "events", core.Event, short=("ev",))
CONFIG_MAPS = Kind("", "ConfigMap", "configmaps", core.ConfigMap, short=("cm",))
SECRETS = Kind("", "Secret", "secrets", core.Secret)
SERVICE_ACCOUNTS = Kind("", "ServiceAccount", "serviceaccounts", core.ServiceAccount, short=("sa",))
RESOURCE_QUOTAS = Kind("", "ResourceQuota", "resourcequotas", core.ResourceQuota, short=("quota",))
LIMIT_RANGES = Kind("", "LimitRange", "limitranges", core.LimitRange, short=("limits",))
STORAGE_CLASSES = Kind(
    _STORAGE, "StorageClass", "storageclasses", storage.StorageClass, namespaced=False, short=("sc",)
)
CSI_DRIVERS = Kind(_STORAGE, "CSIDriver", "csidrivers", storage.CSIDriver, namespaced=False)
CSI_NODES = Kind(_STORAGE, "CSINode", "csinodes", storage.CSINode, namespaced=False)
CAPACITIES = Kind(_STORAGE, "CSIStorageCapacity", "csistoragecapacities", storage.CSIStorageCapacity)
ATTACHMENTS = Kind(_STORAGE, "VolumeAttachment", "volumeattachments", storage.VolumeAttachment, namespaced=False)
LEASES = Kind("coordination.k8s.io", "Lease", "leases", core.Lease)
_APPS = "apps"
DEPLOYMENTS = Kind(_APPS, "Deployment", "deployments", workloads.Deployment, short=("deploy",))
REPLICA_SETS = Kind(_APPS, "ReplicaSet", "replicasets", workloads.ReplicaSet, short=("rs",))
STATEFUL_SETS = Kind(_APPS, "StatefulSet", "statefulsets", workloads.StatefulSet, short=("sts",))
DAEMON_SETS = Kind(_APPS, "DaemonSet", "daemonsets", workloads.DaemonSet, short=("ds",))
CONTROLLER_REVISIONS = Kind(_APPS, "ControllerRevision", "controllerrevisions", workloads.ControllerRevision)
JOBS = Kind("batch", "Job", "jobs", workloads.Job)
CRON_JOBS = Kind("batch", "CronJob", "cronjobs", workloads.CronJob, short=("cj",))
PRIORITY_CLASSES = Kind(
    "scheduling.k8s.io", "PriorityClass", "priorityclasses", policy.PriorityClass, namespaced=False, short=("pc",)
)
DISRUPTION_BUDGETS = Kind(
    "policy", "PodDisruptionBudget", "poddisruptionbudgets", policy.PodDisruptionBudget, short=("pdb",)
)
SERVICES = Kind("", "Service", "services", PartialObject, short=("svc",))
ENDPOINTS = Kind("", "Endpoints", "endpoints", PartialObject, short=("ep",))
REPLICATION_CONTROLLERS = Kind("", "ReplicationController", "replicationcontrollers", PartialObject, short=("rc",))
POD_TEMPLATES = Kind("", "PodTemplate", "podtemplates", PartialObject)
ENDPOINT_SLICES = Kind("discovery.k8s.io", "EndpointSlice", "endpointslices", PartialObject)
_NETWORKING = "networking.k8s.io"
INGRESSES = Kind(_NETWORKING, "Ingress", "ingresses", PartialObject, short=("ing",))
INGRESS_CLASSES = Kind(_NETWORKING, "IngressClass", "ingressclasses", PartialObject, namespaced=False)
NETWORK_POLICIES = Kind(_NETWORKING, "NetworkPolicy", "networkpolicies", PartialObject, short=("netpol",))
AUTOSCALERS = Kind(
    "autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", PartialObject, short=("hpa",), version="v2"
)
RUNTIME_CLASSES = Kind("node.k8s.io", "RuntimeClass", "runtimeclasses", PartialObject, namespaced=False)
_CERTIFICATES = "certificates.k8s.io"
SIGNING_REQUESTS = Kind(
    _CERTIFICATES,
    "CertificateSigningRequest",
    "certificatesigningrequests",
    certificate.CertificateSigningRequest,
    namespaced=False,
    short=("csr",),
)
TRUST_BUNDLES = Kind(
    _CERTIFICATES,
    "ClusterTrustBundle",
    "clustertrustbundles",
    certificate.ClusterTrustBundle,
    namespaced=False,
    version="v1beta1",
    newer=("v1",),
)
POD_CERTIFICATE_REQUESTS = Kind(
    _CERTIFICATES,
    "PodCertificateRequest",
    "podcertificaterequests",
    certificate.PodCertificateRequest,
    version="v1beta1",
    newer=("v1",),
)
CERTIFICATE_REQUESTS = Kind(
    "cert-manager.io",
    "CertificateRequest",
    "certificaterequests",
    certificate.CertificateRequest,
    short=("cr", "crs"),
)
ATTRIBUTES_CLASSES = Kind(
    _STORAGE,
    "VolumeAttributesClass",
    "volumeattributesclasses",
    storage.VolumeAttributesClass,
    namespaced=False,
    short=("vac",),
)
CONTENTS = Kind("tonnage.dev", "Content", "contents", content.ContentObject)
_SNAPSHOT = "snapshot.storage.k8s.io"
SNAPSHOTS = Kind(_SNAPSHOT, "VolumeSnapshot", "volumesnapshots", snapshot.VolumeSnapshot, short=("vs",))
SNAPSHOT_CONTENTS = Kind(
    _SNAPSHOT,
    "VolumeSnapshotContent",
    "volumesnapshotcontents",
    snapshot.VolumeSnapshotContent,
    namespaced=False,
    short=("vsc", "vscs"),
)
SNAPSHOT_CLASSES = Kind(
    _SNAPSHOT,
    "VolumeSnapshotClass",
    "volumesnapshotclasses",
    snapshot.VolumeSnapshotClass,
    namespaced=False,
    short=("vsclass", "vsclasses"),
)
GROUP_SNAPSHOTS = Kind(
    group_snapshot.GROUP,
    "VolumeGroupSnapshot",
    "volumegroupsnapshots",
    group_snapshot.VolumeGroupSnapshot,
    short=("vgs",),
)
GROUP_CONTENTS = Kind(
    group_snapshot.GROUP,
    "VolumeGroupSnapshotContent",
    "volumegroupsnapshotcontents",
    group_snapshot.VolumeGroupSnapshotContent,
    namespaced=False,
    short=("vgsc", "vgscs"),
)
GROUP_CLASSES = Kind(
    group_snapshot.GROUP,
    "VolumeGroupSnapshotClass",
    "volumegroupsnapshotclasses",
    group_snapshot.VolumeGroupSnapshotClass,
    namespaced=False,
    short=("vgsclass", "vgsclasses"),
)
DEFINITIONS = Kind(
    "apiextensions.k8s.io",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    PartialObject,
    namespaced=False,
    short=("crd", "crds"),
)
_RBAC = "rbac.authorization.k8s.io"
ROLES = Kind(_RBAC, "Role", "roles", PartialObject)
ROLE_BINDINGS = Kind(_RBAC, "RoleBinding", "rolebindings", PartialObject)
CLUSTER_ROLES = Kind(_RBAC, "ClusterRole", "clusterroles", rbac.ClusterRole, namespaced=False)
CLUSTER_ROLE_BINDINGS = Kind(_RBAC, "ClusterRoleBinding", "clusterrolebindings", PartialObject, namespaced=False)
ALL: tuple[Kind[Any], ...] = tuple(kind for kind in list(vars().values()) if isinstance(kind, Kind))
"""All kinds above, in that order."""
# Of a cluster, not of the box: only their existence is checked.
_ADMISSION = "admissionregistration.k8s.io"
MUTATING_POLICIES = Kind(
    _ADMISSION, "MutatingAdmissionPolicy", "mutatingadmissionpolicies", PartialObject, namespaced=False
)
MUTATING_BINDINGS = Kind(
    _ADMISSION, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", PartialObject, namespaced=False
)
BY_KIND: dict[tuple[str, str], Kind[Any]] = {(k.api_version, k.kind): k for k in ALL}
