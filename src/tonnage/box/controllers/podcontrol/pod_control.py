"""Pod control: creates and deletes a workload's pods, with Events and slow start (RealPodControl, slowStartBatch)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from tonnage.api.kinds import PODS, Kind
from tonnage.api.meta import KubeObject
from tonnage.api.pods import Pod
from tonnage.box.controllers.podcontrol.expectations import Dependents
from tonnage.errors import ApiError, ApiNotFound, TonnageError
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder

BURST = 500
"""Pods made or deleted in one go; the rest follows with the next look."""
_FORBIDDEN = 403


class PodControl:
    """Creates and deletes pods of workloads of one kind."""

    def __init__(self, client: Client, pods: Dependents[Pod], events: EventRecorder, kind: Kind[Any]) -> None:
        self._client, self._pods, self._events, self._kind = client, pods, events, kind

    async def create(self, owner: KubeObject, body: dict[str, Any]) -> Pod:
        """Create one pod and emit an Event. Raises ApiError; an AlreadyExists emits no Event."""
        about = refer(self._kind, owner)
        try:
            pod = self._pods.wrote(await self._client.create(PODS, body, owner.metadata.namespace))
        except ApiError as failure:
            if failure.reason != "AlreadyExists" and not in_dying_namespace(failure):
                self._events.warning(about, "FailedCreate", f"Error creating: {failure}")
            raise
        self._events.normal(about, "SuccessfulCreate", f"Created pod: {pod.metadata.name}")
        return pod

    async def create_many(self, owner: KubeObject, bodies: list[dict[str, Any]]) -> TonnageError | None:
        """Make pods: one, then two, four ...; after a failure no more. Returns that failure."""
        return await slow_start(bodies[:BURST], lambda body: self.create(owner, body))

    async def delete(self, owner: KubeObject, pod: Pod) -> None:
        """Delete one pod and emit an Event. A deleted pod is ignored. Raises ApiError."""
        if pod.metadata.deleting:
            return
        about, meta = refer(self._kind, owner), pod.metadata
        try:
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        except ApiNotFound:
            self._pods.deleted(pod)
            return
        except ApiError as failure:
            self._events.warning(about, "FailedDelete", f"Error deleting: {failure}")
            raise
        self._pods.deleted(pod)
        self._events.normal(about, "SuccessfulDelete", f"Deleted pod: {meta.name}")

    async def delete_many(self, owner: KubeObject, pods: Iterable[Pod]) -> None:
        """Delete pods, all at once. Raises the first failure, after all have been tried."""
        results = await asyncio.gather(*(self.delete(owner, pod) for pod in pods), return_exceptions=True)
        for result in results:
            if result is not None:
                raise result


async def slow_start(
    bodies: list[dict[str, Any]], create: Callable[[dict[str, Any]], Awaitable[Any]]
) -> TonnageError | None:
    """Create in batches of 1, 2, 4 ...: what cannot be created fails once and not hundreds of times.

    Returns the first failure of the batch that was the last.
    """
    done, batch = 0, 1
    while done < len(bodies):
        some = bodies[done : done + batch]
        results = await asyncio.gather(*map(create, some), return_exceptions=True)
        for result in results:
            if isinstance(result, TonnageError):
                return result
            if isinstance(result, BaseException):
                raise result
        done, batch = done + len(some), batch * 2
    return None


def in_dying_namespace(failure: TonnageError) -> bool:
    """Whether the API server refused the write because the namespace is being deleted; no Event is needed then."""
    if not isinstance(failure, ApiError) or failure.code != _FORBIDDEN:
        return False
    return any(cause.reason == "NamespaceTerminating" for cause in failure.causes)


async def patch_status(
    client: Client, kind: Kind[Any], obj: KubeObject, status: dict[str, Any], *, guarded: bool = True
) -> Any:
    """Write the given status fields if the object has not changed. A deleted object is ignored."""
    meta = obj.metadata
    version = meta.resource_version if guarded else ""
    with suppress(ApiNotFound):
        return await client.patch(
            kind,
            meta.name,
            {"status": status},
            meta.namespace,
            subresource="status",
            uid=meta.uid,
            resource_version=version,
        )
    return None
