"""Kubernetes objects of a simulation, as the API server would send them to the scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.pods import Pod, PodSpec
from tonnage.kubernetes.api.storage import CSIDriver, CSIDriverSpec, StorageClass
from tonnage.scheduler.framework.pod_info import Ask, ClaimUse, compile_ask
from tonnage_box.simulate.cluster import bodies
from tonnage_box.simulate.workload.workload import SimulatedNodes, StreamSpec


def driver() -> CSIDriver:
    """The one driver: it publishes capacity."""
    return CSIDriver(metadata=ObjectMeta(name=names.DRIVER), spec=CSIDriverSpec(storage_capacity=True))


def storage_class(name: str) -> StorageClass:
    """A class that waits for its first consumer."""
    return StorageClass(
        metadata=ObjectMeta(name=name),
        provisioner=names.DRIVER,
        volume_binding_mode=names.WAIT_FOR_FIRST_CONSUMER,
    )


def node(name: str, spec: SimulatedNodes) -> Node:
    """A node with what it can give to pods."""
    return msgspec.convert(bodies.node(name, spec), Node)


def template(stream: StreamSpec) -> Ask:
    """Requests of every pod of a stream, without its volumes. Raises: InvalidError."""
    spec = msgspec.convert(bodies.pod_spec(stream, []), PodSpec)
    return compile_ask(Pod(spec=msgspec.structs.replace(spec, priority=stream.priority or None)))


def ask(like: Ask, uid: str, claims: Iterable[PersistentVolumeClaim]) -> Ask:
    """A pod of a stream, with its claims."""
    pod = Pod(metadata=_meta(uid), spec=like.pod.spec)
    uses = tuple(ClaimUse(claim.key, claim.metadata.name, ephemeral=False) for claim in claims)
    return replace(like, pod=pod, claims=uses)


def claim(uid: str, storage_class: str, size: int, version: int) -> PersistentVolumeClaim:
    """A new claim."""
    body = {"spec": bodies.claim_spec(storage_class, size)}
    return msgspec.structs.replace(msgspec.convert(body, PersistentVolumeClaim), metadata=_meta(uid, version))


def bound(claim: PersistentVolumeClaim, node: str, version: int) -> PersistentVolumeClaim:
    """The claim with its volume, on that node."""
    notes = {names.SELECTED_NODE: node, names.BIND_COMPLETED: "yes"}
    return msgspec.structs.replace(
        claim,
        metadata=msgspec.structs.replace(claim.metadata, annotations=notes, resource_version=str(version)),
        spec=msgspec.structs.replace(claim.spec, volume_name=f"pv-{claim.metadata.name}"),
        status=PersistentVolumeClaimStatus(phase="Bound"),
    )


def volume(claim: PersistentVolumeClaim, node: str, version: int) -> PersistentVolume:
    """The claim's volume, which only its node reaches."""
    name, meta = f"pv-{claim.metadata.name}", claim.metadata
    reach = {"key": names.TOPOLOGY_NODE, "operator": "In", "values": [node]}
    body: dict[str, Any] = {
        "metadata": {"name": name, "resourceVersion": str(version)},
        "spec": {
            "capacity": claim.spec.resources.requests,
            "accessModes": claim.spec.access_modes,
            "claimRef": {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid},
            "storageClassName": claim.spec.storage_class_name,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [reach]}]}},
            "csi": {"driver": names.DRIVER, "volumeHandle": name},
        },
        "status": {"phase": "Bound"},
    }
    return msgspec.convert(body, PersistentVolume)


def _meta(uid: str, version: int = 0) -> ObjectMeta:
    return ObjectMeta(name=uid, namespace=bodies.NAMESPACE, uid=uid, resource_version=str(version) if version else "")
