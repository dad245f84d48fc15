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


def _typed(group: str, struct: type[T], **more: Any) -> Kind[T]:
    """The kind that a Struct has the name of."""
    return Kind(group, struct.__name__, plural_of(struct.__name__), struct, **more)


def _untyped(group: str, kind: str, **more: Any) -> Kind[PartialObject]:
    """A kind of which only the metadata are read."""
    return Kind(group, kind, plural_of(kind), PartialObject, **more)


def plural_of(kind: str) -> str:
    """The plural of a kind, as in URL paths, of all but few."""
    name = kind.lower()
    if name.endswith("y"):
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith("s") else f"{name}s"


_STORAGE = "storage.k8s.io"
NAMESPACES = _typed("", core.Namespace, namespaced=False, short=("ns",))
NODES = _typed("", core.Node, namespaced=False, short=("no",))
PODS = _typed("", pods.Pod, short=("po",))
CLAIMS = _typed("", core.PersistentVolumeClaim, short=("pvc",))
VOLUMES = _typed("", core.PersistentVolume, namespaced=False, short=("pv",))
EVENTS = _typed("", core.Event, short=("ev",))
CONFIG_MAPS = _typed("", core.ConfigMap, short=("cm",))
SECRETS = _typed("", core.Secret)
SERVICE_ACCOUNTS = _typed("", core.ServiceAccount, short=("sa",))
RESOURCE_QUOTAS = _typed("", core.ResourceQuota, short=("quota",))
LIMIT_RANGES = _typed("", core.LimitRange, short=("limits",))
STORAGE_CLASSES = _typed(_STORAGE, storage.StorageClass, namespaced=False, short=("sc",))
CSI_DRIVERS = _typed(_STORAGE, storage.CSIDriver, namespaced=False)
CSI_NODES = _typed(_STORAGE, storage.CSINode, namespaced=False)
CAPACITIES = _typed(_STORAGE, storage.CSIStorageCapacity)
ATTACHMENTS = _typed(_STORAGE, storage.VolumeAttachment, namespaced=False)
LEASES = _typed("coordination.k8s.io", core.Lease)
_APPS = "apps"
DEPLOYMENTS = _typed(_APPS, workloads.Deployment, short=("deploy",))
REPLICA_SETS = _typed(_APPS, workloads.ReplicaSet, short=("rs",))
STATEFUL_SETS = _typed(_APPS, workloads.StatefulSet, short=("sts",))
DAEMON_SETS = _typed(_APPS, workloads.DaemonSet, short=("ds",))
CONTROLLER_REVISIONS = _typed(_APPS, workloads.ControllerRevision)
JOBS = _typed("batch", workloads.Job)
CRON_JOBS = _typed("batch", workloads.CronJob, short=("cj",))
PRIORITY_CLASSES = _typed("scheduling.k8s.io", policy.PriorityClass, namespaced=False, short=("pc",))
DISRUPTION_BUDGETS = _typed("policy", policy.PodDisruptionBudget, short=("pdb",))
SERVICES = _untyped("", "Service", short=("svc",))
ENDPOINTS = Kind("", "Endpoints", "endpoints", PartialObject, short=("ep",))
REPLICATION_CONTROLLERS = _untyped("", "ReplicationController", short=("rc",))
POD_TEMPLATES = _untyped("", "PodTemplate")
ENDPOINT_SLICES = _untyped("discovery.k8s.io", "EndpointSlice")
_NETWORKING = "networking.k8s.io"
INGRESSES = _untyped(_NETWORKING, "Ingress", short=("ing",))
INGRESS_CLASSES = _untyped(_NETWORKING, "IngressClass", namespaced=False)
NETWORK_POLICIES = _untyped(_NETWORKING, "NetworkPolicy", short=("netpol",))
AUTOSCALERS = _untyped("autoscaling", "HorizontalPodAutoscaler", short=("hpa",), version="v2")
RUNTIME_CLASSES = _untyped("node.k8s.io", "RuntimeClass", namespaced=False)
_CERTIFICATES = "certificates.k8s.io"
SIGNING_REQUESTS = _typed(_CERTIFICATES, certificate.CertificateSigningRequest, namespaced=False, short=("csr",))
TRUST_BUNDLES = _typed(
    _CERTIFICATES, certificate.ClusterTrustBundle, namespaced=False, version="v1beta1", newer=("v1",)
)
POD_CERTIFICATE_REQUESTS = _typed(_CERTIFICATES, certificate.PodCertificateRequest, version="v1beta1", newer=("v1",))
CERTIFICATE_REQUESTS = _typed("cert-manager.io", certificate.CertificateRequest, short=("cr", "crs"))
ATTRIBUTES_CLASSES = _typed(_STORAGE, storage.VolumeAttributesClass, namespaced=False, short=("vac",))
CONTENTS = Kind("tonnage.dev", "Content", "contents", content.ContentObject)
_SNAPSHOT = "snapshot.storage.k8s.io"
SNAPSHOTS = _typed(_SNAPSHOT, snapshot.VolumeSnapshot, short=("vs",))
SNAPSHOT_CONTENTS = _typed(_SNAPSHOT, snapshot.VolumeSnapshotContent, namespaced=False, short=("vsc", "vscs"))
SNAPSHOT_CLASSES = _typed(_SNAPSHOT, snapshot.VolumeSnapshotClass, namespaced=False, short=("vsclass", "vsclasses"))
GROUP_SNAPSHOTS = _typed(group_snapshot.GROUP, group_snapshot.VolumeGroupSnapshot, short=("vgs",))
GROUP_CONTENTS = _typed(
    group_snapshot.GROUP, group_snapshot.VolumeGroupSnapshotContent, namespaced=False, short=("vgsc", "vgscs")
)
GROUP_CLASSES = _typed(
    group_snapshot.GROUP, group_snapshot.VolumeGroupSnapshotClass, namespaced=False, short=("vgsclass", "vgsclasses")
)
DEFINITIONS = _untyped("apiextensions.k8s.io", "CustomResourceDefinition", namespaced=False, short=("crd", "crds"))
_RBAC = "rbac.authorization.k8s.io"
ROLES = _untyped(_RBAC, "Role")
ROLE_BINDINGS = _untyped(_RBAC, "RoleBinding")
CLUSTER_ROLES = _typed(_RBAC, rbac.ClusterRole, namespaced=False)
CLUSTER_ROLE_BINDINGS = _untyped(_RBAC, "ClusterRoleBinding", namespaced=False)
ALL: tuple[Kind[Any], ...] = tuple(kind for kind in list(vars().values()) if isinstance(kind, Kind))
"""All kinds above, in that order."""
# Of a cluster, not of the box: only their existence is checked.
_ADMISSION = "admissionregistration.k8s.io"
MUTATING_POLICIES = _untyped(_ADMISSION, "MutatingAdmissionPolicy", namespaced=False)
MUTATING_BINDINGS = _untyped(_ADMISSION, "MutatingAdmissionPolicyBinding", namespaced=False)
BY_KIND: dict[tuple[str, str], Kind[Any]] = {(k.api_version, k.kind): k for k in ALL}
