"""Stacks that take turns with the same load on one control plane, their pods placed by kube-scheduler or by ours."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace

from benchmarks.figure import Figure
from benchmarks.kubernetes import stacks
from benchmarks.kubernetes.nodes import kubelets
from benchmarks.kubernetes.plane import Plane, plane
from benchmarks.kubernetes.stacks import Stack
from benchmarks.placement.load import Load, Outcome
from cluster.processes import Failed, Processes, free_port

from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.informer import Informers

Opened = Callable[[Plane, Informers], AbstractAsyncContextManager[Stack]]
log = logging.getLogger(__name__)
_READY = 60.0
_LEADS = "tonnage_scheduler_leads 1.0"
MOST_ROUNDS = 3


@dataclass(frozen=True)
class Turn:
    """Whose turn it is, as tables say it. ours: whether our scheduler places the pods."""

    title: str
    opened: Opened
    ours: bool = False


BARE = Turn("stock scheduler, no volumes", stacks.none)
OURS_BARE = Turn("our scheduler, no volumes", stacks.none, ours=True)


def go(room: str = stacks.POOL) -> Turn:
    """The Go stack with the stock scheduler. room: of each node."""
    return Turn("Go", lambda plane, informers: stacks.go(plane, informers, room=room))


def tonnage(room: str = stacks.POOL, *, ours: bool) -> Turn:
    """Our agents, one process a node. room: of each node."""
    title = f"tonnage, {'our' if ours else 'stock'} scheduler"
    return Turn(title, lambda plane, informers: stacks.tonnage(plane, informers, room=room), ours=ours)


@dataclass(frozen=True)
class Work:
    """What each turn is to do. See Load for sizes and patience; pace: pods a second, 0 for as fast as it goes."""

    count: int
    sizes: Sequence[str] = ("1Gi",)
    pace: float = 0.0
    patience: float = 120.0


async def side_by_side(turns: Sequence[Turn], work: Work, *, nodes: int, raised: bool) -> Mapping[str, Outcome]:
    """What came of it, by the turn's title. Raises Missing, Failed, FileNotFoundError."""
    found = {}
    async with plane(nodes=nodes, raised=raised, drivers=stacks.DRIVERS) as cluster:
        await stacks.install(cluster)
        async with kubelets(cluster.client) as informers:
            for number, turn in enumerate(turns):
                found[turn.title] = await take(cluster, informers, turn, work, name=f"turn-{number}")
    return found


async def take(cluster: Plane, informers: Informers, turn: Turn, work: Work, *, name: str) -> Outcome:
    """One turn, from its stack's start to its end; nothing is left of it."""
    async with turn.opened(cluster, informers) as stack, _placed(cluster, stack, ours=turn.ours) as placed:
        load = Load(cluster.client, informers, placed, name, work.count, sizes=work.sizes, patience=work.patience)
        outcome = await load.run(pace=work.pace)
        log.info("turn title=%s outcome=%s", turn.title, outcome)
        await load.remove()
    return outcome


@asynccontextmanager
async def _placed(cluster: Plane, stack: Stack, *, ours: bool) -> AsyncIterator[Stack]:
    if not ours:
        yield stack
        return
    async with our_scheduler(cluster, names.SYSTEM_NAMESPACE):
        yield replace(stack, scheduler=names.SCHEDULER)


@asynccontextmanager
async def our_scheduler(cluster: Plane, namespace: str) -> AsyncIterator[int]:
    """`tonnage scheduler` from when it leads until its end; its pid. namespace: of its Lease. Raises Failed."""
    processes, port = Processes(cluster.folder.parent / "scheduler"), free_port()
    config = cluster.folder / "pki" / "admin.kubeconfig"
    pid = processes.start(
        "scheduler",
        [
            sys.executable, "-m", "tonnage", "scheduler", f"--kubeconfig={config}", f"--namespace={namespace}",
            f"--metrics=127.0.0.1:{port}", "--log-level=warning",
        ],
    )  # fmt: skip
    try:
        deadline = time.monotonic() + _READY
        while not await asyncio.to_thread(_leads, port):
            if processes.pid("scheduler") is None or time.monotonic() > deadline:
                raise Failed(f"tonnage scheduler does not lead: {processes.log('scheduler').read_text()[-3000:]}")
            await asyncio.sleep(0.1)
        yield pid
    finally:
        await asyncio.to_thread(processes.end, "scheduler")


def _leads(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return _LEADS in answer.read().decode()
    return False


def rows(turn: Turn, found: Mapping[str, Outcome], *, beside: Turn, promised: bool) -> list[Figure]:
    """What is told of one turn. beside: whose time stands beside it. promised: whether it is held to its goals."""
    outcome, who = found[turn.title], turn.title
    none = 0 if promised else None
    return [
        Figure(f"{who}: until all run", outcome.seconds, "s", found[beside.title].seconds, f"{beside.title}:"),
        Figure(f"{who}: stuck of {outcome.count} pods", outcome.stuck, at_most=none),
        Figure(f"{who}: failed CreateVolume", outcome.failed, at_most=none),
        Figure(f"{who}: claims withdrawn", outcome.rescheduled),
        Figure(f"{who}: rounds of a pod, at most", outcome.rounds, at_most=MOST_ROUNDS if promised else None),
        Figure(f"{who}: time to Running, p99", outcome.p99, "s"),
    ]
