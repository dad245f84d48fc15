"""`tonnage why`: reads a cluster once, as its scheduler does, and explains why a pod has no node. Writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

import msgspec

from tonnage.aio.clock import Clock, rfc3339
from tonnage.api import names
from tonnage.api.core import Event, PersistentVolumeClaim
from tonnage.api.kinds import (
    ATTACHMENTS,
    CLAIMS,
    CSI_DRIVERS,
    CSI_NODES,
    DISRUPTION_BUDGETS,
    EVENTS,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
    Kind,
)
from tonnage.api.matching import class_name, is_bound
from tonnage.api.meta import KubeObject
from tonnage.api.origin import reference
from tonnage.api.pods import Pod
from tonnage.api.policy import PodDisruptionBudget
from tonnage.api.storage import StorageClass
from tonnage.errors import ApiError, ApiNotFoundError
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client
from tonnage.ops.claim_errors import (
    SNAPSHOT_MISSING,
    SNAPSHOT_READY,
    SNAPSHOT_UNREADY,
    ClaimObjects,
    Said,
    faults_of,
    said_of,
)
from tonnage.ops.cluster_snapshot import PUBLISHED, Published
from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.explain import Explanation, explain
from tonnage.scheduler.framework.storage_objects import StorageObjects

T = TypeVar("T", bound=KubeObject)
_SNAPSHOTS = ("snapshot.storage.k8s.io", "VolumeSnapshot")
_BOX_SCHEDULER = "default-scheduler"


class WhyAnswer(Explanation, frozen=True):
    """An explanation, with Events of the pod's claims and their classes."""

    said: list[Said] = []


async def why(client: Client, name: str, namespace: str, *, clock: Clock) -> WhyAnswer:
    """Explain a pod.

    Raises: ApiNotFound without such a pod; ApiError for kinds that may not be read (all of nodes, pods and storage are
    needed); Unavailable; Invalid for objects that make no sense.
    """
    pod = await client.get(PODS, name, namespace)
    is_box = b"+tonnage" in await client.read("/version")
    reader = _Reader(client)
    cluster, capacities, pods = await _read(reader, clock)
    budgets = await _budgets(reader)
    scheduler, read = _BOX_SCHEDULER if is_box else "", rfc3339(clock.time())
    keys = [f"{pod.metadata.namespace}/{name}" for name in pod.claim_names()]
    claims = [claim for key in keys if (claim := cluster.objects.claims.get(key)) is not None]
    objects = ClaimObjects(
        cluster.objects.claims.get,
        list(cluster.objects.volumes),
        cluster.objects.classes.get,
        capacities,
        cluster.is_registered,
        drivers=[names.DRIVER, *names.COMPAT_DRIVERS.values()],
        snapshots=await reader.snapshots(claims),
        events=await reader.events(claims, cluster.objects.classes.get),
    )
    found = explain(
        Cycle(cluster), pod, written=_written(capacities), scheduler=scheduler, pods=pods, budgets=budgets,
        faults=faults_of(claims, objects),
    )  # fmt: skip
    unchecked = [*found.unchecked, *reader.unreadable]
    return WhyAnswer(
        **msgspec.structs.asdict(msgspec.structs.replace(found, unchecked=unchecked, read=read)),
        said=said_of(claims, objects),
    )


class _Reader:
    """Lists objects. unreadable: which ones are left out, and why."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.unreadable: list[str] = []

    async def all(self, kind: Kind[T]) -> list[T]:
        listing = await self._client.list(kind, tolerant=True)
        self.unreadable += [str(found.error) for found in listing.unreadable]
        return listing.items

    async def events(
        self, claims: Iterable[PersistentVolumeClaim], classes: Callable[[str], StorageClass | None]
    ) -> dict[str, list[Event]]:
        """Events of the claims that have no volume, and of their classes, by uid; none where they may not be read."""
        waiting = [claim for claim in claims if not is_bound(claim)]
        abouts = [(claim.metadata.uid, claim.metadata.namespace) for claim in waiting]
        found = (classes(class_name(claim)) for claim in waiting)
        abouts += [(c.metadata.uid, "default") for c in found if c is not None]
        events: dict[str, list[Event]] = {}
        for uid, namespace in dict.fromkeys(abouts):
            try:
                listing = await self._client.list(EVENTS, namespace, fields=f"involvedObject.uid={uid}", tolerant=True)
            except ApiError as failure:
                self.unreadable.append(f"Events of its claims: {failure.message}")
                break
            events[uid] = listing.items
        return events

    async def snapshots(self, claims: Iterable[PersistentVolumeClaim]) -> dict[str, str]:
        """The state of the snapshots that are data sources, by `namespace/name`; none where they may not be read."""
        found: dict[str, str] = {}
        for claim in claims:
            ref = reference(claim)
            if ref is None or (ref.api_group, ref.kind) != _SNAPSHOTS or is_bound(claim):
                continue
            namespace = ref.namespace or claim.metadata.namespace
            path = f"/apis/{ref.api_group}/v1/namespaces/{namespace}/volumesnapshots/{ref.name}"
            try:
                status = msgspec.json.decode(await self._client.read(path)).get("status") or {}
            except ApiNotFoundError:
                found[f"{namespace}/{ref.name}"] = SNAPSHOT_MISSING
                continue
            except (ApiError, msgspec.DecodeError, AttributeError):
                continue
            ready = isinstance(status, dict) and status.get("readyToUse") is True
            found[f"{namespace}/{ref.name}"] = SNAPSHOT_READY if ready else SNAPSHOT_UNREADY
        return found


async def _budgets(reader: _Reader) -> list[PodDisruptionBudget]:
    """All of them; none where they may not be read, for they matter least."""
    with suppress(ApiError):
        return await reader.all(DISRUPTION_BUDGETS)
    return []


async def _read(reader: _Reader, clock: Clock) -> tuple[Cluster, list[Published], list[Pod]]:
    """Return the cluster, its capacity objects, and all pods.

    Storage is read before pods and nodes, in the order in which a scheduler's caches may be filled too.
    """
    claims, volumes, classes, drivers = await asyncio.gather(
        reader.all(CLAIMS), reader.all(VOLUMES), reader.all(STORAGE_CLASSES), reader.all(CSI_DRIVERS)
    )
    nodes, csi_nodes, attachments, capacities, pods = await asyncio.gather(
        reader.all(NODES),
        reader.all(CSI_NODES),
        reader.all(ATTACHMENTS),
        reader.all(PUBLISHED),
        reader.all(PODS),
    )
    objects = StorageObjects(_filled(claims), _filled(volumes), _filled(classes), _filled(drivers))
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


def _written(capacities: Iterable[Published]) -> dict[str, str]:
    return {capacity.key: capacity.written for capacity in capacities}
