"""Pods with volumes, and what became of each as a watcher sees it: when it ran, and how often its claims were sent."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from benchmarks.kubernetes.pods import LIMIT, NAMESPACE, WRITERS, pod
from benchmarks.kubernetes.stacks import Stack

from tonnage.base.errors import UnavailableError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, VOLUMES
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Request

_AT_ONCE = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})


@dataclass(frozen=True)
class Outcome:
    """seconds: from the first creation until the last pod ran of those that did. p99: seconds of one pod.

    rounds: how often a claim was sent to a node, at most. failed: CreateVolume calls. rescheduled: claims that an agent
    of ours sent back. stuck: pods that never ran.
    """

    count: int
    seconds: float
    p99: float
    rounds: int
    stuck: int
    failed: float
    rescheduled: float

    @property
    def rate(self) -> float:
        """Pods a second."""
        return (self.count - self.stuck) / self.seconds


class Load:
    """count pods named NAME-0 and so on, each with volumes of these sizes of the stack's class.

    patience: seconds without any further pod that runs, after which those that are left are taken for stuck.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        stack: Stack,
        name: str,
        count: int,
        *,
        sizes: Sequence[str] = ("1Gi",),
        patience: float = 120.0,
    ) -> None:
        self._client, self._informers, self._stack, self._patience = client, informers, stack, patience
        self._bodies = {f"{name}-{n}": pod(f"{name}-{n}", stack, sizes) for n in range(count)}
        self._created: dict[str, float] = {}
        self._ran: dict[str, float] = {}
        self._sent: Counter[str] = Counter()
        self._changed = asyncio.Event()
        informers.of(PODS).cache.on_change(self._pod)
        informers.of(CLAIMS).cache.on_change(self._claim)
        informers.of(VOLUMES).cache.on_change(lambda old, new: self._changed.set())

    def _pod(self, old: Pod | None, new: Pod | None) -> None:
        self._changed.set()
        if new is None or new.status.phase != "Running":
            return
        name = new.metadata.name
        if name in self._created:
            self._ran.setdefault(name, time.monotonic())

    def _claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        self._changed.set()
        if new is not None and (node := _node(new)) and not (old is not None and _node(old) == node):
            self._sent[new.metadata.uid] += 1

    async def run(self, *, pace: float = 0.0) -> Outcome:
        """Make them and wait until they run. pace: pods a second, 0 for as fast as it goes."""
        failed, rescheduled = self._stack.failed(), self._stack.rescheduled()
        self._sent.clear()
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            slots = asyncio.Semaphore(WRITERS)
            for number, name in enumerate(self._bodies):
                await asyncio.sleep(began + number / pace - time.monotonic() if pace else 0)
                tasks.create_task(self._create(name, slots))
        await self._settle()
        waits = sorted(ran - self._created[name] for name, ran in self._ran.items())
        return Outcome(
            count=len(self._bodies),
            seconds=max(self._ran.values(), default=time.monotonic()) - began,
            p99=statistics.quantiles(waits, n=100, method="inclusive")[98] if len(waits) > 1 else 0.0,
            rounds=max(self._sent.values(), default=0),
            stuck=len(self._bodies) - len(self._ran),
            failed=self._stack.failed() - failed,
            rescheduled=self._stack.rescheduled() - rescheduled,
        )

    async def _create(self, name: str, slots: asyncio.Semaphore) -> None:
        async with slots:
            self._created[name] = time.monotonic()
            await self._client.create(PODS, self._bodies[name], NAMESPACE)

    async def _settle(self) -> None:
        known = -1
        while len(self._ran) < len(self._bodies) and known != len(self._ran):
            known = len(self._ran)
            await self._until(lambda: len(self._ran) == len(self._bodies), self._patience)

    async def remove(self) -> None:
        """Delete all pods at once and wait until they and their volumes are gone. Raises TimeoutError."""
        everything = Request("DELETE", PODS.path(NAMESPACE), {}, _AT_ONCE)
        async with asyncio.timeout(LIMIT):
            while not self._is_gone():
                with suppress(UnavailableError):  # it takes longer than an answer may
                    await self._client.transport.request(everything)
                await self._until(self._is_gone, self._patience)

    def _is_gone(self) -> bool:
        if any(self._informers.of(PODS).cache.get(f"{NAMESPACE}/{name}") for name in self._bodies):
            return False
        of_stack = self._stack.storage_class
        left = [*self._informers.of(CLAIMS).cache, *self._informers.of(VOLUMES).cache]
        return not any(obj.spec.storage_class_name == of_stack for obj in left)

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Until it holds or the time is over, looked at after changes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()


def _node(claim: PersistentVolumeClaim) -> str:
    return claim.metadata.annotations.get(names.SELECTED_NODE, "")
