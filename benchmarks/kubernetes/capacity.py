"""How soon the published capacity follows what was promised, and how often it rises, as a watcher sees it."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.figure import Figure
from benchmarks.kubernetes.plane import Plane
from benchmarks.kubernetes.pods import Pods
from benchmarks.kubernetes.stacks import Stack

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.kubernetes.client.informer import Informers

BURST = 50
_SETTLED = 2.5


class Watch:
    """Keeps when claims were sent to a node, and when the capacity of the class fell or rose (monotonic seconds)."""

    def __init__(self, informers: Informers, storage_class: str) -> None:
        self._class = storage_class
        self.sent: list[float] = []
        self.fell: list[float] = []
        self.rose: list[float] = []
        informers.of(CLAIMS).cache.on_change(self._claim)
        informers.of(CAPACITIES).cache.on_change(self._capacity)

    def _claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        if new is not None and _sent(new) and not (old is not None and _sent(old)):
            self.sent.append(time.monotonic())

    def _capacity(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        if old is None or new is None or new.storage_class_name != self._class:
            return
        change = to_bytes(new.capacity or "0") - to_bytes(old.capacity or "0")
        if change:
            (self.rose if change > 0 else self.fell).append(time.monotonic())


def _sent(claim: PersistentVolumeClaim) -> bool:
    return names.SELECTED_NODE in claim.metadata.annotations


async def latency(cluster: Plane, informers: Informers, stack: Stack, count: int) -> list[Figure]:
    """One pod after the other, then some at once; on one node."""
    watch = Watch(informers, stack.storage_class)
    await informers.of(CAPACITIES).wait_synced()
    took = []
    for number in range(count):
        watch.sent.clear()
        watch.fell.clear()
        await Pods(cluster.client, informers, stack, f"capacity-{number}", 1).burst()
        took.append((watch.fell[0] - watch.sent[0]) * 1000)
        await asyncio.sleep(_SETTLED)
    watch.rose.clear()
    await Pods(cluster.client, informers, stack, "rising", BURST).burst()
    await asyncio.sleep(_SETTLED)
    seconds = watch.rose[-1] - watch.rose[0]
    return [
        Figure("a decrease is published after, p50", statistics.median(took), "ms", at_most=100),
        Figure("a decrease is published after, at most", max(took), "ms"),
        Figure("increases while pods go", (len(watch.rose) - 1) / seconds if seconds else 0, "a second", at_most=1.05),
    ]
