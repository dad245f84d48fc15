"""Reclaiming a volume through the driver: what it rejects, what it completes, and what it then rejects for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.csi.full_client import FullCsiClient

from tonnage.csi.client.types import AccessMode, ContentSource, ReclaimState, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.errors import Code, CsiError
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30
USE = VolumeCapability(AccessMode.SINGLE_NODE_WRITER)
WHY = "its pod has finished"
Rejected = Callable[..., Awaitable[CsiError]]


@pytest.fixture
async def volume(client: FullCsiClient) -> str:
    return (await client.create_volume("v", GIB, [USE])).id


async def test_reclaimed_volume_is_rejected_everywhere_until_it_is_deleted(
    client: FullCsiClient, volume: str, pool: FakePool, folder: Path, rejected: Rejected
) -> None:
    assert await client.reclaim_volume(volume) == ReclaimState("")
    assert await client.reclaim_volume(volume, WHY) == ReclaimState(WHY)
    assert (await pool.list(), (await pool.capacity()).free) == ([], 100 * GIB)
    assert await client.reclaim_volume(volume) == ReclaimState(WHY)
    assert await client.reclaim_volume(volume, "another reason") == ReclaimState(WHY), "the first stays"
    for call in (
        client.stage(volume, folder / "staging", USE),
        client.publish(volume, folder / "target", USE, staging=folder / "staging"),
        client.expand_volume(volume, 2 * GIB),
        client.create_snapshot("s", volume),
        client.create_volume("copy", GIB, [USE], source=ContentSource(volume_id=volume)),
    ):
        await rejected(call, Code.FAILED_PRECONDITION, WHY)
    await client.delete_volume(volume)
    await client.delete_volume(volume)
    assert (await client.create_volume("v", GIB, [USE])).id == volume


async def test_volume_in_use_stays(client: FullCsiClient, volume: str, folder: Path, rejected: Rejected) -> None:
    await client.stage(volume, folder / "staging", USE)
    assert await client.reclaim_volume(volume) == ReclaimState("", in_use=True)
    await rejected(client.reclaim_volume(volume, WHY), Code.FAILED_PRECONDITION, "is in use")
    await client.unstage(volume, folder / "staging")
    assert (await client.reclaim_volume(volume, WHY)).why == WHY


async def test_a_copy_that_was_made_before_is_found_again(client: FullCsiClient, volume: str) -> None:
    copy = await client.create_volume("copy", GIB, [USE], source=ContentSource(volume_id=volume))
    await client.reclaim_volume(volume, WHY)
    assert await client.create_volume("copy", GIB, [USE], source=ContentSource(volume_id=volume)) == copy


async def test_unknown_volumes(client: FullCsiClient, rejected: Rejected) -> None:
    await rejected(client.reclaim_volume("default/other", WHY), Code.NOT_FOUND)
    await rejected(client.reclaim_volume("lost/v", WHY), Code.UNAVAILABLE, "pool 'lost' is not served")
    await rejected(client.reclaim_volume("", WHY), Code.INVALID_ARGUMENT, "volume_id is missing")
    await rejected(client.reclaim_volume("default/../v", WHY), Code.INVALID_ARGUMENT)


async def test_killed_between_the_mark_and_the_deletion(
    client: FullCsiClient, volume: str, driver: Driver, pool: FakePool, folder: Path, rejected: Rejected
) -> None:
    """From the mark on no pod gets the volume, and the next call completes the deletion."""
    driver.reclaimed.add("default", "v", WHY)
    await rejected(client.stage(volume, folder / "staging", USE), Code.FAILED_PRECONDITION, WHY)
    assert [found.name for found in await pool.list()] == ["v"]
    assert (await client.reclaim_volume(volume)).why == WHY
    assert await pool.list() == []


async def test_a_power_cut_that_lost_the_text_of_the_mark(
    client: FullCsiClient, volume: str, driver: Driver, rejected: Rejected, folder: Path
) -> None:
    driver.reclaimed.add("default", "v", WHY)
    (driver.state / "reclaimed" / "default" / "v").write_bytes(b"")
    await rejected(client.stage(volume, folder / "staging", USE), Code.FAILED_PRECONDITION, "its pod has finished")


async def test_a_pod_that_mounts_at_the_same_moment(
    client: FullCsiClient, driver: Driver, pool: FakePool, folder: Path
) -> None:
    """Whichever call is first, the volume is either in use with its data, or reclaimed and not mounted."""
    for number in range(20):
        vid = (await client.create_volume(f"v{number}", GIB, [USE])).id
        stage, reclaim = client.stage(vid, folder / f"s{number}", USE), client.reclaim_volume(vid, WHY)
        calls: tuple[Awaitable[Any], Awaitable[Any]] = (stage, reclaim) if number % 2 else (reclaim, stage)
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(one, CsiError) for one in found) == 1, found
        is_mounted = bool(pool.fake.staged.get(f"v{number}"))
        assert is_mounted == (f"v{number}" in {kept.name for kept in await pool.list()})
        assert is_mounted != bool(driver.reclaimed.why("default", f"v{number}"))
