"""Trash: deleted volumes that can be restored, count as free, and reject nobody's volume."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.host.page_cache import TRIES, is_cached

from tonnage.base.errors import ExhaustedError, HostError, InvalidError, NotFoundError, PreconditionError
from tonnage.host import loop, mount
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import SnapshotRequest, VolumeRequest
from tonnage.storage.pools.base.record import TRASHED, UNDELETE, VolumeRecord
from tonnage.storage.pools.base.reservation import Disks, SharedDisk
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core import group
from tonnage.storage.pools.core.group import MemberRequest
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fake.backend import FakeBackend, FakePool
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.clock import ManualClock

GIB, MI = 1 << 30, 1 << 20
DAY = {UNDELETE: "86400"}


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    """10Gi."""
    made = FakePool("scratch", 10 * GIB, directories=False, clock=LoopClock())
    await made.open()
    yield made
    await made.close()


async def _used(pool: Pool, name: str, size: int = 4 * GIB, **more: Any) -> None:
    await pool.create(VolumeRequest(name, size, **{"owner": DAY, **more}))
    await pool.stage(name, Path("/s") / name)
    await pool.unstage(name, Path("/s") / name)


async def _names(pool: Pool) -> tuple[list[str], list[str]]:
    return [v.name for v in await pool.list()], [v.name for v in await pool.trash.list()]


async def _discard(pool: Pool, *names: str) -> None:
    for name in names:
        await pool.trash.discard(name)
        await asyncio.sleep(1)


@pytest.mark.virtual_time
async def test_trash_counts_as_free_and_is_restored_once(pool: Pool) -> None:
    await _used(pool, "v")
    before = await pool.get("v")
    await pool.trash.discard("v")
    await pool.trash.discard("v")
    assert await _names(pool) == ([], ["v"])
    capacity = await pool.capacity()
    assert (capacity.free, capacity.largest, capacity.used) == (10 * GIB, 10 * GIB, 0)
    with pytest.raises(NotFoundError, match="tonnage volumes restore"):
        await pool.stage("v", Path("/s/v"))
    restored = await pool.trash.restore("v")
    assert (restored, await pool.trash.restore("v")) == (before, before)
    assert not pool.trash.restoring, "nothing is remembered of it"
    assert (await _names(pool), (await pool.capacity()).free) == ((["v"], []), 6 * GIB)


@pytest.mark.virtual_time
async def test_the_oldest_goes_first_and_only_as_many_as_are_needed(pool: Pool) -> None:
    for name in ("c", "a", "b"):
        await _used(pool, name, 3 * GIB)
    await _discard(pool, "b", "c", "a")
    await pool.create(VolumeRequest("new", 2 * GIB))
    assert await _names(pool) == (["new"], ["c", "a"]), "1Gi was free: one of them was enough"
    await pool.create(VolumeRequest("all", 8 * GIB))
    assert await _names(pool) == (["all", "new"], [])


@pytest.mark.virtual_time
async def test_no_volume_is_rejected_for_trash_and_none_is_evicted_for_what_can_never_fit(pool: Pool) -> None:
    await _used(pool, "kept", 5 * GIB)
    await _used(pool, "old", 5 * GIB)
    await pool.trash.discard("old")
    with pytest.raises(ExhaustedError):
        await pool.create(VolumeRequest("new", 6 * GIB))
    with pytest.raises(ExhaustedError):
        await group.take(
            [MemberRequest(pool, SnapshotRequest("s", "kept")), MemberRequest(pool, SnapshotRequest("t", "kept"))]
        )
    assert await _names(pool) == (["kept"], ["old"])
    await pool.create(VolumeRequest("new", 5 * GIB))
    assert await _names(pool) == (["kept", "new"], [])
    with pytest.raises(NotFoundError):
        await pool.trash.restore("old")


@pytest.mark.virtual_time
async def test_growth_and_snapshots_evict_too(pool: Pool) -> None:
    await _used(pool, "v", 4 * GIB)
    await _used(pool, "old", 4 * GIB)
    await pool.trash.discard("old")
    await pool.growth.expand("v", 5 * GIB)
    assert await _names(pool) == (["v"], ["old"]), "2Gi were free"
    await pool.snapshots.create("s", "v")
    assert await _names(pool) == (["v"], [])


@pytest.mark.virtual_time
async def test_groups_of_snapshots_evict_what_they_need_together(pool: Pool) -> None:
    for name in ("a", "b", "old", "new"):
        await _used(pool, name, 2 * GIB)
    await _discard(pool, "old", "new")
    await group.take([MemberRequest(pool, SnapshotRequest(f"s-{name}", name)) for name in ("a", "b")])
    assert await _names(pool) == (["a", "b"], ["new"]), "2Gi were free, 4Gi are needed"


@pytest.mark.virtual_time
async def test_its_time_ends_it_and_a_shorter_one_does_not_wait_for_a_longer(pool: Pool) -> None:
    await _used(pool, "day")
    await _used(pool, "hour", owner={UNDELETE: "3600"})
    await _discard(pool, "day", "hour")
    await asyncio.sleep(3590)
    assert (await _names(pool))[1] == ["day", "hour"]
    await asyncio.sleep(20)
    assert (await _names(pool))[1] == ["day"]
    await asyncio.sleep(86400)
    assert (await _names(pool))[1] == []


@pytest.mark.virtual_time
async def test_the_time_of_trash_that_comes_after_all_other_has_ended_ends_it_too(pool: Pool) -> None:
    for name in ("first", "second"):
        await _used(pool, name, owner={UNDELETE: "60"})
        await pool.trash.discard(name)
        await asyncio.sleep(120)
        assert await _names(pool) == ([], [])


@pytest.mark.virtual_time
async def test_none_goes_before_its_time_with_one_whose_time_is_just_over(pool: Pool) -> None:
    clock, delete = LoopClock(), pool.backend.delete
    ends, gone = dict[str, float](), dict[str, float]()

    def noted(name: str) -> None:
        gone[name] = clock.time()
        delete(name)

    pool.backend.delete = noted  # type: ignore[method-assign]
    for name in ("a", "b"):
        await _used(pool, name, owner={UNDELETE: "60"})
        ends[name] = clock.time() + 60
        await pool.trash.discard(name)
        await asyncio.sleep(0.5)
    await asyncio.sleep(120)
    assert gone.keys() == ends.keys()
    assert all(gone[name] >= end for name, end in ends.items())


async def test_trash_of_the_same_name_in_two_pools_of_a_disk_goes_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBackend, "disk", SharedDisk(Path("/")))
    asking, *others = [FakePool(name, 10 * GIB, directories=False, clock=ManualClock()) for name in "abc"]
    for pool in others:
        await pool.open()
        await _used(pool, "v")
        await pool.trash.discard("v")
    assert [await asking.trash.evict_oldest("") for _ in range(3)] == [True, True, False]
    assert [await _names(pool) for pool in others] == [([], []), ([], [])]
    for pool in others:
        await pool.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize(("owner", "parameters"), [({}, {}), (DAY, {"erase": "zero"}), ({UNDELETE: "soon"}, {})])
async def test_what_does_not_stay(pool: Pool, owner: dict[str, str], parameters: dict[str, str]) -> None:
    """Of no such class, to be erased, or with a record that a person has changed."""
    await pool.create(VolumeRequest("v", GIB, owner=owner, parameters=parameters))
    assert not await pool.trash.discard("v")
    assert await _names(pool) == (["v"], [])


@pytest.mark.virtual_time
async def test_a_pool_that_can_have_no_trash_any_more_gets_none(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    await _used(pool, "v")
    monkeypatch.setattr(pool.backend, "trash_fault", lambda: "overcommit= was set since")
    assert not await pool.trash.discard("v")
    assert await _names(pool) == (["v"], [])


@pytest.mark.virtual_time
async def test_a_volume_in_use_becomes_no_trash(pool: Pool) -> None:
    await _used(pool, "v")
    await pool.stage("v", Path("/s"))
    with pytest.raises(PreconditionError):
        await pool.trash.discard("v")
    assert await _names(pool) == (["v"], [])


@pytest.mark.virtual_time
async def test_its_name_can_be_used_again(pool: Pool) -> None:
    await _used(pool, "v", 6 * GIB)
    await pool.trash.discard("v")
    assert (await pool.create(VolumeRequest("v", 8 * GIB))).size == 8 * GIB
    assert (await _names(pool), (await pool.capacity()).free) == ((["v"], []), 2 * GIB)


@pytest.mark.virtual_time
async def test_a_deletion_that_fails_leaves_trash_that_counts_as_free(pool: Pool) -> None:
    await _used(pool, "v")
    await pool.trash.discard("v")
    delete = pool.backend.delete

    def failing(name: str) -> None:
        raise HostError("Input/output error")

    pool.backend.delete = failing  # type: ignore[method-assign]
    with pytest.raises(HostError):
        await pool.trash.evict("v")
    assert (await _names(pool), (await pool.capacity()).free) == (([], ["v"]), 10 * GIB)
    pool.backend.delete = delete  # type: ignore[method-assign]
    await pool.trash.evict("v")
    await pool.trash.evict("v")
    assert (await _names(pool), (await pool.capacity()).free) == (([], []), 10 * GIB)


def test_what_a_class_cannot_have(tmp_path: Path) -> None:
    FakePool("a", GIB).trash.check_undelete({}, {"erase": "zero"})
    with pytest.raises(InvalidError, match=r"tonnage\.dev/undelete retains what is deleted, erase=zero erases it"):
        FakePool("a", GIB).trash.check_undelete(DAY, {"erase": "zero"})
    for text, why in (
        (f"static:{tmp_path}/a", "its kind keeps no deleted volumes"),
        (f"image:{tmp_path}/b,size=1Gi,sparse=yes,overcommit=2", "overcommit= a disk may get full"),
    ):
        with pytest.raises(InvalidError, match=f"{why}.*; name another pool with parameter pool, or remove"):
            make(parse(text)).trash.check_undelete(DAY, {})


@pytest.fixture
async def two(real_folder: Path) -> AsyncIterator[tuple[Pool, Pool]]:
    """Image pools on a disk of their own; the first is sparse."""
    disks = Disks()
    pools = [
        make(parse(f"image:{real_folder}/{name},name={name},sparse={sparse}"), disks=disks)
        for name, sparse in (("a", "yes"), ("b", "no"))
    ]
    for pool in pools:
        await pool.open()
    yield pools[0], pools[1]
    for pool in pools:
        for volume in [*await pool.list(), *await pool.trash.list()]:
            await pool.delete(volume.name)
        await pool.close()


@pytest.mark.real
async def test_image_pools_of_one_disk_evict_each_others(two: tuple[Pool, Pool], real_folder: Path) -> None:
    b, a = two
    half = 512 * MI
    await a.create(VolumeRequest("old", half, owner=DAY))
    staging = real_folder / "s"
    staging.mkdir()
    await a.stage("old", staging)
    (staging / "data").write_text("mine")
    await a.unstage("old", staging)
    before = await a.capacity(), await b.capacity()
    image = real_folder / "b" / "old.img"
    for _ in range(TRIES):
        with image.open("rb") as file:
            file.read(1)
            os.fsync(file.fileno())  # pages to be written stay
        was_cached = is_cached(image)
        await a.trash.discard("old")
        if was_cached and not is_cached(image):
            break
        await a.trash.restore("old")
    else:
        pytest.fail("its removal would take longer")
    after = await a.capacity(), await b.capacity()
    assert all(now.free > then.free for now, then in zip(after, before, strict=True)), (before, after)
    await a.close()
    await a.open()
    assert await _names(a) == ([], ["old"]), "a new process finds it"
    await a.trash.restore("old")
    await a.stage("old", staging)
    assert (staging / "data").read_text() == "mine"
    await a.unstage("old", staging)
    await a.trash.discard("old")
    account = b.backend.folder.account  # type: ignore[attr-defined]
    account.free = lambda: 100 * MI + (0 if image.exists() else half)
    await b.create(VolumeRequest("new", 256 * MI))
    del account.free
    assert (await _names(a), await _names(b)) == (([], []), (["new"], []))
    assert not image.exists()


@pytest.mark.real
async def test_what_is_restored_has_its_bytes(two: tuple[Pool, Pool], real_folder: Path) -> None:
    """A sparse volume takes no bytes as trash; when it returns, those that other trash has are freed."""
    a, b = two
    await a.create(VolumeRequest("old", 512 * MI, owner=DAY))
    await b.create(VolumeRequest("large", GIB, owner=DAY))
    image = real_folder / "b" / "large.img"
    for pool, name in ((a, "old"), (b, "large")):
        await pool.stage(name, real_folder / "s")
        await pool.unstage(name, real_folder / "s")
        await pool.trash.discard(name)
    account = a.backend.folder.account  # type: ignore[attr-defined]
    account.free = lambda: 0 if image.exists() else GIB
    with pytest.raises(ExhaustedError, match="volume old cannot be restored"):
        await a.trash.restore("old")
    assert (await _names(a), await _names(b)) == (([], ["old"]), ([], ["large"])), "nothing goes for what cannot fit"
    account.free = lambda: 300 * MI + (0 if image.exists() else GIB)
    await a.trash.restore("old")
    assert (await _names(a), await _names(b)) == ((["old"], []), ([], []))


@pytest.mark.real
async def test_of_two_that_are_restored_at_once_none_goes_for_the_other(
    two: tuple[Pool, Pool], real_folder: Path
) -> None:
    """Each lacks bytes at first, and the other is the oldest trash; those of a third are enough for one."""
    a, b = two
    await b.close()  # what it might take is not a's
    for name in ("one", "other", "full"):
        await a.create(VolumeRequest(name, 512 * MI, owner=DAY))
        await a.stage(name, real_folder / "s")
        await a.unstage(name, real_folder / "s")
    full = real_folder / "a" / "full.img"
    with full.open("r+b") as image:
        os.posix_fallocate(image.fileno(), 0, os.fstat(image.fileno()).st_size)
    for name in ("one", "other", "full"):
        await a.trash.discard(name)
    a.backend.folder.account.free = lambda: 500 * MI + (0 if full.exists() else 548 * MI)  # type: ignore[attr-defined]
    outcomes = await asyncio.gather(a.trash.restore("one"), a.trash.restore("other"), return_exceptions=True)
    assert sorted(isinstance(one, ExhaustedError) for one in outcomes) == [False, True], outcomes
    assert sorted(name for some in await _names(a) for name in some) == ["one", "other"]
    await b.open()


async def test_the_mark_is_in_the_record(pool: Pool) -> None:
    await _used(pool, "v")
    await pool.trash.discard("v")
    (trash,) = await pool.trash.list()
    assert float(trash.owner[TRASHED]) > 0
    assert trash.owner[UNDELETE] == "86400"


@pytest.mark.virtual_time
async def test_trash_that_cannot_be_deleted_is_passed_over(pool: Pool) -> None:
    for name in ("a", "b"):
        await _used(pool, name)
    await _discard(pool, "a", "b")
    delete = pool.backend.delete

    def failing(name: str) -> None:
        if name == "a":
            raise HostError("lvremove: volume a has a snapshot of somebody else")
        delete(name)

    pool.backend.delete = failing  # type: ignore[method-assign]
    await pool.create(VolumeRequest("new", 5 * GIB))
    assert await _names(pool) == (["new"], ["a"])
    with pytest.raises(HostError, match="somebody else"):
        await pool.create(VolumeRequest("more", 3 * GIB))


@pytest.mark.virtual_time
async def test_a_full_disk_does_not_keep_a_volume_from_being_deleted(pool: Pool) -> None:
    await _used(pool, "v")
    write = pool.backend.write

    def full(record: VolumeRecord) -> None:
        raise ExhaustedError("No space left on device")

    pool.backend.write = full  # type: ignore[method-assign]
    assert not await pool.trash.discard("v")
    await pool.delete("v")
    pool.backend.write = write  # type: ignore[method-assign]
    assert (await _names(pool), (await pool.capacity()).free) == (([], []), 10 * GIB)


@pytest.mark.real
async def test_trash_of_a_disk_that_was_away_is_there_with_it_and_goes_if_its_time_is_over(real_folder: Path) -> None:
    image, disk = real_folder / "disk.img", real_folder / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(200 * MI)
    run(["mkfs.ext4", "-q", "-F", "-b", "4096", str(image)])

    def plug() -> None:
        with image.open("r+b") as file:
            attached = loop.attach(file.fileno(), str(image))
        try:
            mount.mount(attached.path, disk, "ext4", ())
        finally:
            attached.close()

    def made() -> Pool:
        return make(parse(f"image:{disk}/pool,name=p,size=100Mi,sparse=yes"), disks=Disks())

    plug()
    pool = made()
    await pool.open()
    for name, seconds in (("long", "86400"), ("short", "1")):
        await pool.create(VolumeRequest(name, 20 * MI, owner={UNDELETE: seconds}))
        await pool.trash.discard(name)
    await pool.close()
    mount.umount(disk)
    pool = made()
    await pool.open()
    assert await _names(pool) == ([], [])
    await pool.close()
    await asyncio.sleep(1)
    plug()
    try:
        pool = made()
        await pool.open()
        async with asyncio.timeout(60):
            while await _names(pool) != ([], ["long"]):
                await asyncio.sleep(0.05)
        await pool.trash.restore("long")
        assert await _names(pool) == (["long"], [])
        await pool.close()
    finally:
        mount.umount(disk, lazy=True)
