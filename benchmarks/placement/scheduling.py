"""The rates of schedulers on many nodes: without volumes, with a capacity object a node, with one for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.figure import Figure
from benchmarks.placement.nodes import Field, field

from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.client.informer import Informers

_SHARE = 1 / 1.3


@dataclass(frozen=True)
class _Size:
    """nodes. pods: of turns that are quick; slow: of kube-scheduler's with a capacity object a node."""

    nodes: int
    pods: int
    slow: int


async def thousand(*, quick: bool) -> list[Figure]:
    """1,000 nodes that are only objects, each with a capacity object; late-binding pods, a provisioner for nothing."""
    return await _rates(_Size(1000, 200, 30) if quick else _Size(1000, 500, 200), ours=100, tiers=8)


async def five_thousand(*, quick: bool) -> list[Figure]:
    """The same with 5,000 nodes."""
    return await _rates(_Size(5000, 100, 8) if quick else _Size(5000, 500, 60), ours=80, tiers=25)


async def _rates(size: _Size, *, ours: float, tiers: float) -> list[Figure]:
    async with field(size.nodes) as cluster:
        informers = Informers(cluster.client)
        made = Field(cluster, informers)
        informers.start()
        try:
            await informers.of(PODS).wait_synced()
            return await _turns(made, size, ours=ours, tiers=tiers)
        finally:
            await informers.close()


async def _turns(made: Field, size: _Size, *, ours: float, tiers: float) -> list[Figure]:
    stock_bare = await made.rate(size.pods, ours=False, volumes=False)
    our_bare = await made.rate(size.pods, ours=True, volumes=False)
    await made.publish_exact()
    our_rate = await made.rate(size.pods, ours=True, volumes=True)
    stock = await made.rate(size.slow, ours=False, volumes=True)
    await made.publish_tiers()
    tiered = await made.rate(size.pods // 2, ours=False, volumes=True)
    return [
        Figure("our scheduler", our_rate, "pods/s", at_least=ours),
        Figure("our scheduler", our_rate, "pods/s", our_bare, "no volumes:", at_least=_SHARE),
        Figure("our scheduler", our_rate, "pods/s", stock, "stock:"),
        Figure("stock scheduler", stock, "pods/s", stock_bare, "no volumes:"),
        Figure("stock scheduler with tiers", tiered, "pods/s", stock, "without:", at_least=tiers),
    ]
