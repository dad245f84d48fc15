"""tonnage on a real control plane, beside external-provisioner with csi-driver-host-path, beside a provisioner that
costs nothing, and beside pods without volumes. Ten nodes without kubelets; 300 pods with a 1Gi ephemeral volume each.

All take turns on the same control plane, once with the client limits that Kubernetes' parts have by default and once
with raised ones. That takes about ten minutes, so it is done once, whatever --runs says.
"""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchmarks.figure import Figure
from benchmarks.kubernetes import audit, stacks
from benchmarks.kubernetes.audit import Write
from benchmarks.kubernetes.capacity import latency
from benchmarks.kubernetes.nodes import kubelets
from benchmarks.kubernetes.plane import Plane, plane
from benchmarks.kubernetes.pods import Burst, Pods
from benchmarks.kubernetes.stacks import Stack
from cluster import programs

from tonnage.kubernetes.client.informer import Informers

MOST_RUNS = 1
NODES, PODS = 10, 300
BURST = 100
SINGLES = 10
Opened = Callable[[Plane, Informers], AbstractAsyncContextManager[Stack]]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Turn:
    """What one stack did. cpu: milliseconds of processor time a volume."""

    burst: Burst
    cpu: float
    failed: float
    rescheduled: float


async def run() -> list[Figure]:
    """All figures; none where Kubernetes or the Go programs cannot be had."""
    try:
        figures = await _limited(raised=False, order=(stacks.none, stacks.go, stacks.free, stacks.tonnage))
        order = (stacks.none, stacks.free, stacks.tonnage, stacks.go, stacks.free, stacks.tonnage)
        figures += await _limited(raised=True, order=order)
        return figures + await _one_node()
    except (programs.Missing, FileNotFoundError) as reason:
        print(f"kubernetes: {reason}", file=sys.stderr)
        return []


async def _limited(*, raised: bool, order: Sequence[Opened]) -> list[Figure]:
    """All stacks with one kind of client limits, in that order."""
    found: dict[str, list[Turn]] = {}
    async with plane(nodes=NODES, raised=raised, drivers=stacks.DRIVERS) as cluster:
        await stacks.install(cluster)
        async with kubelets(cluster.client) as informers:
            for number, opened in enumerate(order):
                async with opened(cluster, informers) as stack:
                    turn = await _turn(cluster, informers, stack, f"turn-{number}")
                    log.info("turn raised=%s stack=%s result=%s", raised, stack.name, turn)
                    found.setdefault(stack.name, []).append(turn)
    return _figures("raised limits" if raised else "default limits", found, raised=raised)


async def _turn(cluster: Plane, informers: Informers, stack: Stack, name: str) -> Turn:
    cpu = stack.cpu()
    burst = await Pods(cluster.client, informers, stack, name, PODS).burst()
    return Turn(burst, (stack.cpu() - cpu) / PODS * 1000, stack.failed(), stack.rescheduled())


def _figures(title: str, found: dict[str, list[Turn]], *, raised: bool) -> list[Figure]:
    def median(name: str, value: Callable[[Turn], float]) -> float:
        return statistics.median(value(turn) for turn in found[name])

    figures = []
    for what in ("created", "deleted"):
        rates = {name: median(name, lambda turn: float(getattr(turn.burst, what))) for name in found}  # noqa: B023
        figures += [Figure(f"{title}: {what}, {name}", value, "pods/s") for name, value in rates.items()]
        ours = rates["tonnage"]
        times, share = ours / rates["Go"], ours / rates["free"] * 100
        figures.append(
            Figure(f"{title}: {what}, of the Go stack's rate", times, "times", at_least=None if raised else 3)
        )
        figures.append(Figure(f"{title}: {what}, of the free one's", share, "%", at_least=95 if raised else None))
    for field in ("failed", "withdrawn"):
        value = sum(getattr(turn, field) for turn in found["tonnage"])
        figures.append(Figure(f"{title}: {field}, tonnage", value, "", at_most=0))
    figures.append(Figure(f"{title}: failed, Go", sum(turn.failed for turn in found["Go"]), ""))
    cpu, theirs = median("tonnage", lambda t: t.cpu), median("Go", lambda t: t.cpu)
    figures.append(Figure(f"{title}: CPU a volume, Go", theirs, "ms"))
    figures.append(Figure(f"{title}: CPU a volume, tonnage", cpu, "ms", at_most=theirs))
    return figures


async def _one_node() -> list[Figure]:
    """What a volume costs the API server, and the agent's memory: everything on one node."""
    async with plane(nodes=1, raised=True, drivers=stacks.DRIVERS) as cluster:
        await stacks.install(cluster)
        async with kubelets(cluster.client) as informers, stacks.tonnage(cluster, informers) as stack:
            await cluster.audit.writes()
            await Pods(cluster.client, informers, stack, "single", 1).burst()
            figures = _costs("one pod", await cluster.audit.writes(), 1, at_most=14)
            pods = Pods(cluster.client, informers, stack, "burst", BURST)
            await pods.create()
            rss, pss = stacks.memory(stack.pids[0])
            await pods.delete()
            figures += _costs(f"burst of {BURST}", await cluster.audit.writes(), BURST, at_most=12.5)
            figures.append(Figure(f"agent with {BURST} volumes: RSS", rss, "MiB", at_most=64))
            figures.append(Figure(f"agent with {BURST} volumes: PSS", pss, "MiB"))
            return figures + await latency(cluster, informers, stack, SINGLES)


def _costs(title: str, writes: Sequence[Write], count: int, *, at_most: float) -> list[Figure]:
    return [
        Figure(f"{title}: storage writes a pod", len(audit.storage(writes)) / count, "", at_most=at_most),
        Figure(f"{title}: rejected storage writes a pod", len(audit.rejected(writes)) / count, ""),
        Figure(f"{title}: statuses by the scheduler a pod", audit.lost_races(writes) / count, ""),
        Figure(f"{title}: storage Events a pod", audit.events(writes) / count, "", at_most=3),
    ]
