"""A world without I/O: caches, the cluster's state, a queue and a clock."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from tonnage.kubernetes.api import core, kinds, names, storage
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.cache import Cache
from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.framework.plugin import Diagnosis, SchedulingDecision
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.framework.queue import SchedulingQueue
from tonnage.scheduler.framework.storage_objects import StorageObjects

CLASS = "late"


class World:
    """Objects come by methods that return them; `decide` and `place` are the scheduler's two steps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.nodes: Cache[core.Node] = Cache()
        self.csi_nodes: Cache[storage.CSINode] = Cache()
        self.capacities: Cache[storage.CSIStorageCapacity] = Cache()
        self.attachments: Cache[storage.VolumeAttachment] = Cache()
        self.objects = StorageObjects(Cache(), Cache(), Cache(), Cache())
        self.queue = SchedulingQueue()
        self.cluster = Cluster(self.objects, lambda event: self.queue.notice(event, self.now))
        self.cycle = Cycle(self.cluster)
        self._versions = count(1)
        self.nodes.on_change(self.cluster.node_changed)
        self.csi_nodes.on_change(self.cluster.csi_node_changed)
        self.capacities.on_change(self.cluster.capacity_changed)
        self.attachments.on_change(self.cluster.attachment_changed)

    def version(self) -> str:
        """A resourceVersion newer than all before."""
        return str(next(self._versions))

    def read(self, kind: Kind[Any], name: str, body: dict[str, Any], namespace: str = "", **meta: Any) -> Any:
        """An object as the API server would send it."""
        head = {"name": name, "namespace": namespace, "uid": f"uid-{name}", **meta, "resourceVersion": self.version()}
        return kind.decode(msgspec.json.encode({**body, "metadata": head}))

    def node(self, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> core.Node:
        """node(name, cpu="4", memory="8Gi", pods="110", labels=, taints=, unschedulable=, allocatable=)"""
        amounts = {key: spec.pop(key, default) for key, default in (("cpu", "4"), ("memory", "8Gi"), ("pods", "110"))}
        amounts |= spec.pop("allocatable", {})
        marks = {names.HOSTNAME_LABEL: name, names.TOPOLOGY_NODE: name, **(labels or {})}
        node = self.read(kinds.NODES, name, {"spec": spec, "status": {"allocatable": amounts}}, labels=marks)
        self.nodes.put(node)
        return node  # type: ignore[no-any-return]

    def pod(self, name: str, *, requests: dict[str, str] | None = None, **spec: Any) -> Pod:
        """pod(name, requests={}, claims=[...], ephemeral=[volume names], **spec); it goes nowhere yet."""
        volumes = [{"name": f"c-{c}", "persistentVolumeClaim": {"claimName": c}} for c in spec.pop("claims", ())]
        volumes += [{"name": v, "ephemeral": {"volumeClaimTemplate": {}}} for v in spec.pop("ephemeral", ())]
        containers = spec.pop("containers", [{"name": "main", "resources": {"requests": requests or {}}}])
        body = {"spec": {"containers": containers, "volumes": volumes, **spec}}
        return self.read(kinds.PODS, name, body, "default")  # type: ignore[no-any-return]

    def storage_class(self, name: str = CLASS, *, driver: str = names.DRIVER, **more: Any) -> Any:
        """A late class and, unless it is known, its driver, which has storageCapacity."""
        body = {"provisioner": driver, "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER, **more}
        found = self.read(kinds.STORAGE_CLASSES, name, body)
        self.objects.classes.put(found)
        if self.objects.drivers.get(driver) is None:
            self.driver(driver)
        return found

    def driver(self, name: str = names.DRIVER, *, measured: bool = True) -> Any:
        """A CSIDriver."""
        found = self.read(kinds.CSI_DRIVERS, name, {"spec": {"storageCapacity": measured}})
        self.objects.drivers.put(found)
        return found

    def csi_node(self, node: str, *drivers: str) -> None:
        """These drivers are registered on a node."""
        body = {"spec": {"drivers": [{"name": driver, "nodeID": node} for driver in drivers]}}
        self.csi_nodes.put(self.read(kinds.CSI_NODES, node, body))

    def claim(self, name: str, size: str = "1Gi", *, owner: str = "", phase: str = "Pending", **more: Any) -> Any:
        """claim(name, size, owner=pod name, phase=, annotations=, deletionTimestamp=, **spec), put into its cache."""
        meta: dict[str, Any] = {}
        meta |= {key: more.pop(key) for key in ("annotations", "deletionTimestamp", "uid") if key in more}
        if owner:
            owners = [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}]
            meta["ownerReferences"] = owners
        spec = {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], **more}
        spec["resources"] = {"requests": {"storage": size}}
        found = self.read(kinds.CLAIMS, name, {"spec": spec, "status": {"phase": phase}}, "default", **meta)
        self.objects.claims.put(found)
        return found

    def bound_claim(self, name: str, volume: str, size: str = "1Gi", **more: Any) -> Any:
        """A claim whose binding is complete."""
        marks = {names.BIND_COMPLETED: "yes"}
        return self.claim(name, size, phase="Bound", annotations=marks, volumeName=volume, **more)

    def volume(self, name: str, size: str = "1Gi", *, node: str = "", phase: str = "Available", **more: Any) -> Any:
        """volume(name, size, node=, claim=name, labels=, **spec), put into its cache."""
        meta = {key: more.pop(key) for key in ("labels", "deletionTimestamp") if key in more}
        spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS, **more}
        spec.setdefault("csi", {"driver": names.DRIVER, "volumeHandle": name})
        if claim := spec.pop("claim", ""):
            spec["claimRef"] = {"namespace": "default", "name": claim}
        if node:
            terms = [{"matchExpressions": [{"key": names.HOSTNAME_LABEL, "operator": "In", "values": [node]}]}]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        found = self.read(kinds.VOLUMES, name, {"spec": spec, "status": {"phase": phase}}, **meta)
        self.objects.volumes.put(found)
        return found

    def capacity(
        self,
        node: str,
        free: str | None,
        *,
        storage_class: str = CLASS,
        largest: str | None = None,
        counted: int | None = None,
        pool: str = "",
        reason: str = "",
        name: str = "",
    ) -> Any:
        """A capacity object of a node, put into its cache; again with other numbers: changed."""
        body: dict[str, Any] = {"storageClassName": storage_class, "nodeTopology": {"matchLabels": _topology(node)}}
        body |= {"capacity": free} if free is not None else {}
        body |= {"maximumVolumeSize": largest} if largest is not None else {}
        meta: dict[str, Any] = {"labels": {names.POOL_LABEL: pool} if pool else {}}
        meta["annotations"] = {} if counted is None else {names.OBSERVED_CLAIM_VERSION: str(counted)}
        meta["annotations"] |= {names.REASON: reason} if reason else {}
        name = name or f"{storage_class}-{node}"
        found = self.read(kinds.CAPACITIES, name, body, names.SYSTEM_NAMESPACE, **meta)
        self.capacities.put(found)
        return found

    def decide(self, pod: Pod) -> SchedulingDecision | Diagnosis:
        """What the cycle says of a pod."""
        return self.cycle.decide(compile_ask(pod))

    def place(self, pod: Pod) -> str:
        """Decide and assume; the node, or the message of the rejection."""
        ask = compile_ask(pod)
        outcome = self.cycle.decide(ask)
        if isinstance(outcome, Diagnosis):
            return outcome.message
        self.cycle.reserve(ask, outcome)
        return outcome.node

    def send(self, claim: str, node: str) -> int:
        """The claim is sent to a node and the API server has answered; returns the resourceVersion."""
        old = self.objects.claims.get(f"default/{claim}")
        assert old is not None
        size = old.spec.resources.requests["storage"]
        more = {"volumeName": old.spec.volume_name} if old.spec.volume_name else {}
        storage_class = old.spec.storage_class_name
        new = self.claim(
            claim, size, annotations={names.SELECTED_NODE: node}, storageClassName=storage_class, uid=old.metadata.uid,
            **more,
        )  # fmt: skip
        version = int(new.metadata.resource_version)
        self.cluster.published.confirm(new.metadata.uid, version)
        return version


def _topology(node: str) -> dict[str, str]:
    return {names.TOPOLOGY_NODE: node} if node else {}
