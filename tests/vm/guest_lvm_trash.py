"""Trash of LVM pools on a real device-mapper. Run by test_uml.py inside user-mode Linux, on two disks of 2Gi."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.vm.lvm_bench import EXTENT, MI, THIN, Bench, bench_in, flood, group_free, peek, poke, report

from tonnage.base.errors import ExhaustedError, NotFoundError
from tonnage.host import dm, lvm
from tonnage.storage.pools.base.contract import SnapshotRequest, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.record import UNDELETE
from tonnage.storage.pools.core import group
from tonnage.storage.pools.core.group import MemberRequest
from tonnage.storage.pools.core.pool import Pool

DAY = {UNDELETE: "86400"}
LAYOUTS = ["", THIN]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench_in(tmp_path) as made:
        yield made


async def _names(pool: Pool) -> tuple[list[str], list[str]]:
    return [v.name for v in await pool.list()], [v.name for v in await pool.trash.list()]


async def _free(pool: Pool, **parameters: str) -> int:
    return (await pool.capacity_for(parameters, block=True)).largest


async def _discard(pool: Pool, *names: str) -> None:
    for name in names:
        assert await pool.trash.discard(name)
        await asyncio.sleep(0.02)


async def _block(pool: Pool, name: str, size: int, **parameters: str) -> None:
    await pool.create(VolumeRequest(name, size, block=True, owner=DAY, parameters=parameters))


@pytest.mark.parametrize("options", LAYOUTS)
async def test_trash_survives_a_restart_and_is_restored_with_its_content(bench: Bench, options: str) -> None:
    pool, staging = await bench.pool(options), bench.folder / "s"
    free = await _free(pool)
    await pool.create(VolumeRequest("v", 100 * MI, owner=DAY))
    await pool.stage("v", staging)
    (staging / "file").write_text("content")
    await pool.unstage("v", staging)
    taken = await _free(pool)
    await _discard(pool, "v")
    for _ in range(2):
        assert (await _names(pool), await _free(pool)) == (([], ["v"]), free)
        pool = await bench.pool(options)
    with pytest.raises(NotFoundError, match="tonnage volumes restore"):
        await pool.stage("v", staging)
    await pool.trash.restore("v")
    assert (await _names(pool), await _free(pool)) == ((["v"], []), taken)
    await pool.stage("v", staging)
    assert (staging / "file").read_text() == "content"
    await pool.unstage("v", staging)


@pytest.mark.parametrize("options", LAYOUTS)
async def test_the_oldest_makes_way_and_only_as_many_as_are_needed(bench: Bench, options: str) -> None:
    pool = await bench.pool(options)
    whole = await _free(pool)
    fourth = whole // 4 // EXTENT * EXTENT
    for name in ("c", "a", "b"):
        await _block(pool, name, fourth)
    await _discard(pool, "b", "c", "a")
    await _block(pool, "new", fourth)
    assert await _names(pool) == (["new"], ["b", "c", "a"]), "it fitted"
    await _block(pool, "more", whole - 3 * fourth + EXTENT)
    assert await _names(pool) == (["more", "new"], ["a"])
    await pool.growth.expand("new", await _free(pool) + fourth)
    assert (await _names(pool), await _free(pool)) == ((["more", "new"], []), 0)
    with pytest.raises(ExhaustedError):
        await _block(pool, "none", EXTENT)


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
@pytest.mark.parametrize("options", LAYOUTS)
async def test_what_is_published_fits(bench: Bench, options: str, fstype: str) -> None:
    pool = await bench.pool(options)
    for name in ("a", "b"):
        await pool.create(VolumeRequest(name, 120 * MI, owner=DAY))
    await _discard(pool, "a", "b")
    largest = (await pool.capacity(fstype=fstype)).largest
    await pool.create(VolumeRequest("new", largest, fstype=fstype))
    assert await _names(pool) == (["new"], [])


@pytest.mark.parametrize("layout", ["linear", "striped", "raid1"])
async def test_trash_of_every_layout_counts_for_every_layout(bench: Bench, layout: str) -> None:
    pool = await bench.pool()
    whole = await _free(pool, type=layout)
    await _block(pool, "striped", 200 * MI, type="striped")
    await _block(pool, "mirrored", 200 * MI, type="raid1")
    await _block(pool, "linear", 1200 * MI)
    await _discard(pool, "striped", "mirrored", "linear")
    assert await _free(pool, type=layout) == whole
    await _block(pool, "small", 40 * MI, type=layout)
    assert await _names(pool) == (["small"], ["striped", "mirrored", "linear"]), "it fitted"
    await _block(pool, "new", await _free(pool, type=layout), type=layout)
    assert await _names(pool) == (["new", "small"], [])
    if layout == "linear":
        assert group_free() == 0


async def test_a_thick_volume_with_snapshots_does_not_stay(bench: Bench) -> None:
    pool = await bench.pool()
    await _block(pool, "v", 40 * MI)
    await pool.stage("v", bench.folder / "s")
    poke(bench.folder / "s" / "device", b"content")
    await pool.unstage("v", bench.folder / "s")
    await pool.snapshots.create("s", "v")
    assert not await pool.trash.discard("v")
    await pool.delete("v")
    source = VolumeOrigin(snapshot="s")
    await pool.create(VolumeRequest("copy", 40 * MI, block=True, source=source))
    await pool.stage("copy", bench.folder / "s")
    assert peek(bench.folder / "s" / "device", 7) == b"content"
    await pool.unstage("copy", bench.folder / "s")
    await pool.snapshots.delete("s")
    await pool.delete("copy")
    assert report() == {}


async def test_thin_trash_with_snapshots_stays_and_they_outlive_it(bench: Bench) -> None:
    pool, staging = await bench.pool(THIN), bench.folder / "s"
    await _block(pool, "v", 100 * MI)
    await pool.stage("v", staging)
    poke(staging / "device", b"content")
    await pool.unstage("v", staging)
    await pool.snapshots.create("s", "v")
    await _discard(pool, "v")
    await _block(pool, "new", await _free(pool))
    assert await _names(pool) == (["new"], [])
    await pool.delete("new")
    await pool.create(VolumeRequest("copy", 100 * MI, block=True, source=VolumeOrigin(snapshot="s")))
    await pool.stage("copy", staging)
    assert peek(staging / "device", 7) == b"content"
    await pool.unstage("copy", staging)


async def test_trash_that_fills_its_thin_pool_makes_way(bench: Bench) -> None:
    pool, staging = await bench.pool(THIN), bench.folder / "s"
    for name in ("a", "b"):
        await _block(pool, name, 248 * MI)
        await pool.stage(name, staging)
        flood(staging / "device", 248 * MI)
        await pool.unstage(name, staging)
    found = dm.thin_pool("vg0-pool-tpool")
    assert found is not None
    assert found.data > 0.95
    assert await _free(pool) == 0
    await _discard(pool, "a", "b")
    assert await _free(pool) == 512 * MI
    await _block(pool, "new", 12 * MI)
    assert await _names(pool) == (["new"], ["b"])
    await pool.stage("new", staging)
    flood(staging / "device", 12 * MI)
    await pool.unstage("new", staging)
    await pool.trash.restore("b")


@pytest.mark.parametrize("options", LAYOUTS)
async def test_snapshots_and_groups_of_them_evict(bench: Bench, options: str) -> None:
    pool = await bench.pool(options)
    fourth = await _free(pool) // 4 // EXTENT * EXTENT
    for name in ("old", "v", "w"):
        await _block(pool, name, fourth // 2 // EXTENT * EXTENT)
        await pool.stage(name, bench.folder / name)
        await pool.unstage(name, bench.folder / name)
    await _block(pool, "older", await _free(pool))
    await _discard(pool, "older")
    await pool.snapshots.create("s", "v")
    assert await _names(pool) == (["old", "v", "w"], [])
    await _block(pool, "full", await _free(pool))
    await _discard(pool, "old", "full")
    members = [MemberRequest(pool, SnapshotRequest(f"g-{name}", name)) for name in ("v", "w")]
    await group.take(members)
    assert await _names(pool) == (["v", "w"], [])


async def test_a_group_evicts_for_what_thick_snapshots_take_beyond_the_size_of_their_volumes(bench: Bench) -> None:
    pool = await bench.pool()
    for name in ("v", "w"):
        await _block(pool, name, 100 * MI)
        await pool.stage(name, bench.folder / name)
        await pool.unstage(name, bench.folder / name)
    for name in ("old", "new"):
        await _block(pool, name, 40 * MI)
    await _block(pool, "rest", await _free(pool) - 200 * MI)
    await _discard(pool, "old", "new")
    await group.take([MemberRequest(pool, SnapshotRequest(f"g-{name}", name)) for name in ("v", "w")])
    assert await _names(pool) == (["rest", "v", "w"], ["new"])


async def test_a_full_table_of_volumes_evicts(bench: Bench) -> None:
    pool = await bench.pool()
    lvm.lvm("vgchange", "--logicalvolume", "2", "vg0")
    try:
        for name in ("old", "v"):
            await _block(pool, name, 8 * MI)
        await _discard(pool, "old")
        await _block(pool, "new", 8 * MI)
        assert await _names(pool) == (["new", "v"], [])
    finally:
        lvm.lvm("vgchange", "--logicalvolume", "0", "vg0")
