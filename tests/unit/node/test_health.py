"""Abnormal volumes are told on their claims once, and so is their end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import NotFoundError, UnavailableError
from tonnage.kubernetes.api import kinds
from tonnage.node.health import WELL
from tonnage.storage.pools.base.contract import PoolVolume, VolumeCondition
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
POLL = 60.0
LONG = 5 * POLL
HEALTH = ("VolumeConditionAbnormal", "VolumeConditionNormal", "VolumesAbnormal", "VolumesNormal")


class Sick(FakePool):
    """Volumes are as `faults` says, by name; list() fails while `down`, and leaves out `hidden`."""

    def __init__(self) -> None:
        super().__init__("scratch", 10 << 30, directories=False)
        self.faults: dict[str, str] = {}
        self.down = False
        self.hidden: set[str] = set()
        self.lists = 0

    async def condition(self, name: str, path: Path | None = None) -> VolumeCondition:
        if name in self.faults:
            return VolumeCondition(abnormal=True, message=self.faults[name])
        return await super().condition(name, path)

    async def list(self) -> list[PoolVolume]:
        self.lists += 1
        if self.down:
            raise UnavailableError("pool scratch is not open")
        return [volume for volume in await super().list() if volume.name not in self.hidden]

    async def get(self, name: str) -> PoolVolume:
        if self.down:
            raise UnavailableError("pool scratch is not open")
        if name in self.hidden:
            raise NotFoundError(f"volume {name} is not there")
        return await super().get(name)


class Ward:
    """A node with claims a and b."""

    def __init__(self, node: FakeNode, pool: Sick, events: AllEvents) -> None:
        self.node, self.pool, self._events = node, pool, events
        self.names: dict[str, str] = {}

    async def told(self) -> list[tuple[str, str, str]]:
        return sorted(event for event in await self._events() if event[1] in HEALTH)

    async def restart(self) -> None:
        await self.node.kill_agent()
        await self.node.start_agent(poll=POLL)
        await asyncio.sleep(LONG)


@pytest.fixture
async def ward(make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents) -> Ward:
    pool = Sick()
    node = await make_node(pool=pool, poll=POLL)
    found = Ward(node, pool, all_events)
    for name in ("a", "b"):
        await make_claim(name, "1Gi", storageClassName="late")
        await node.select(name)
    for name in ("a", "b"):
        await eventually(lambda name=name: node.is_bound(name))
        found.names[name] = (await node.claim(name)).spec.volume_name
    return found


async def test_a_fault_and_its_end_are_told_once_each_also_over_restarts(ward: Ward) -> None:
    await asyncio.sleep(LONG)
    assert await ward.told() == []
    ward.pool.faults[ward.names["a"]] = "its image is gone"
    await asyncio.sleep(LONG)
    node = "1 of 2 volumes of driver csi.tonnage.dev are abnormal, of claims default/a; see their Events"
    told = [("a", "VolumeConditionAbnormal", "its image is gone"), ("node-1", "VolumesAbnormal", node)]
    assert await ward.told() == told
    await ward.restart()
    await ward.restart()
    assert await ward.told() == told, "a restart repeats nothing"
    del ward.pool.faults[ward.names["a"]]
    await asyncio.sleep(LONG)
    ends = [
        ("a", "VolumeConditionNormal", WELL),
        ("node-1", "VolumesNormal", "all volumes of driver csi.tonnage.dev are well"),
    ]
    assert await ward.told() == sorted(told + ends)
    ward.pool.faults[ward.names["a"]] = "its image is gone"
    await asyncio.sleep(LONG)
    again = [event for event in await ward.told() if event[:2] == ("a", "VolumeConditionAbnormal")]
    assert len(again) == 2, "what comes back is told again"


async def test_the_events_are_on_the_claim(ward: Ward) -> None:
    ward.pool.faults[ward.names["b"]] = "x" * 2000
    await asyncio.sleep(LONG)
    events = (await ward.node.client.list(kinds.EVENTS)).items
    (event,) = [e for e in events if e.reason == "VolumeConditionAbnormal"]
    claim = await ward.node.claim("b")
    about = event.involved_object
    assert (about.kind, about.namespace, about.uid) == ("PersistentVolumeClaim", "default", claim.metadata.uid)
    assert event.type == "Warning"
    assert len(event.message) < 300


async def test_a_call_that_fails_tells_nothing(ward: Ward) -> None:
    ward.pool.faults[ward.names["a"]] = "bad"
    await asyncio.sleep(LONG)
    told = await ward.told()
    lists = ward.pool.lists

    async def fail(page: int = 0) -> None:
        raise UnavailableError("the driver is away")

    (driver,) = ward.node.agents[-1].drivers
    driver.client.list_conditions = fail  # type: ignore[assignment,method-assign]
    del ward.pool.faults[ward.names["a"]]
    await asyncio.sleep(LONG)
    assert await ward.told() == told
    assert ward.pool.lists == lists


@pytest.mark.parametrize(
    ("is_down", "text"), [(True, "pool scratch is not open"), (False, "volume {name} is not there")]
)
async def test_a_volume_that_is_missing_for_long_is_abnormal(ward: Ward, *, is_down: bool, text: str) -> None:
    name = ward.names["a"]
    ward.pool.down = is_down
    ward.pool.hidden = {name}
    await asyncio.sleep(1.5 * POLL)
    assert await ward.told() == [], "one list without it says nothing: it may be new"
    await asyncio.sleep(LONG)
    told = {claim: message for claim, reason, message in await ward.told() if reason == "VolumeConditionAbnormal"}
    assert text.format(name=name) in told["a"]
    ward.pool.down, ward.pool.hidden = False, set()
    await asyncio.sleep(LONG)
    assert ("a", "VolumeConditionNormal", WELL) in await ward.told()


async def test_without_an_interval_nothing_is_asked(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    pool = Sick()
    node = await make_node(pool=pool, poll=0)
    await make_claim("a", "1Gi", storageClassName="late")
    await node.select("a")
    await eventually(lambda: node.is_bound("a"))
    await asyncio.sleep(1)  # what it asks at its start
    lists = pool.lists
    await asyncio.sleep(100 * LONG)
    assert pool.lists == lists
