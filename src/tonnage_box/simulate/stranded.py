"""Stranded storage: free bytes on nodes that fit no pod of any stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol

from tonnage.provisioning.capacity.pool_fit import fit_together
from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.framework.pod_info import Ask
from tonnage_box.simulate.cluster.events import Events
from tonnage_box.simulate.tally import Tally
from tonnage_box.simulate.workload import amounts
from tonnage_box.simulate.workload.workload import VolumeSpec, Workload

SAMPLES = 24
"""How often a run looks."""
_MOST_NODES, _DRAWS = 1000, 101
Needs = tuple[tuple[str, int], ...]


class NodePools(Protocol):
    """A node with its pools (name -> bytes) and their free bytes."""

    node: str
    pools: dict[str, int]

    @property
    def free(self) -> Mapping[str, int]:
        """Pool -> bytes."""


class Stranded:
    """Samples all nodes, or a thousand of them, a few times a run. A stream's pod has volumes of median size."""

    def __init__(self, cluster: Cluster, workload: Workload, asks: Sequence[Ask], agents: Iterable[NodePools]) -> None:
        every = list(agents)
        self._cluster, self._agents = cluster, every[:: -(-len(every) // _MOST_NODES)]
        self._pods = [(ask, _median(stream.volumes)) for ask, stream in zip(asks, workload.streams, strict=True)]

    def plan(self, events: Events, tally: Tally, until: float) -> None:
        """Plan samples at equal distances until then."""
        for number in range(1, SAMPLES + 1):
            events.at(until * number / SAMPLES, partial(self.sample, tally))

    def sample(self, tally: Tally) -> None:
        """Take a sample now."""
        total_bytes = stranded = 0
        for agent in self._agents:
            total_bytes += sum(agent.pools.values())
            if not self._takes_any(agent.node):
                stranded += sum(agent.free.values())
        tally.stranded.append(stranded / max(1, total_bytes))

    def _takes_any(self, node: str) -> bool:
        columns, offers = self._cluster.columns, self._cluster.published.on(node)
        slot = columns.slots[node]
        return any(columns.has_capacity(slot, ask.demand) and fit_together(offers, needs) for ask, needs in self._pods)


def _median(volumes: Sequence[VolumeSpec]) -> Needs:
    """(class, bytes) of a pod's volumes, largest first."""
    needs = []
    for volume in volumes:
        draw, random = amounts.distribution(volume.size, amounts.size), Random(0)
        needs.append((volume.storage_class, int(sorted(draw(random) for _ in range(_DRAWS))[_DRAWS // 2])))
    return tuple(sorted(needs, key=lambda need: -need[1]))
