"""A healthy installation on two nodes, as an API server would tell of it; tests then break one thing."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Lease, Node, PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import CSIDriver, CSINode, StorageClass
from tonnage.kubernetes.api.workloads import DaemonSet, Deployment
from tonnage.provisioning.capacity.object import managed_by, object_name
from tonnage.tools.ops.cluster_snapshot import AGENT_POLICIES, Published, View

T = TypeVar("T")
NOW = 1_800_000_000.0
DRIVER_SPEC = {
    "attachRequired": False,
    "podInfoOnMount": True,
    "storageCapacity": True,
    "fsGroupPolicy": "File",
    "seLinuxMount": True,
    "volumeLifecycleModes": ["Persistent", "Ephemeral"],
}
POLICIES = frozenset(
    f"{kind}{part}/{name}"
    for kind, policies in (
        ("mutating", [names.SCOPE_POLICY]),
        ("validating", list(AGENT_POLICIES)),
    )
    for name in policies
    for part in ("admissionpolicies", "admissionpolicybindings")
)
SERVED = frozenset(
    [
        "v1/persistentvolumeclaims",
        "storage.k8s.io/v1/csistoragecapacities",
        "storage.k8s.io/v1/csinodes",
        "admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
        "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    ]
)


class Ward:
    """Makes objects and puts them into a view."""

    def __init__(self) -> None:
        self.view = View(names.SYSTEM_NAMESPACE, NOW, "v1.36.3", SERVED, there=POLICIES)
        self.view.driver = msgspec.convert({"metadata": {"name": names.DRIVER}, "spec": DRIVER_SPEC}, CSIDriver)
        self.view.daemon_sets = [self._workload(DaemonSet, "tonnage-node", desiredNumberScheduled=2)]
        self.view.deployments = [self._workload(Deployment, "tonnage-controller", replicas=2, readyReplicas=2)]
        self.view.files = {"tonnage-node": {"pools": [{"name": "scratch", "kind": "image"}]}}
        self.lead(NOW - 3)
        for number in (1, 2):
            self.node(f"n{number}")
        self.storage_class("fast")

    def _workload(self, kind: type[T], name: str, **status: int) -> T:
        return msgspec.convert({"metadata": {"name": name, "uid": name}, "status": status}, kind)

    def lead(self, renewed: float) -> None:
        """Some controller leads, renewed at that time."""
        self.view.lease = self._lease(renewed)

    def schedule(self, renewed: float, *, ready: int = 2) -> None:
        """There is a scheduler, one of two replicas leads, renewed at that time."""
        self.view.schedulers = [self._workload(Deployment, names.SCHEDULER, replicas=2, readyReplicas=ready)]
        self.view.scheduler_lease = self._lease(renewed)

    def _lease(self, renewed: float) -> Lease:
        spec = {"holderIdentity": "one", "renewTime": rfc3339(renewed, micro=True)}
        return msgspec.convert({"spec": spec}, Lease)

    def node(self, name: str, *, keys: tuple[str, ...] = (names.TOPOLOGY_NODE,), node_id: str = "", most: int | None = None,
             labels: dict[str, str] | None = None, taints: tuple[str, ...] = (), listed: bool = True) -> None:  # fmt: skip
        """Make a node with its CSINode and agent, or make it anew."""
        view = self.view
        labels = {names.TOPOLOGY_NODE: name} if labels is None else labels
        spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
        made = msgspec.convert({"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}, "spec": spec}, Node)
        view.nodes = [*(n for n in view.nodes if n.metadata.name != name), made]
        entry: dict[str, Any] = {"name": names.DRIVER, "nodeID": node_id or name, "topologyKeys": list(keys)}
        if most is not None:
            entry["allocatable"] = {"count": most}
        csi = {"metadata": {"name": name}, "spec": {"drivers": [entry] if listed else []}}
        view.csi_nodes = [*(c for c in view.csi_nodes if c.metadata.name != name), msgspec.convert(csi, CSINode)]
        if not view.agent_of(name):
            self.agent(name)

    def agent(self, node: str, **status: Any) -> None:
        """Give a node its agent's pod, ready unless a status is told."""
        owner = {"kind": "DaemonSet", "name": "tonnage-node", "uid": "tonnage-node", "controller": True}
        pod = {
            "metadata": {"name": f"agent-{node}", "namespace": self.view.namespace, "ownerReferences": [owner]},
            "spec": {"nodeName": node},
            "status": status or {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        others = [p for p in self.view.agents if p.spec.node_name != node]
        self.view.agents = [*others, msgspec.convert(pod, Pod)]

    def storage_class(self, name: str, **more: Any) -> None:
        """Make a class, and its capacity objects on all nodes."""
        late = {"volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER, "provisioner": names.DRIVER}
        made = msgspec.convert({"metadata": {"name": name}, **late, **more}, StorageClass)
        self.view.classes = [*self.view.classes, made]
        for node in sorted(self.view.node_names):
            self.capacity(name, node)

    def capacity(
        self, storage_class: str, node: str, *, reason: str = "", writer: str = "tonnage-node", **more: Any
    ) -> None:
        """Make a capacity object as that node's agent does, or make it anew."""
        name = object_name(names.DRIVER, storage_class, node)
        metadata = {
            "name": name,
            "namespace": self.view.namespace,
            "labels": {
                names.CAPACITY_DRIVER: names.DRIVER,
                names.CAPACITY_MANAGED_BY: managed_by(node),
                names.NODE_LABEL: node,
            },
            "annotations": {names.REASON: reason} if reason else {},
            "ownerReferences": [{"kind": "Node", "name": node, "uid": f"uid-{node}"}],
            "managedFields": [{"manager": writer, "fieldsV1": {"f:capacity": {}}}],
        }
        body = {
            "metadata": metadata | more.pop("metadata", {}),
            "storageClassName": storage_class,
            "nodeTopology": {"matchLabels": {names.TOPOLOGY_NODE: node}},
            "capacity": "0" if reason else "10Gi",
            **more,
        }
        others = [c for c in self.view.capacities if c.metadata.name != name]
        self.view.capacities = [*others, msgspec.convert(body, Published)]

    def claim(self, name: str, **more: Any) -> None:
        """Make a claim of class fast."""
        metadata = {"name": name, "namespace": "team", **more.pop("metadata", {})}
        body = {"metadata": metadata, "spec": {"storageClassName": "fast", **more}}
        self.view.claims = [*self.view.claims, msgspec.convert(body, PersistentVolumeClaim)]

    def volume(self, name: str, node: str, *, policy: str = "Delete", phase: str = "Bound", **metadata: Any) -> None:
        """Make a PersistentVolume on a node ("" for no affinity)."""
        expression = {"key": names.TOPOLOGY_NODE, "operator": "In", "values": [node]}
        spec: dict[str, Any] = {
            "csi": {"driver": names.DRIVER, "volumeHandle": f"scratch/{name}"},
            "persistentVolumeReclaimPolicy": policy,
        }
        if node:
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        labels = {names.NODE_LABEL: node}
        body = {"metadata": {"name": name, "labels": labels, **metadata}, "spec": spec, "status": {"phase": phase}}
        self.view.volumes = [*self.view.volumes, msgspec.convert(body, PersistentVolume)]
