"""Pod control: creates and deletes a workload's pods, with Events and slow start (RealPodControl, slowStartBatch)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tonnage.base.errors import ApiError, ApiNotFoundError, TonnageError
from tonnage.kubernetes.api.kinds import PODS, Kind
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import refer
from tonnage_box.controllers.podcontrol.context import ControllerContext
from tonnage_box.controllers.podcontrol.expectations import Dependents
from tonnage_box.controllers.podcontrol.ref_manager import Adopter

BURST = 500
"""Pods made or deleted in one go; the rest follows with the next look."""
_FORBIDDEN = 403


class PodControl:
    """The pods of workloads of one kind: adopts, creates and deletes them.

    finalizer: added to an adopted pod as well. fits: whether a matching orphan may be adopted at all.
    """

    def __init__(
        self,
        context: ControllerContext,
        kind: Kind[Any],
        *,
        finalizer: str = "",
        fits: Callable[[KubeObject, Pod], bool] = lambda owner, orphan: True,
    ) -> None:
        self._client, self._events, self._kind = context.client, context.events, kind
        self.pods = Dependents(context.informers.of(PODS))
        adopter = Adopter(context.client, PODS, kind, self.pods, finalizer=finalizer, fits=fits)
        self.claim, self.owned = adopter.claim, self.pods.owned

    async def create(self, owner: KubeObject, body: dict[str, Any]) -> Pod:
        """Create one pod and emit an Event. Raises: ApiError; an AlreadyExistsError emits no Event."""
        about = refer(self._kind, owner)
        try:
            pod = self.pods.wrote(await self._client.create(PODS, body, owner.metadata.namespace))
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
        """Delete one pod and emit an Event. A deleted pod is ignored. Raises: ApiError."""
        if pod.metadata.deleting:
            return
        about, meta = refer(self._kind, owner), pod.metadata
        try:
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        except ApiNotFoundError:
            self.pods.deleted(pod)
            return
        except ApiError as failure:
            self._events.warning(about, "FailedDelete", f"Error deleting: {failure}")
            raise
        self.pods.deleted(pod)
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
    """Whether the API server rejected the write because the namespace is being deleted; no Event is needed then."""
    if not isinstance(failure, ApiError) or failure.code != _FORBIDDEN:
        return False
    return any(cause.reason == "NamespaceTerminating" for cause in failure.causes)
