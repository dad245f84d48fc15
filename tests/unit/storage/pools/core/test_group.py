"""Snapshots of several volumes are of one moment: a database on two volumes finds them as after a power cut."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.programs import need
from tests.unit.storage.pools.core import database

from tonnage.base.errors import AlreadyExistsError, ExhaustedError, HostError, NotFoundError, PreconditionError
from tonnage.host import filesystem, loop, mount
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import PoolLimits, SnapshotRequest, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.btrfs.backend import make_backend as btrfs_backend
from tonnage.storage.pools.core import group
from tonnage.storage.pools.core.group import MemberRequest
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.directory.backend import DirectoryBackend
from tonnage.storage.pools.fake.backend import FakeBackend, FakePool
from tonnage.storage.pools.image.backend import ImageContent
from tonnage.storage.pools.image.backend import make_backend as image_backend

GIB, MI = 1 << 30, 1 << 20
ROUNDS = 20
BOUNDS = PoolLimits(40 * GIB, sparse=True, ratio=float("inf"))


def of(pool: Pool, *volumes: str, name: str = "s") -> list[MemberRequest]:
    return [MemberRequest(pool, SnapshotRequest(f"{name}-{volume}", volume)) for volume in volumes]


async def snapshots(*pools: Pool) -> list[str]:
    return [snapshot.name for pool in pools for snapshot in await pool.snapshots.list()]


async def test_all_or_none() -> None:
    first, second = FakePool("first", 10 * GIB), FakePool("second", 10 * GIB)
    for pool, name in ((first, "a"), (first, "b"), (second, "c")):
        await pool.create(VolumeRequest(name, GIB))
    members = [*of(first, "a", "b"), *of(second, "c")]
    assert [made.name for made in await group.take(members)] == ["s-a", "s-b", "s-c"]
    with pytest.raises(AlreadyExistsError, match="s-a exists"):
        await group.take(of(first, "a"))
    with pytest.raises(AlreadyExistsError, match="s-c exists"):
        await group.take([*of(first, "a", name="t"), *of(second, "c")])
    with pytest.raises(NotFoundError, match="nobody"):
        await group.take([*of(first, "a", name="t"), *of(second, "nobody", name="t")])
    assert await snapshots(first, second) == ["s-a", "s-b", "s-c"]


async def test_the_capacity_is_that_for_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, other = FakePool("p", 5 * GIB), FakePool("other", 10 * GIB)
    for name in ("a", "b"):
        await pool.create(VolumeRequest(name, 2 * GIB))
    await other.create(VolumeRequest("c", GIB))
    monkeypatch.setattr(FakeBackend, "snapshot", None)  # it is rejected before anything is made
    with pytest.raises(ExhaustedError, match="s-a and 1 more"):
        await group.take([*of(other, "c"), *of(pool, "a", "b")])


async def test_what_was_made_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, make = FakePool("p", 10 * GIB), FakeBackend.snapshot
    for name in ("a", "b"):
        await pool.create(VolumeRequest(name, GIB))

    def fail(self: FakeBackend, wanted: SnapshotRequest, *, is_frozen: bool = False) -> VolumeRecord:
        if wanted.volume == "b":
            raise HostError("the disk is gone")
        return make(self, wanted)

    monkeypatch.setattr(FakeBackend, "snapshot", fail)
    with pytest.raises(HostError, match="disk is gone"):
        await group.take(of(pool, "a", "b"))
    assert await snapshots(pool) == []


# On real disks


@pytest.fixture
def xfs(real_folder: Path) -> Iterator[Path]:
    """A folder on an xfs, where files share blocks."""
    need("mkfs.xfs")
    disk, path = real_folder / "disk.img", real_folder / "disk"
    with disk.open("wb") as file:
        file.truncate(2 * GIB)
    run(["mkfs.xfs", "-q", "-m", "reflink=1", str(disk)])
    path.mkdir()
    subprocess.run(["mount", "-o", "loop", disk, path], check=True)
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@asynccontextmanager
async def opened(*pools: Pool) -> AsyncIterator[None]:
    async with AsyncExitStack() as held:
        for pool in pools:
            await pool.open()
            held.push_async_callback(pool.close)
        yield


@asynccontextmanager
async def staged(folder: Path, volumes: Sequence[tuple[Pool, str]]) -> AsyncIterator[list[Path]]:
    """Volumes, staged."""
    paths = [folder / f"staged-{pool.name}-{name}" for pool, name in volumes]
    try:
        for (pool, name), path in zip(volumes, paths, strict=True):
            path.mkdir()
            await pool.stage(name, path)
        yield paths
    finally:
        for (pool, name), path in zip(volumes, paths, strict=True):
            await pool.unstage(name, path)
            path.rmdir()


def image_pool(folder: Path, name: str = "images") -> Pool:
    return Pool(name, image_backend(folder / name, BOUNDS, disks=Disks()))


def btrfs_pool(folder: Path, name: str = "subvolumes") -> Pool:
    return Pool(name, btrfs_backend(folder / name, BOUNDS, disks=Disks()))


async def take_many(folder: Path, log: tuple[Pool, str], data: tuple[Pool, str]) -> list[tuple[int, int]]:
    """Take groups while a database writes; the last numbers of log and data of each, as restored volumes show them."""
    async with staged(folder, [log, data]) as (at_log, at_data):
        with database.running(at_log, at_data):
            while not (at_data / "data").exists():
                await asyncio.sleep(0.01)
            for number in range(ROUNDS):
                await group.take([*of(*log, name=f"s{number}"), *of(*data, name=f"s{number}")])
                await asyncio.sleep(0.01)
    found = []
    for number in range(ROUNDS):
        copies = [(pool, f"r{number}-{name}") for pool, name in (log, data)]
        for (pool, copy), (_, name) in zip(copies, (log, data), strict=True):
            size = (await pool.get(name)).size
            await pool.create(VolumeRequest(copy, size, source=VolumeOrigin(snapshot=f"s{number}-{name}")))
        async with staged(folder, copies) as paths:
            found.append(database.numbers(paths[0], paths[1]))
        for pool, copy in copies:
            await pool.delete(copy)
    return found


def check(found: Sequence[tuple[int, int]]) -> None:
    for log, data in found:
        assert data <= log <= data + 1, found
    assert [log for log, _ in found] == sorted(log for log, _ in found)
    assert found[-1][0] > found[0][0], "it wrote between them"


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fstypes", [("ext4", "xfs"), ("btrfs", "ext4")], ids="-".join)
async def test_a_database_on_images(real_folder: Path, xfs: Path, fstypes: tuple[str, str]) -> None:
    pool = image_pool(xfs)
    async with opened(pool):
        for name, fstype in zip(("data", "log"), fstypes, strict=True):
            await pool.create(VolumeRequest(name, 400 * MI, fstype=fstype))
        check(await take_many(real_folder, (pool, "log"), (pool, "data")))
    assert not list((xfs / "images").glob(".frozen-*"))


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_a_database_on_subvolumes(real_folder: Path) -> None:
    need("mkfs.btrfs")
    pool = btrfs_pool(real_folder)
    async with opened(pool):
        for name in ("data", "log"):
            await pool.create(VolumeRequest(name, 100 * MI))
        check(await take_many(real_folder, (pool, "log"), (pool, "data")))
        left = os.listdir(real_folder / "subvolumes" / "mounted" / ".snapshots")
        assert not [name for name in left if name.startswith(".together")]


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize("order", [1, -1], ids=["log on an image", "data on an image"])
async def test_a_database_on_two_pools(real_folder: Path, xfs: Path, order: int) -> None:
    pools = [image_pool(xfs), btrfs_pool(real_folder)]
    async with opened(*pools):
        log, data = [(pool, name) for pool, name in zip(pools[::order], ("log", "data"), strict=True)]
        for pool, name in (log, data):
            await pool.create(VolumeRequest(name, 200 * MI))
        check(await take_many(real_folder, log, data))


@pytest.mark.real
async def test_what_cannot_be_held_still_together(real_folder: Path, xfs: Path) -> None:
    pool, subvolumes = image_pool(xfs), btrfs_pool(real_folder)
    async with opened(pool, subvolumes):
        for name in ("raw", "raw2"):
            await pool.create(VolumeRequest(name, 20 * MI, block=True))
        await pool.create(VolumeRequest("f", 20 * MI))
        for name in ("v", "w"):
            await subvolumes.create(VolumeRequest(name, 20 * MI))
        everything = [*of(pool, "raw", "raw2", "f"), *of(subvolumes, "v", "w")]
        await group.take(everything)  # nothing is in use
        for member in everything:
            await member.pool.snapshots.delete(member.wanted.name)
        async with staged(real_folder, [(pool, "raw"), (pool, "f"), (subvolumes, "v"), (subvolumes, "w")]):
            with pytest.raises(PreconditionError, match=r"held still together: images/raw is raw .* subvolumes/v is a"):
                await group.take(everything)
            assert await snapshots(pool, subvolumes) == []
            await group.take(of(pool, "raw", "raw2", "f"))
            await group.take(of(subvolumes, "v", "w"))


@pytest.mark.real
async def test_an_image_that_would_be_copied_for_long_is_rejected(
    real_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = image_pool(real_folder)
    async with opened(pool):
        await pool.create(VolumeRequest("v", 20 * MI))
        await pool.create(VolumeRequest("w", 20 * MI, parameters={"erase": "none"}))
        await group.take(of(pool, "v", "w", name="unused"))
        async with staged(real_folder, [(pool, "v")]):
            await group.take(of(pool, "w", "v", name="small"))
            monkeypatch.setattr(group, "MOST_COPIED", 4096)
            with pytest.raises(
                PreconditionError, match=r"share no blocks with them: images/v .* a group copies 4Ki at most"
            ):
                await group.take(of(pool, "w", "v"))
        assert await snapshots(pool) == ["small-v", "small-w", "unused-v", "unused-w"]


@pytest.mark.real
@pytest.mark.timeout(120)
async def test_a_group_that_takes_too_long_is_thawed_and_removed(
    real_folder: Path, xfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, copy = image_pool(xfs), ImageContent.snapshot

    def write_first(self: ImageContent, record: VolumeRecord, *more: object, **options: bool) -> VolumeRecord:
        """A snapshot that waits for a write to the frozen file system: only the timer ends that."""
        (real_folder / "staged-images-v" / "file").write_text("written when it was thawed")
        return copy(self, record, *more, **options)  # type: ignore[arg-type]

    async with opened(pool):
        for name in ("v", "w"):
            await pool.create(VolumeRequest(name, 400 * MI, fstype="xfs"))
        async with staged(real_folder, [(pool, "v"), (pool, "w")]) as (at, _):
            monkeypatch.setattr(ImageContent, "snapshot", write_first)
            with pytest.raises(HostError, match=r"volume v: the group's file systems were frozen for 0\.5 s"):
                await group.take(of(pool, "v", "w"), seconds=0.5)
            assert (at / "file").read_text() == "written when it was thawed"
            assert await snapshots(pool) == []
            monkeypatch.undo()
            await group.take(of(pool, "v", "w"))
            assert not list((xfs / "images").glob(".frozen-*"))


@pytest.mark.real
async def test_a_volume_that_another_froze_is_named_and_the_others_are_thawed(real_folder: Path, xfs: Path) -> None:
    pool = image_pool(xfs)
    async with opened(pool):
        for name in ("v", "w"):
            await pool.create(VolumeRequest(name, 20 * MI))
        async with staged(real_folder, [(pool, "v"), (pool, "w")]) as (first, second):
            root = os.open(second, os.O_RDONLY)
            filesystem.freeze(root)
            try:
                with pytest.raises(PreconditionError, match="volume w is frozen by another process"):
                    await group.take(of(pool, "v", "w"))
                (first / "file").write_text("it takes writes")
            finally:
                filesystem.thaw(root)
                os.close(root)
        assert await snapshots(pool) == []
    assert not [entry for entry in mount.mounts() if "staged" in entry.target]
    assert not [path for _, path in loop.attached() if path.startswith(f"{xfs}/")]


@pytest.mark.real
async def test_two_groups_of_one_btrfs_at_once_do_not_touch_each_other(real_folder: Path) -> None:
    pool = btrfs_pool(real_folder)
    async with opened(pool):
        backend = pool.backend
        assert isinstance(backend, DirectoryBackend)
        names = ("a", "b", "c", "d")
        for name in names:
            await pool.create(VolumeRequest(name, 20 * MI))
        async with staged(real_folder, [(pool, name) for name in names]) as paths:
            for name, path in zip(names, paths, strict=True):
                (path / "file").write_text(name)
            for turn in ("1", "2", "3"):
                await asyncio.gather(
                    group.take(of(pool, "a", "b", name=f"one{turn}")), group.take(of(pool, "c", "d", name=f"two{turn}"))
                )
                for made, name in zip(("one", "one", "two", "two"), names, strict=True):
                    content = backend.folder.snapshots.content(f"{made}{turn}-{name}")
                    assert (content / "file").read_text() == name
            assert not list(backend.folder.snapshots.path.glob(".together-*"))


@pytest.mark.real
@pytest.mark.timeout(120)
async def test_what_was_taken_too_late_is_never_completed(
    real_folder: Path, xfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it cannot be deleted: what says that it is a group is written last."""
    pool, copy = image_pool(xfs), ImageContent.snapshot

    def slow(self: ImageContent, record: VolumeRecord, *more: object, **options: bool) -> VolumeRecord:
        made = copy(self, record, *more, **options)  # type: ignore[arg-type]
        (real_folder / "staged-images-v" / "file").write_text("written when it was thawed")
        return made

    async def failing(name: str) -> None:
        raise HostError(f"snapshot {name}: the disk is sick")

    async with opened(pool):
        await pool.create(VolumeRequest("v", 400 * MI, fstype="xfs"))
        async with staged(real_folder, [(pool, "v")]):
            monkeypatch.setattr(ImageContent, "snapshot", slow)
            monkeypatch.setattr(pool.snapshots, "delete_held", failing)
            with pytest.raises(HostError, match="were frozen for"):
                await group.take(of(pool, "v"), completed={"whole": "yes"}, seconds=0.5)
            monkeypatch.undo()
            assert "whole" not in (await pool.snapshots.get("s-v")).owner
            (made,) = await group.take(of(pool, "v", name="t"), completed={"whole": "yes"})
            assert made.owner["whole"] == "yes"
