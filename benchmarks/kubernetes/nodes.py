"""What kubelets do, but for containers and mounts: pods that were sent to a node run, and end when they are deleted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tonnage.base.aio.clock import rfc3339
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers


class Kubelets:
    """One for all nodes. A pod costs the API server one status and one deletion, whatever its volumes are."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._seen: set[str] = set()
        self._ended: set[str] = set()
        self._tasks = Background("kubelets")
        informers.of(PODS).cache.on_change(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._seen.discard(old.metadata.uid)
            self._ended.discard(old.metadata.uid)
            return
        uid = new.metadata.uid
        if not new.spec.node_name:
            return
        if new.metadata.deleting and uid not in self._ended:
            self._ended.add(uid)
            self._tasks.start(self._end(new), "end")
        elif uid not in self._seen and new.status.phase != "Running":
            self._seen.add(uid)
            self._tasks.start(self._run(new), "run")

    async def _run(self, pod: Pod) -> None:
        now = rfc3339(time.time())
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")
        ]
        status = {"phase": "Running", "startTime": now, "conditions": conditions}
        with suppress(ApiNotFoundError, ApiConflictError):
            meta = pod.metadata
            await self._client.patch(PODS, meta.name, {"status": status}, meta.namespace, subresource="status")

    async def _end(self, pod: Pod) -> None:
        meta = pod.metadata
        with suppress(ApiNotFoundError, ApiConflictError):
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)

    async def close(self) -> None:
        """Do nothing more."""
        await self._tasks.close()


@asynccontextmanager
async def kubelets(client: Client) -> AsyncIterator[Informers]:
    """Simulated kubelets of all nodes; the informers that they watch with, for others to use too."""
    informers = Informers(client)
    made = Kubelets(client, informers)
    informers.start()
    try:
        await informers.of(PODS).wait_synced()
        yield informers
    finally:
        await made.close()
        await informers.close()
        await asyncio.sleep(0)
