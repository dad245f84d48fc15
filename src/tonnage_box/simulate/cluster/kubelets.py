"""Simulated kubelets: pods that are bound to a node run and end, without containers and mounts (--full)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers


class Kubelets:
    """The kubelets of all nodes.

    lifetime(pod) is called once and returns the seconds that its containers run, None: until it is deleted. A pod that
    is not restarted has Succeeded then; others are deleted.
    """

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, lifetime: Callable[[Pod], float | None]
    ) -> None:
        self._client, self._clock, self._lifetime = client, clock, lifetime
        self._running: set[str] = set()
        self._ending: set[str] = set()
        self._tasks = Background("kubelets")
        informers.of(PODS).cache.on_change(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._running.discard(old.metadata.uid)
                self._ending.discard(old.metadata.uid)
            return
        uid = new.metadata.uid
        if new.metadata.deleting:
            if new.spec.node_name and uid not in self._ending:
                self._ending.add(uid)
                self._tasks.start(self._remove(new, grace_seconds=0), "end")
        elif new.spec.node_name and uid not in self._running:
            self._running.add(uid)
            self._tasks.start(self._run(new), "run")

    async def _run(self, pod: Pod) -> None:
        lifetime = self._lifetime(pod)
        await self._write(pod, "Running", ready=True)
        if lifetime is None:
            return
        await self._clock.sleep(lifetime)
        if pod.metadata.uid not in self._running or pod.metadata.uid in self._ending:
            return
        if pod.spec.restart_policy == "Never":  # its creator deletes it, or makes no other
            await self._write(pod, "Succeeded", ready=False)
        else:  # its creator replaces it
            await self._remove(pod)

    async def _write(self, pod: Pod, phase: str, *, ready: bool) -> None:
        now, meta = rfc3339(self._clock.time()), pod.metadata
        conditions = [
            {"type": kind, "status": str(ready), "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")
        ]
        status = {"phase": phase, "conditions": conditions} | ({"startTime": now} if ready else {})
        with suppress(ApiNotFoundError, ApiConflictError):
            await self._client.patch(PODS, meta.name, {"status": status}, meta.namespace, subresource="status")

    async def _remove(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        meta = pod.metadata
        with suppress(ApiNotFoundError, ApiConflictError):
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=grace_seconds)

    async def close(self) -> None:
        """Do nothing more."""
        await self._tasks.close()
