"""Volumes that grow by themselves: when the request is raised, how often the driver is asked, and what is told once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import ApiError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeUse
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
RULE = {names.AUTOGROW_AT: "10%", names.AUTOGROW_BY: "50%", names.AUTOGROW_MAX: "10Gi"}


@dataclass
class Disk:
    """What the driver says of the volume: its size is that of the fake volume. used: bytes; None: it is not staged."""

    node: FakeNode
    used: int | None = 0
    asked: list[str] = field(default_factory=list)

    async def use(self, volume_id: str, path: Path | str) -> VolumeUse:
        self.asked.append(str(path))
        (made,) = await self.node.pool.list()
        if self.used is None:
            raise CsiError(Code.NOT_FOUND, "nothing is there")
        return VolumeUse(made.size, self.used, made.size - self.used)


@pytest.fixture
async def node(make_class: MakeClass, make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually) -> FakeNode:
    """A node with 20Gi, of which the claim data has 4Gi."""
    await make_class("grows", allowVolumeExpansion=True, parameters=RULE)
    made = await make_node("20Gi")
    await make_claim("data", "4Gi", storageClassName="grows")
    await made.select("data")
    await eventually(lambda: made.is_bound("data"))
    return made


@pytest.fixture
def disk(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(node)

    async def use(self: CsiClient, volume_id: str, path: Path | str) -> VolumeUse:
        return await made.use(volume_id, path)

    monkeypatch.setattr(CsiClient, "volume_use", use)
    return made


async def _size(node: FakeNode) -> int:
    return to_bytes((await node.claim("data")).status.capacity["storage"])


async def _told(all_events: AllEvents, reason: str) -> list[str]:
    return [text for name, found, text in await all_events() if (name, found) == ("data", reason)]


async def test_it_grows_step_by_step_to_its_maximum(
    node: FakeNode, disk: Disk, eventually: Eventually, all_events: AllEvents
) -> None:
    await asyncio.sleep(600)
    assert await _size(node) == to_bytes("4Gi"), "it has enough"
    for used, size in (("3700Mi", "6Gi"), ("5600Mi", "9Gi"), ("8500Mi", "10Gi")):
        disk.used = to_bytes(used)

        async def has_grown(wanted: int = to_bytes(size)) -> bool:
            return await _size(node) == wanted

        await asyncio.sleep(61)
        await eventually(has_grown)
    raised = await _told(all_events, "Autogrow")
    assert raised[0] == "396Mi of 4Gi free: request raised from 4Gi to 6Gi, at most 10Gi"
    assert len(raised) == 3
    disk.used = to_bytes("9900Mi")
    await asyncio.sleep(3600)
    (text,) = await _told(all_events, "AutogrowLimit")
    assert "it has its maximum of 10Gi; remove data, or raise tonnage.dev/autogrow-max" in text


async def test_a_claim_raises_its_maximum(node: FakeNode, disk: Disk, eventually: Eventually) -> None:
    notes = {"metadata": {"annotations": {names.AUTOGROW_MAX: "12Gi", names.AUTOGROW_BY: "100%"}}}
    await node.client.patch(kinds.CLAIMS, "data", notes, "default")
    disk.used = to_bytes("4Gi")
    await asyncio.sleep(61)

    async def has_grown() -> bool:
        return await _size(node) == to_bytes("8Gi")

    await eventually(has_grown)


async def test_a_claim_switches_it_off(node: FakeNode, disk: Disk) -> None:
    await node.client.patch(kinds.CLAIMS, "data", {"metadata": {"annotations": {names.AUTOGROW_AT: "off"}}}, "default")
    disk.used = to_bytes("4Gi")
    await asyncio.sleep(600)
    assert await _size(node) == to_bytes("4Gi")


async def test_a_full_pool_is_told_once(
    node: FakeNode, disk: Disk, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    await make_claim("other", "15Gi", storageClassName="late")
    await node.select("other")
    await eventually(lambda: node.is_bound("other"))
    first = await node.pool.get(f"pvc-{(await node.claim('data')).metadata.uid}")

    async def use(volume_id: str, path: Path | str) -> VolumeUse:
        return VolumeUse(first.size, first.size, 0)

    disk.use = use  # type: ignore[method-assign]
    await asyncio.sleep(3600)
    (text,) = await _told(all_events, "VolumeResizeFailed")
    assert "has 1Gi free, 2Gi more needed" in text
    assert len(await _told(all_events, "Autogrow")) == 1
    await node.release("other")

    async def has_grown() -> bool:
        return await _size(node) > to_bytes("4Gi")

    await eventually(has_grown)


async def test_what_the_api_server_rejects_is_told_once(
    node: FakeNode, disk: Disk, monkeypatch: pytest.MonkeyPatch, all_events: AllEvents
) -> None:
    patch = node.client.patch

    async def rejected(kind: Any, name: str, body: Any, *args: Any, **options: Any) -> Any:
        if "resources" in body.get("spec", {}):
            raise ApiError("exceeded quota: all of it", code=403, reason="Forbidden")
        return await patch(kind, name, body, *args, **options)

    monkeypatch.setattr(node.client, "patch", rejected)
    disk.used = to_bytes("4Gi")
    await asyncio.sleep(3600)
    (text,) = await _told(all_events, "AutogrowFailed")
    assert text == "claim default/data: 0 of 4Gi free, not raised to 6Gi: exceeded quota: all of it"


async def test_the_driver_is_asked_seldom_while_nothing_is_written(node: FakeNode, disk: Disk) -> None:
    await asyncio.sleep(70)
    disk.asked.clear()
    await asyncio.sleep(600)
    assert 9 <= len(disk.asked) <= 11
    assert all(path.endswith("/globalmount") for path in disk.asked)


async def test_inodes_that_growth_does_not_add_raise_a_request_once(node: FakeNode, disk: Disk) -> None:
    """As on a pool whose volumes share the inodes of their host."""

    async def use(volume_id: str, path: Path | str) -> VolumeUse:
        (made,) = await node.pool.list()
        return VolumeUse(made.size, 0, made.size, 100, 99, 1)

    disk.use = use  # type: ignore[method-assign]
    await asyncio.sleep(3600)
    assert await _size(node) == to_bytes("6Gi")


async def test_a_step_begins_at_what_the_claim_has(
    make_class: MakeClass,
    make_node: MakeNode,
    make_claim: MakeClaim,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    all_events: AllEvents,
) -> None:
    """A file system has a least size, so a volume may be larger than requested."""
    await make_class("grows", allowVolumeExpansion=True, parameters=RULE)
    node = await make_node(pool=FakePool("scratch", to_bytes("20Gi"), smallest=to_bytes("6Gi"), directories=False))

    async def use(self: CsiClient, volume_id: str, path: Path | str) -> VolumeUse:
        (made,) = await node.pool.list()
        return VolumeUse(made.size, to_bytes("6Gi"), made.size - to_bytes("6Gi"))

    monkeypatch.setattr(CsiClient, "volume_use", use)
    await make_claim("data", "1Gi", storageClassName="grows")
    await node.select("data")
    await eventually(lambda: node.is_bound("data"))
    await asyncio.sleep(600)
    assert [text.split(": ")[1] for text in await _told(all_events, "Autogrow")] == [
        "request raised from 6Gi to 9Gi, at most 10Gi"
    ]


async def test_a_volume_that_is_not_staged_stays(node: FakeNode, disk: Disk) -> None:
    disk.used = None
    await asyncio.sleep(600)
    assert await _size(node) == to_bytes("4Gi")
    assert len(disk.asked) <= 18, "it is asked seldom: its pod may start tomorrow"


async def test_one_that_is_staged_soon_is_looked_at_soon(node: FakeNode, disk: Disk) -> None:
    """A pod stages its volume seconds after it was bound, and may fill it at once."""
    disk.used = None
    await asyncio.sleep(4)
    disk.used = to_bytes("4Gi")
    await asyncio.sleep(10)
    assert await _size(node) == to_bytes("6Gi")


async def test_a_class_without_a_maximum_is_rejected(
    make_class: MakeClass, make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    await make_class("wrong", parameters={names.AUTOGROW_AT: "10%"})
    node = await make_node("20Gi")
    await make_claim("data", "4Gi", storageClassName="wrong")
    await node.select("data")

    async def is_told() -> bool:
        return any("autogrow-max is missing" in text for text in await _told(all_events, "ProvisioningFailed"))

    await eventually(is_told)
