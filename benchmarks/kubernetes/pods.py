"""Many pods at once, from their creation to their end, and how long both take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.kubernetes.stacks import Stack

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers

NAMESPACE = "default"
WRITERS = 16
LIMIT = 900.0


@dataclass(frozen=True)
class Burst:
    """created: pods a second until all run. deleted: pods a second until all and their volumes are gone."""

    created: float
    deleted: float


class Pods:
    """count pods named NAME-0 and so on, each with a volume of the stack's class."""

    def __init__(self, client: Client, informers: Informers, stack: Stack, name: str, count: int) -> None:
        self._client, self._informers, self._stack = client, informers, stack
        self._names = [f"{name}-{number}" for number in range(count)]
        self._changed = asyncio.Event()
        for informer in (informers.of(PODS), informers.of(CLAIMS), informers.of(VOLUMES)):
            informer.cache.on_change(lambda old, new: self._changed.set())

    async def burst(self) -> Burst:
        """Make them all as fast as can be, then delete them all."""
        return Burst(len(self._names) / await self.create(), len(self._names) / await self.delete())

    async def create(self) -> float:
        """Seconds until all run. Raises TimeoutError."""
        bodies = [pod(name, self._stack) for name in self._names]
        began = time.monotonic()
        await self._each(lambda n: self._client.create(PODS, bodies[n], NAMESPACE))
        await self._until(lambda: all(self._runs(name) for name in self._names))
        return time.monotonic() - began

    async def delete(self) -> float:
        """Seconds until pods, claims and volumes are gone. Raises TimeoutError."""
        began = time.monotonic()
        await self._each(lambda n: self._delete(self._names[n]))
        await self._until(self._is_gone)
        return time.monotonic() - began

    async def _delete(self, name: str) -> None:
        with suppress(ApiNotFoundError):
            await self._client.delete(PODS, name, NAMESPACE)

    def _runs(self, name: str) -> bool:
        found = self._informers.of(PODS).cache.get(f"{NAMESPACE}/{name}")
        return found is not None and found.status.phase == "Running"

    def _is_gone(self) -> bool:
        if any(self._informers.of(PODS).cache.get(f"{NAMESPACE}/{name}") for name in self._names):
            return False
        of_stack = self._stack.storage_class
        left = [*self._informers.of(CLAIMS).cache, *self._informers.of(VOLUMES).cache]
        return not any(obj.spec.storage_class_name == of_stack for obj in left)

    async def _each(self, work: Callable[[int], Any]) -> None:
        slots = asyncio.Semaphore(WRITERS)

        async def one(number: int) -> None:
            async with slots:
                await work(number)

        async with asyncio.TaskGroup() as tasks:
            for number in range(len(self._names)):
                tasks.create_task(one(number))

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


def pod(name: str, stack: Stack, sizes: Sequence[str] = ("1Gi",)) -> dict[str, Any]:
    """A pod with a generic ephemeral volume of each of these sizes; with none for a stack without a class."""
    chosen = sizes if stack.storage_class else ()
    volumes = [
        {"name": f"data-{n}", "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(stack.storage_class, size)}}}
        for n, size in enumerate(chosen)
    ]
    containers = [{"name": "main", "image": "none.invalid/none"}]
    scheduler = {"schedulerName": stack.scheduler} if stack.scheduler else {}
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": containers,
            "volumes": volumes,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            **scheduler,
        },
    }


def claim_spec(storage_class: str, size: str) -> dict[str, Any]:
    """What a claim asks for."""
    return {
        "accessModes": [names.READ_WRITE_ONCE],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }
