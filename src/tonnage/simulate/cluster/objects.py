"""Kubernetes objects of a simulation, as the API server would send them to the scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from tonnage.api import names
from tonnage.api.core import (
    CSIPersistentVolumeSource,
    Node,
    NodeSelector,
    NodeSelectorTerm,
    NodeStatus,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    ResourceRequirements,
    VolumeNodeAffinity,
)
from tonnage.api.meta import ObjectMeta, ObjectReference, SelectorRequirement
from tonnage.api.pods import Container, Pod, PodSpec
from tonnage.api.storage import CSIDriver, CSIDriverSpec, StorageClass
from tonnage.scheduler.framework.pod_info import Ask, ClaimUse, compile_ask
from tonnage.simulate.workload.workload import SimulatedNodes, StreamSpec

NAMESPACE = "simulated"


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
    allocatable = {"cpu": spec.cpu, "memory": spec.memory, "pods": str(spec.pods)}
    return Node(
        metadata=ObjectMeta(name=name, labels={names.TOPOLOGY_NODE: name, names.HOSTNAME_LABEL: name}),
        status=NodeStatus(allocatable=allocatable),
    )


def template(stream: StreamSpec) -> Ask:
    """Requests of every pod of a stream, without its volumes. Raises Invalid."""
    requests = {"cpu": stream.cpu, "memory": stream.memory}
    container = Container(name="main", resources=ResourceRequirements(requests=requests))
    return compile_ask(Pod(spec=PodSpec(containers=[container], priority=stream.priority or None)))


def ask(like: Ask, uid: str, claims: Iterable[PersistentVolumeClaim]) -> Ask:
    """A pod of a stream, with its claims."""
    pod = Pod(metadata=ObjectMeta(name=uid, namespace=NAMESPACE, uid=uid), spec=like.pod.spec)
    uses = tuple(ClaimUse(claim.key, claim.metadata.name, ephemeral=False) for claim in claims)
    return Ask(
        pod, like.demand, like.required, like.preferred, like.tolerations, uses, like.unsupported, like.shape, like.kin
    )  # fmt: skip


def claim(uid: str, storage_class: str, size: int, version: int) -> PersistentVolumeClaim:
    """A new claim."""
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name=uid, namespace=NAMESPACE, uid=uid, resource_version=str(version)),
        spec=PersistentVolumeClaimSpec(
            access_modes=[names.READ_WRITE_ONCE],
            resources=ResourceRequirements(requests={"storage": str(size)}),
            storage_class_name=storage_class,
        ),
    )


def bound(claim: PersistentVolumeClaim, node: str, version: int) -> PersistentVolumeClaim:
    """The claim with its volume, on that node."""
    notes = {names.SELECTED_NODE: node, names.BIND_COMPLETED: "yes"}
    return replace(
        claim,
        metadata=replace(claim.metadata, annotations=notes, resource_version=str(version)),
        spec=replace(claim.spec, volume_name=f"pv-{claim.metadata.name}"),
        status=PersistentVolumeClaimStatus(phase="Bound"),
    )


def volume(claim: PersistentVolumeClaim, node: str, version: int) -> PersistentVolume:
    """The claim's volume, which only its node reaches."""
    name = f"pv-{claim.metadata.name}"
    reach = SelectorRequirement(key=names.TOPOLOGY_NODE, operator="In", values=[node])
    nodes = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[reach])])
    return PersistentVolume(
        metadata=ObjectMeta(name=name, resource_version=str(version)),
        spec=PersistentVolumeSpec(
            capacity=claim.spec.resources.requests,
            access_modes=claim.spec.access_modes,
            claim_ref=ObjectReference(namespace=NAMESPACE, name=claim.metadata.name, uid=claim.metadata.uid),
            storage_class_name=claim.spec.storage_class_name or "",
            node_affinity=VolumeNodeAffinity(required=nodes),
            csi=CSIPersistentVolumeSource(driver=names.DRIVER, volume_handle=name),
        ),
        status=PersistentVolumeStatus(phase="Bound"),
    )
