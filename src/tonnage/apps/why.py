"""Reads a cluster once, as its scheduler sees it, and says why a pod is on no node. Writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar

import msgspec

from tonnage.aio.clock import Clock, rfc3339
from tonnage.api.kinds import (
    ATTACHMENTS,
    CLAIMS,
    CSI_DRIVERS,
    CSI_NODES,
    DISRUPTION_BUDGETS,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
    Kind,
)
from tonnage.api.meta import KubeObject
from tonnage.api.pods import Pod
from tonnage.api.policy import PodDisruptionBudget
from tonnage.apps.doctor.view import PUBLISHED, Published
from tonnage.errors import ApiError
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client
from tonnage.scheduler.cluster import Cluster
from tonnage.scheduler.explain import Explanation, explain
from tonnage.scheduler.queue import SchedulingQueue
from tonnage.scheduler.volumes import StorageObjects

T = TypeVar("T", bound=KubeObject)
_BOX_SCHEDULER = "default-scheduler"


async def why(client: Client, name: str, namespace: str, *, clock: Clock) -> Explanation:
    """Explain a pod. Raises ApiNotFound for one that is not there, ApiError for kinds that may not be read (all of
    nodes, pods and storage are needed), Unavailable, Invalid for objects that make no sense."""
    pod = await client.get(PODS, name, namespace)
    is_box = b"+tonnage" in await client.read("/version")
    reader = _Reader(client)
    cluster, written, pods = await _read(reader, clock)
    budgets = await _budgets(reader)
    scheduler, read = _BOX_SCHEDULER if is_box else "", rfc3339(clock.time())
    found = explain(cluster, pod, written=written, scheduler=scheduler, read=read, pods=pods, budgets=budgets)
    return msgspec.structs.replace(found, unchecked=[*found.unchecked, *reader.unreadable])


class _Reader:
    """Lists objects; unreadable says which ones are left out, and why."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.unreadable: list[str] = []

    async def all(self, kind: Kind[T]) -> list[T]:
        listing = await self._client.list(kind, tolerant=True)
        self.unreadable += [str(found.error) for found in listing.unreadable]
        return listing.items


async def _budgets(reader: _Reader) -> list[PodDisruptionBudget]:
    """All of them; none where they may not be read, for they matter least."""
    with suppress(ApiError):
        return await reader.all(DISRUPTION_BUDGETS)
    return []


async def _read(reader: _Reader, clock: Clock) -> tuple[Cluster, dict[str, str], list[Pod]]:
    """The cluster, when its capacity objects were written, and all pods. Storage is read before pods and nodes, in the
    order in which a scheduler's caches may be filled too."""
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
    cluster = Cluster(objects, SchedulingQueue(), clock.monotonic)
    _filled(nodes).on_change(cluster.node_changed)
    _filled(csi_nodes).on_change(cluster.csi_node_changed)
    objects.volumes.on_change(cluster.volume_changed)
    _filled(attachments).on_change(cluster.attachment_changed)
    _filled(capacities).on_change(cluster.capacity_changed)
    objects.claims.on_change(cluster.claim_changed)
    for pod in pods:
        if pod.spec.node_name and not pod.terminated:
            cluster.pod_placed(pod)
    cluster.settle()
    return cluster, _written(capacities), pods


def _filled(objects: Iterable[T]) -> Cache[T]:
    cache: Cache[T] = Cache()
    cache.replace(objects)
    return cache


def _written(capacities: Iterable[Published]) -> dict[str, str]:
    return {capacity.key: capacity.written for capacity in capacities}
