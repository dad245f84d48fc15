"""GetCapacity results of a node: read when something happened, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tonnage.api import names
from tonnage.claims.node_scope import CapacitySource
from tonnage.csi.client.types import VolumeCapability
from tonnage.node.agent import NodeAgent
from tonnage.testing.wait import Eventually

GIB = 1 << 30


def _source(agent: NodeAgent) -> CapacitySource:
    driver = agent.drivers.get(names.DRIVER)
    assert driver is not None
    (source,) = agent.readings.sources(driver)
    return source


def _free(agent: NodeAgent) -> int:
    room = agent.ledger.capacity(_source(agent))
    return room.available if room is not None else -1


async def test_a_new_reading_follows_only_a_wish(make_node: Callable[..., Any], eventually: Eventually) -> None:
    node = await make_node("4Gi")
    (agent,) = node.agents

    async def read(size: int) -> bool:
        return bool(agent.drivers.get(names.DRIVER)) and _free(agent) == size

    assert await eventually(lambda: read(4 * GIB))
    rounds: list[None] = []
    agent.readings.on_reading(lambda: rounds.append(None))
    driver = agent.drivers.get(names.DRIVER)
    assert driver is not None
    await driver.client.create_volume("pvc-other", GIB, [VolumeCapability()])
    assert not rounds
    agent.readings.want(names.DRIVER)
    assert await eventually(lambda: read(3 * GIB))
    assert rounds
    await agent.readings.first(driver)  # was read: returns at once
