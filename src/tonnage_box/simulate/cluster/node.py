"""Simulated node of --full: its driver, over fake pools with delays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tonnage.base.aio.clock import Clock
from tonnage.csi.driver.driver import Driver
from tonnage.storage.pools.base.contract import PoolVolume, VolumeRequest
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.simulate.tally import Tally
from tonnage_box.simulate.workload.amounts import size
from tonnage_box.simulate.workload.workload import SimulatedNodes


class SimulatedNode:
    """Pools and driver of one node. delays: seconds for `create` and `delete` of a volume."""

    def __init__(
        self, node: str, spec: SimulatedNodes, clock: Clock, counts: Tally, delays: Mapping[str, float]
    ) -> None:
        self.node = node
        self.pools = {name: int(size(text)) for name, text in spec.pools.items()}
        self._made = {
            name: SlowPool(name, total, clock, counts, create=delays["create"], delete=delays["delete"])
            for name, total in self.pools.items()
        }
        default = next(iter(self.pools))
        self.driver = Driver(node, self._made, Path(f"/simulated/{node}"), default_pool=default, clock=clock)

    @property
    def free(self) -> dict[str, int]:
        """Pool -> bytes."""
        return {name: pool.fake.size - pool.used for name, pool in self._made.items()}


class SlowPool(FakePool):
    """A fake pool that delays and counts creation and deletion of volumes."""

    def __init__(self, name: str, total: int, clock: Clock, counts: Tally, *, create: float, delete: float) -> None:
        super().__init__(name, total, directories=False, clock=clock)
        self._seconds, self._counts = {"create": create, "delete": delete}, counts

    @property
    def used(self) -> int:
        """Bytes that volumes hold."""
        return self.fake.records.used

    async def create(self, request: VolumeRequest) -> PoolVolume:
        await self.work.clock.sleep(self._seconds["create"])
        before = self.used
        made = await super().create(request)
        self._counts.created += self.used > before
        self._counts.hold(self.used - before)
        return made

    async def delete(self, name: str, *, wait: bool = True) -> None:
        await self.work.clock.sleep(self._seconds["delete"])
        before = self.used
        await super().delete(name)
        self._counts.hold(self.used - before)
