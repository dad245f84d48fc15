"""GetCapacity results of a node: read when something happened, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.node.agent import NodeAgent
from tonnage.node.capacity import poller
from tonnage.provisioning.claims.node_scope import CapacitySource
from tonnage_box.testing.objects import MakeClass
from tonnage_box.testing.wait import Eventually

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


async def test_freed_bytes_are_read_at_once_while_a_volume_is_created(
    make_node: Callable[..., Any], eventually: Eventually
) -> None:
    node = await make_node("4Gi")
    (agent,) = node.agents
    assert await eventually(lambda: _answers(agent, 4 * GIB))
    driver = agent.drivers.get(names.DRIVER)
    assert driver is not None
    made = await driver.client.create_volume("pvc-other", GIB, [VolumeCapability()])
    agent.readings.want(names.DRIVER)
    assert await eventually(lambda: _answers(agent, 3 * GIB))
    agent.ledger.see("slow", _source(agent), GIB, attempt="", version=1, now=0.0)
    agent.ledger.start("slow")  # a CreateVolume that does not end

    order: list[str] = []
    agent.readings.on_reading(lambda: order.append("reading"))
    await driver.client.delete_volume(made.id)
    asyncio.get_running_loop().call_later(poller.QUIET / 2, order.append, "half of the wait for creations")
    agent.readings.want(names.DRIVER, freed=True)

    assert await eventually(lambda: _answers(agent, 3 * GIB))  # all but what the other may have taken
    assert order[0] == "reading"


async def _answers(agent: NodeAgent, size: int) -> bool:
    return bool(agent.drivers.get(names.DRIVER)) and _free(agent) == size


async def test_the_answer_for_a_class_is_not_taken_for_its_replacement(
    make_node: Callable[..., Any], make_class: MakeClass, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes when the class is gone: its successor of the same name would seem to be full."""
    node = await make_node("4Gi")
    (agent,) = node.agents
    assert await eventually(lambda: _answers(agent, 4 * GIB))
    driver, asked, answered = agent.drivers.get(names.DRIVER), asyncio.Event(), asyncio.Event()
    assert driver is not None
    ask = driver.client.get_capacity

    async def slow(*arguments: Any, **more: Any) -> Any:
        asked.set()
        await answered.wait()
        return await ask(*arguments, **more)

    monkeypatch.setattr(driver.client, "get_capacity", slow)
    source = CapacitySource(names.DRIVER, "wrong", f"pool/{node.pool.name}")
    read: list[int] = []

    def note(about: CapacitySource, _: int, available: int, *__: Any, **___: Any) -> None:
        if about == source:
            read.append(available)

    monkeypatch.setattr(agent.ledger, "read", note)
    await make_class("wrong", parameters={f"{names.CSI_PREFIX}what": "x"})
    await asked.wait()
    await node.client.delete(kinds.STORAGE_CLASSES, "wrong")
    await make_class("wrong")

    async def is_seen() -> bool:
        found = agent.readings.sources(driver).get(source)
        return found is not None and not found.parameters

    assert await eventually(is_seen)
    answered.set()

    async def is_read() -> bool:
        return bool(read)

    assert await eventually(is_read)
    assert read[0] == 4 * GIB
