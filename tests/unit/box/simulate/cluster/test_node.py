"""A simulated node: pools that need time, and whose use is counted."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.base.errors import ExhaustedError
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage_box.simulate.cluster.node import SimulatedNode
from tonnage_box.simulate.tally import Tally
from tonnage_box.simulate.workload.workload import SimulatedNodes

DELAYS = {"create": 2.0, "delete": 3.0}


async def test_volumes_take_time_and_bytes(manual_clock: Any) -> None:
    tally, slept = Tally(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    manual_clock.sleep = sleep
    node = SimulatedNode("n", SimulatedNodes({"scratch": "10Gi", "fast": "1Gi"}), manual_clock, tally, DELAYS)
    pool, size = node._made["scratch"], 4 << 30
    for _ in range(2):  # the second call finds the volume
        await pool.create(VolumeRequest("v", size))
    assert (node.free, tally.created, tally.held) == ({"scratch": 6 << 30, "fast": 1 << 30}, 1, size)
    with pytest.raises(ExhaustedError):
        await pool.create(VolumeRequest("w", 7 << 30))
    await pool.delete("v")
    assert (node.free["scratch"], tally.held, tally.peak_held) == (10 << 30, 0, size)
    assert slept == [2.0, 2.0, 2.0, 3.0]
