"""Many pods at once, each with a volume: how long until all run, and how often a placement was wrong."""

from __future__ import annotations

import asyncio
import time

from benchmarks.box.box import ROOT, in_process
from benchmarks.figure import Figure

from tonnage.base.observe import metrics
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.cli.workloads import pod_with
from tonnage_box.cluster import Box

WRITERS = 16
LIMIT = 300.0


async def run() -> list[Figure]:
    """10 nodes of 100Gi: 1000 pods of 1Gi over memory, over image files, and 200 pods of 5Gi that fit exactly."""
    figures = await _case("1000 pods, memory pool", "fake,size=100Gi", 1000, "1Gi", seconds=10)
    if ROOT:
        pool = "image,size=100Gi,sparse=yes,overcommit=yes"
        figures += await _case("1000 pods, image pool", pool, 1000, "1Gi", seconds=30)
    return figures + await _case("200 pods that fit exactly", "fake,size=100Gi", 200, "5Gi", seconds=None)


async def _case(name: str, pool: str, count: int, size: str, *, seconds: float | None) -> list[Figure]:
    failed, rescheduled = _failures(), _withdrawals()
    async with in_process(nodes=10, pool=pool) as box:
        took = await all_running(box, count, size)
    return [
        Figure(f"{name}: until all run", took, "s", at_most=seconds or LIMIT),
        Figure(f"{name}: failed CreateVolume", _failures() - failed, "", at_most=0),
        Figure(f"{name}: rescheduled claims", _withdrawals() - rescheduled, "", at_most=0),
    ]


async def all_running(box: Box, count: int, size: str) -> float:
    """Seconds from the first create until every pod runs. Raises TimeoutError."""
    informers = Informers(box.client)
    pods, running, done = informers.of(PODS), set[str](), asyncio.Event()

    def changed(_old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.status.phase == "Running":
            running.add(new.key)
            if len(running) == count:
                done.set()

    pods.cache.on_change(changed)
    informers.start()
    await pods.wait_synced()
    began = time.monotonic()
    slots = asyncio.Semaphore(WRITERS)

    async def create(number: int) -> None:
        async with slots:
            await box.client.create(PODS, pod_with(f"p{number}", {"data": size}), "default")

    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(create(number))
        await done.wait()
    took = time.monotonic() - began
    await informers.close()
    return took


def _failures() -> float:
    return _sum("controller_persistentvolumeclaim_provision_failed_total")


def _withdrawals() -> float:
    return _sum("tonnage_claims_rescheduled_total")


def _sum(name: str, **labels: str) -> float:
    samples = [s for family in metrics.REGISTRY.collect() for s in family.samples if s.name == name]
    return sum(s.value for s in samples if all(s.labels.get(k) == v for k, v in labels.items()))
