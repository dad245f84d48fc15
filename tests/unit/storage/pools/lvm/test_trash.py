"""Trash of a volume group in memory: it counts as free, makes way, and is found again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_record
from tests.unit.storage.pools.lvm.group import EXTENT, Group

from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    HostError,
    InvalidError,
    OutOfRangeError,
    PreconditionError,
)
from tonnage.host import dm, filesystem
from tonnage.host.lvm import LogicalVolume
from tonnage.storage.pools.base.contract import PoolLimits, VolumeRequest
from tonnage.storage.pools.base.record import UNDELETE
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.thin_pool import LvmLimits
from tonnage.storage.pools.lvm.volumes import LogicalVolumes

pytestmark = pytest.mark.real
MI = 1024**2
DAY = {UNDELETE: "86400"}
THIN = "pool"


@pytest.fixture(autouse=True)
def _no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A raw block volume in memory has nothing that could be zeroed."""
    monkeypatch.setattr(LogicalVolumes, "_zero", lambda _self, _lv: None)


@pytest.fixture
async def pool(group: Group) -> AsyncIterator[Pool]:
    """4000Mi."""
    made = Pool("p", LvmBackend("p", "tonnage-unit-test", LvmLimits()))
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def thin(group: Group) -> AsyncIterator[Pool]:
    """A thin pool of 400Mi, with volumes that a class may have outside of it."""
    group.volumes[THIN] = LogicalVolume(
        THIN, 100 * EXTENT, (), "thin,pool", when_full="error", zeroes=True, active=True
    )
    made = Pool("p", LvmBackend("p", "tonnage-unit-test", LvmLimits(thin=THIN)))
    await made.open()
    yield made
    await made.close()


async def _create(pool: Pool, name: str, mebibytes: int, **parameters: str) -> None:
    await pool.create(VolumeRequest(name, mebibytes * MI, block=True, owner=DAY, parameters=parameters))


async def _discard(pool: Pool, *names: str) -> None:
    for name in names:
        assert await pool.trash.discard(name)
        await asyncio.sleep(0.002)


async def _names(pool: Pool) -> tuple[list[str], list[str]]:
    return [v.name for v in await pool.list()], [v.name for v in await pool.trash.list()]


async def _free(pool: Pool, **parameters: str) -> int:
    return (await pool.capacity_for(parameters, block=True)).largest // MI


async def test_a_life(pool: Pool, group: Group) -> None:
    await _create(pool, "v", 1000)
    await _discard(pool, "v")
    assert (await _names(pool), await _free(pool), (await pool.capacity()).used) == (([], ["v"]), 4000, 0)
    await pool.close()
    await pool.open()
    assert (await _names(pool), await _free(pool), (await pool.capacity()).used) == (([], ["v"]), 4000, 0)
    before = list(group.volumes)
    await pool.trash.restore("v")
    assert (await _names(pool), await _free(pool), list(group.volumes)) == ((["v"], []), 3000, before)
    await _discard(pool, "v")
    await pool.trash.evict("v")
    assert (await _names(pool), await _free(pool), group.volumes) == (([], []), 4000, {})


async def test_the_oldest_goes_first_and_only_as_many_as_are_needed(pool: Pool) -> None:
    for name in ("c", "a", "b"):
        await _create(pool, name, 1200)
    await _discard(pool, "b", "c", "a")
    await _create(pool, "new", 400)
    assert await _names(pool) == (["new"], ["b", "c", "a"]), "it fitted"
    await _create(pool, "more", 1000)
    assert await _names(pool) == (["more", "new"], ["c", "a"])
    await pool.growth.expand("new", 1400 * MI)
    assert await _names(pool) == (["more", "new"], ["a"])
    await _create(pool, "all", 1600)
    assert await _names(pool) == (["all", "more", "new"], [])


async def test_file_systems_take_more_than_their_size_and_what_is_published_fits(pool: Pool) -> None:
    for number in range(10):
        await pool.create(VolumeRequest(f"v{number}", 350 * MI, owner=DAY))
    await _discard(pool, *(f"v{number}" for number in range(10)))
    await pool.create(VolumeRequest("new", (await pool.capacity()).largest))
    assert await _names(pool) == (["new"], [])


async def test_a_limit_of_the_pool_counts_trash_until_its_bytes_are_needed(pool: Pool) -> None:
    pool.rebound(PoolLimits(size=1000 * MI))
    await _create(pool, "old", 600)
    await _discard(pool, "old")
    assert (await _free(pool), (await pool.capacity()).used) == (1000, 0)
    await _create(pool, "a", 400)
    assert await _names(pool) == (["a"], ["old"])
    await _create(pool, "b", 500)
    assert (await _names(pool), await _free(pool)) == ((["a", "b"], []), 100)


async def test_nothing_is_restored_above_the_limit(pool: Pool) -> None:
    await _create(pool, "old", 600)
    await _discard(pool, "old")
    pool.rebound(PoolLimits(size=500 * MI))
    with pytest.raises(ExhaustedError, match="volume old cannot be restored"):
        await pool.trash.restore("old")
    assert await _names(pool) == ([], ["old"])


async def test_a_volume_with_thick_snapshots_does_not_stay(pool: Pool, group: Group) -> None:
    await _create(pool, "v", 100)
    group.volumes["s"] = LogicalVolume("s", EXTENT, (), "linear", origin="v")
    pool.backend.table.account.distrust()  # type: ignore[attr-defined]
    assert not await pool.trash.discard("v")
    assert await _names(pool) == (["v"], [])


async def test_a_deletion_that_fails_leaves_trash_that_counts_as_free(
    pool: Pool, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _create(pool, "v", 1000)
    await _discard(pool, "v")

    def failing(*words: str) -> None:
        raise HostError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("tonnage.host.lvm.lvm", failing)
        with pytest.raises(HostError):
            await pool.trash.evict("v")
    assert (await _names(pool), await _free(pool), (await pool.capacity()).used) == (([], ["v"]), 4000, 0)


async def test_damaged_trash_is_left_alone(pool: Pool, group: Group) -> None:
    await _create(pool, "v", 1000)
    await _discard(pool, "v")
    found = group.volumes["v"]
    group.volumes["v"] = replace(found, tags=tuple(tag.replace("size=", "size=1") for tag in found.tags))
    await pool.close()
    await pool.open()
    assert (await _names(pool), list(await pool.damaged()), await _free(pool)) == (([], []), ["v"], 3000)
    with pytest.raises(ExhaustedError):
        await _create(pool, "new", 3500)
    assert list(group.volumes) == ["v"]


async def test_a_full_table_of_volumes_evicts(pool: Pool, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    await _create(pool, "old", 10)
    await _discard(pool, "old")
    run = group.run

    def limited(*words: str) -> None:
        if words[0] == "lvcreate" and group.volumes:
            raise ExhaustedError("Maximum number of logical volumes (1) reached in volume group")
        run(*words)

    monkeypatch.setattr("tonnage.host.lvm.lvm", limited)
    await pool.create(VolumeRequest("new", 10 * MI))
    assert await _names(pool) == (["new"], [])


class _Fullness:
    """Of the thin pool, as the kernel says it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data: float, metadata: float = 0.1) -> None:
        self.data, self.metadata = data, metadata
        monkeypatch.setattr(dm, "thin_pool", lambda _name: dm.ThinPool(self.data, self.metadata, writable=True))


def _thin(group: Group, name: str) -> None:
    """Let LVM report a volume as thin, as the group in memory does not."""
    group.volumes[name] = replace(group.volumes[name], pool=THIN)


async def _thin_trash(pool: Pool, group: Group, name: str, mebibytes: int) -> None:
    await _create(pool, name, mebibytes, thin="false")
    _thin(group, name)
    pool.backend.table.account.distrust()  # type: ignore[attr-defined]
    await _discard(pool, name)


async def test_thin_and_thick_trash_count_where_they_are(
    thin: Pool, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Fullness(monkeypatch, 0.5)
    assert (await _free(thin), await _free(thin, thin="false")) == (400, 3600)
    await _create(thin, "thick", 600, thin="false")
    await _discard(thin, "thick")
    assert (await _free(thin), await _free(thin, thin="false")) == (400, 3600)
    await _create(thin, "live", 100, thin="false")
    _thin(group, "live")
    await _thin_trash(thin, group, "old", 200)
    assert await _free(thin) == 300
    await thin.trash.restore("old")
    assert await _free(thin) == 100
    await thin.trash.restore("thick")
    assert await _free(thin) == 100


async def test_only_what_frees_the_bytes_that_are_needed_makes_way(
    thin: Pool, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Fullness(monkeypatch, 0.5)
    await _thin_trash(thin, group, "thin-old", 200)
    for name in ("a", "b"):
        await _create(thin, name, 1600, thin="false")
    await _discard(thin, "a", "b")
    await _thin_trash(thin, group, "thin-new", 200)
    await _create(thin, "thick", 1500, thin="false")
    assert await _names(thin) == (["thick"], ["thin-old", "b", "thin-new"])
    await thin.growth.expand("thick", 3000 * MI)
    assert await _names(thin) == (["thick"], ["thin-old", "thin-new"])


@pytest.mark.parametrize(
    ("live", "metadata", "free"),
    [
        pytest.param(100, 0.1, 300, id="what is left makes it usable again"),
        pytest.param(384, 0.1, 0, id="what is left may still fill it"),
        pytest.param(100, 0.95, 0, id="nobody knows whose metadata they are"),
    ],
)
async def test_trash_that_fills_its_thin_pool(
    thin: Pool, group: Group, monkeypatch: pytest.MonkeyPatch, live: int, metadata: float, free: int
) -> None:
    full = _Fullness(monkeypatch, 0.97, metadata)
    await _create(thin, "live", live, thin="false")
    _thin(group, "live")
    await _thin_trash(thin, group, "old", 16)
    if free:
        await _thin_trash(thin, group, "older", 200)
    capacity = await thin.capacity(block=True)
    assert (capacity.largest // MI, capacity.trash) == (free, capacity.free), "nothing fits before it makes way"
    await thin.trash.restore("old")
    full.data = 0.5
    assert (await _names(thin))[0] == ["live", "old"]


async def test_pools_that_keep_none(group: Group) -> None:
    with pytest.raises(InvalidError, match="with overcommit= its thin pool may get full"):
        make(parse("lvm:vg0,thin=pool,overcommit=2")).trash.check_undelete(DAY, {})
    for text in ("lvm:vg0", "lvm:vg0,thin=pool", "pmem:region0,mode=lvm", "pmem:region0"):
        make(parse(text)).trash.check_undelete(DAY, {})


async def test_what_can_never_be_made_evicts_nothing(pool: Pool, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    await _create(pool, "old", 2000)
    await pool.trash.discard("old")
    await pool.create(VolumeRequest("used", 100 * MI, fstype="ext4"))
    pool.backend.write(replace_record(pool.backend.record("used"), state="formatted"))
    group.volumes["theirs"] = LogicalVolume("theirs", 100 * EXTENT, (), "linear")
    pool.backend.table.account.read()  # type: ignore[attr-defined]
    monkeypatch.setattr(filesystem, "may_grow_ext4", lambda: False)
    for call, error in (
        (lambda: _create(pool, "theirs", 3000), AlreadyExistsError),
        (lambda: _create(pool, "new", 5000), OutOfRangeError),
        (lambda: _create(pool, "old", 5000), OutOfRangeError),
        (lambda: pool.growth.expand("used", 3000 * MI), PreconditionError),
    ):
        with pytest.raises(error):
            await call()
        assert [volume.name for volume in await pool.trash.list()] == ["old"]
