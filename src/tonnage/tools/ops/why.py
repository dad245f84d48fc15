"""`tonnage why`: reads a cluster once, as its scheduler does, and explains why a pod has no node. Writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.base.errors import ApiError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import Event, PersistentVolumeClaim
from tonnage.kubernetes.api.matching import class_name, is_bound
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.policy import PodDisruptionBudget
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client
from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.explain import Explanation, explain
from tonnage.scheduler.framework.storage_objects import StorageObjects
from tonnage.tools.ops import claim_errors
from tonnage.tools.ops.claim_errors import ClaimObjects, Said
from tonnage.tools.ops.cluster_snapshot import PUBLISHED, ClusterReader, Published

T = TypeVar("T", bound=KubeObject)
_NEWEST = 3
"""Events of a pod that are shown."""
_BOX_SCHEDULER = "default-scheduler"


class WhyAnswer(Explanation, frozen=True):
    """An explanation, with Events of the pod's claims and their classes."""

    said: list[Said] = []


async def why(client: Client, name: str, namespace: str, *, clock: Clock) -> WhyAnswer:
    """Explain a pod.

    Raises: ApiNotFoundError without such a pod; ApiError for kinds that may not be read (all of nodes, pods and storage
    are needed); UnavailableError; InvalidError for objects that make no sense.
    """
    pod = await client.get(kinds.PODS, name, namespace)
    is_box = b"+tonnage" in await client.read("/version")
    reader = ClusterReader(client)
    cluster, capacities, pods = await _read(reader)
    budgets = list[PodDisruptionBudget]()
    with suppress(ApiError):  # they matter least
        budgets = await reader.listed(kinds.DISRUPTION_BUDGETS)
    scheduler, read = _BOX_SCHEDULER if is_box else "", rfc3339(clock.time())
    keys = [f"{pod.metadata.namespace}/{name}" for name in pod.claim_names()]
    claims = [claim for key in keys if (claim := cluster.objects.claims.get(key)) is not None]
    objects = ClaimObjects(
        cluster.objects.origin_of,
        list(cluster.objects.volumes),
        cluster.objects.classes.get,
        capacities,
        cluster.is_registered,
        drivers=[names.DRIVER, *names.COMPAT_DRIVERS.values(), *names.FLEX_PROVISIONERS],
        nodes=cluster.columns.names,
        events=await _events(reader, claims, cluster.objects.classes.get),
    )
    found = explain(
        Cycle(cluster), pod, written={capacity.key: capacity.written for capacity in capacities}, scheduler=scheduler,
        pods=pods, budgets=budgets, faults=claim_errors.faults_of(claims, objects),
    )  # fmt: skip
    answer = {"said": claim_errors.said_of(claims, objects), "read": read}
    if found.node and pod.status.phase == "Pending":
        answer |= await _warnings(reader, pod)
    unchecked = [*found.unchecked, *reader.unreadable]
    return WhyAnswer(**(msgspec.structs.asdict(found) | {"unchecked": unchecked} | answer))


async def _warnings(reader: ClusterReader, pod: Pod) -> dict[str, Any]:
    """Return what the kubelet and the drivers report about a pod that has a node and does not start."""
    meta = pod.metadata
    try:
        found = await reader.listed(kinds.EVENTS, meta.namespace, fields=f"involvedObject.uid={meta.uid}")
    except ApiError as failure:
        reader.unreadable.append(f"Events of the pod: {failure.message}")
        return {}
    warnings = [claim_errors.said("the pod", event) for event in found if event.type == "Warning"]
    if not warnings:
        return {}
    warnings.sort(key=lambda warning: warning.at)
    todo = f"change what the last Event names; `kubectl -n {meta.namespace} describe pod {meta.name}` has the others"
    return {"said": warnings[-_NEWEST:], "todo": todo}


async def _events(
    reader: ClusterReader, claims: Iterable[PersistentVolumeClaim], classes: Callable[[str], StorageClass | None]
) -> dict[str, list[Event]]:
    """Return Events of the claims that have no volume, and of their classes, by uid.

    None where they may not be read.
    """
    waiting = [claim for claim in claims if not is_bound(claim)]
    abouts = [(claim.metadata.uid, claim.metadata.namespace) for claim in waiting]
    found = (classes(class_name(claim)) for claim in waiting)
    abouts += [(c.metadata.uid, "default") for c in found if c is not None]
    events: dict[str, list[Event]] = {}
    try:
        for uid, namespace in dict.fromkeys(abouts):
            events[uid] = await reader.listed(kinds.EVENTS, namespace, fields=f"involvedObject.uid={uid}")
    except ApiError as failure:
        reader.unreadable.append(f"Events of its claims: {failure.message}")
    return events


async def _read(reader: ClusterReader) -> tuple[Cluster, list[Published], list[Pod]]:
    """Return the cluster, its capacity objects, and all pods.

    Storage is read before pods and nodes, in the order in which a scheduler's caches may be filled too.
    """
    listed = reader.listed
    claims, volumes, classes, drivers = await asyncio.gather(
        listed(kinds.CLAIMS), listed(kinds.VOLUMES), listed(kinds.STORAGE_CLASSES), listed(kinds.CSI_DRIVERS)
    )
    nodes, csi_nodes, attachments, capacities, pods = await asyncio.gather(
        listed(kinds.NODES), listed(kinds.CSI_NODES), listed(kinds.ATTACHMENTS), listed(PUBLISHED), listed(kinds.PODS)
    )
    snapshots, contents = await reader.all(kinds.SNAPSHOTS), await reader.all(kinds.SNAPSHOT_CONTENTS)  # may be missing
    storage = _filled(claims), _filled(volumes), _filled(classes), _filled(drivers)
    objects = StorageObjects(*storage, _filled(snapshots), _filled(contents))
    cluster = Cluster(objects)
    _filled(nodes).on_change(cluster.node_changed)
    _filled(csi_nodes).on_change(cluster.csi_node_changed)
    _filled(attachments).on_change(cluster.attachment_changed)
    _filled(capacities).on_change(cluster.capacity_changed)
    for pod in pods:
        if pod.spec.node_name and not pod.terminated:
            cluster.pod_placed(pod)
    cluster.settle()
    return cluster, capacities, pods


def _filled(objects: Iterable[T]) -> Cache[T]:
    cache: Cache[T] = Cache()
    cache.replace(objects)
    return cache
