"""Deleted volumes of an image pool: their content is overwritten on the disk, in the background, whatever happens."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import ExhaustedError, InvalidError, PreconditionError, UnsupportedError
from tonnage.host import libc, loop, mount
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import PoolLimits, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.record import UNDELETE, VolumeRecord
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.core.wipe import CHUNK, Wiper
from tonnage.storage.pools.directory.directory import Directory
from tonnage.storage.pools.image.backend import make_backend

MI = 1024**2
SECRET = b"secret" * 1000
Opener = Callable[..., Awaitable[Pool]]
pytestmark = pytest.mark.real


@pytest.fixture
async def opened(real_folder: Path) -> AsyncIterator[Opener]:
    """Opens the image pool below the test's folder, as a new process would, and closes it at the end."""
    disks = Disks()
    async with AsyncExitStack() as stack:

        async def open_(rate: int = 0) -> Pool:
            pool = Pool(
                "p",
                make_backend(real_folder / "pool", PoolLimits(1024 * MI, sparse=True), disks=disks),
                erase_rate=rate,
            )
            await pool.open()
            stack.push_async_callback(pool.close)
            return pool

        yield open_


def _write(image: Path, size: int) -> None:
    with image.open("r+b") as file:
        for at in range(0, size - len(SECRET), MI):
            file.seek(at)
            file.write(SECRET)
        os.fsync(file.fileno())


async def _erased(pool: Pool) -> None:
    async with asyncio.timeout(120):
        while await pool.erasing():
            await asyncio.sleep(0.005)


def _left(folder: Path) -> list[str]:
    """Files of the pool that are neither markers nor empty folders."""
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.name != ".tonnage-pool")


@pytest.mark.parametrize("method", ["zero", "shred", "discard"])
async def test_content_is_gone_from_the_disk(opened: Opener, real_folder: Path, method: str) -> None:
    pool, image, kept = await opened(), real_folder / "pool" / "v.img", real_folder / "kept"
    await pool.create(VolumeRequest("v", 8 * MI, block=True, parameters={"erase": method}))
    _write(image, 8 * MI)
    os.link(image, kept)  # where the bytes were is seen through another name

    await pool.delete("v")
    await _erased(pool)

    assert kept.read_bytes() == bytes(8 * MI)
    assert _left(real_folder / "pool") == []
    assert (await pool.capacity()).used == 0


async def test_room_comes_back_at_the_end_and_the_name_at_once(opened: Opener, real_folder: Path) -> None:
    pool = await opened(rate=1)  # a byte in a second: it stands still after the first steps
    await pool.create(VolumeRequest("v", 64 * MI, block=True, parameters={"erase": "zero"}, owner={"claim": "a/b"}))
    with (real_folder / "pool" / "v.img").open("r+b") as file:
        file.write(os.urandom(64 * MI))
    await pool.delete("v")
    await pool.delete("v")
    assert await pool.list() == []
    assert (await pool.capacity()).used == 64 * MI

    again = await pool.create(VolumeRequest("v", 16 * MI, block=True))
    assert (again.size, dict(again.owner)) == (16 * MI, {})
    assert (await pool.capacity()).used == 80 * MI
    async with asyncio.timeout(120):
        while (await pool.erasing())[0].done < 2 * CHUNK:
            await asyncio.sleep(0.005)
    [erasure] = await pool.erasing()
    assert (erasure.name, erasure.method, erasure.total, erasure.reserved) == ("v", "zero", 64 * MI, 64 * MI)
    assert erasure.done < erasure.total

    await pool.close()
    pool = await opened(rate=1)
    assert [v.size for v in await pool.list()] == [16 * MI]
    [continued] = await pool.erasing()
    assert continued.done >= erasure.done, "it goes on where it was"
    assert (await pool.capacity()).used == 80 * MI
    await pool.close()

    pool = await opened()
    await _erased(pool)
    assert (await pool.capacity()).used == 16 * MI
    assert _left(real_folder / "pool") == ["v.img", "v.json"]


async def test_erasing_a_sparse_volume_takes_no_room(opened: Opener, real_folder: Path) -> None:
    pool = await opened()
    await pool.create(VolumeRequest("v", 900 * MI, block=True, parameters={"erase": "shred"}))
    image, kept = real_folder / "pool" / "v.img", real_folder / "kept"
    os.link(image, kept)
    await pool.delete("v")
    await _erased(pool)
    assert kept.stat().st_blocks == 0


async def test_a_deletion_that_was_killed_half_way(opened: Opener, real_folder: Path) -> None:
    """Each state that a kill can leave: written down but not moved, moved but still with its record."""
    folder, kept = real_folder / "pool", real_folder / "kept"
    pool = await opened()
    await pool.create(VolumeRequest("v", 8 * MI, block=True, parameters={"erase": "zero"}))
    _write(folder / "v.img", 8 * MI)
    record, used = (folder / "v.json").read_bytes(), (await pool.capacity()).used
    await pool.close()

    pool = await opened(rate=1)
    await pool.delete("v")
    await pool.close()
    (content,) = (folder / ".erasing").glob("*.content")
    os.link(content, kept)
    (folder / "v.json").write_bytes(record)  # as if killed before the record was removed
    pool = await opened(rate=1)
    assert await pool.list() == []
    assert (await pool.capacity()).used == used
    await pool.close()

    (folder / "v.json").write_bytes(record)
    content.rename(folder / "v.img")  # as if killed before the content was moved
    pool = await opened()
    assert [v.name for v in await pool.list()] == ["v"], "that one was never deleted"
    assert await pool.erasing() == []
    assert (await pool.capacity()).used == used
    await pool.delete("v")
    await _erased(pool)
    assert kept.read_bytes() == bytes(8 * MI)
    assert _left(folder) == []


async def test_a_full_disk_keeps_no_volume_from_being_deleted(
    opened: Opener, real_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Directory, name: str, text: bytes, *, durable: bool = True) -> None:
        raise ExhaustedError("no room to write")

    pool, kept = await opened(), real_folder / "kept"
    await pool.create(VolumeRequest("v", 8 * MI, block=True, parameters={"erase": "zero"}))
    _write(real_folder / "pool" / "v.img", 8 * MI)
    os.link(real_folder / "pool" / "v.img", kept)
    monkeypatch.setattr(Directory, "put", full)
    await pool.delete("v")
    assert kept.read_bytes() == bytes(8 * MI), "there was no room to write down that it is to be erased, so it is"
    assert await pool.erasing() == []
    assert (await pool.capacity()).used == 0


async def test_a_disk_that_is_full_to_the_last_byte(real_folder: Path) -> None:
    """A real one, where not even the folder of jobs can be made."""
    place = real_folder / "disk"
    place.mkdir()
    mount.mount("none", place, "tmpfs", ["size=64m", "nr_inodes=20"])
    pool = Pool("p", make_backend(place / "pool", PoolLimits(), disks=Disks()))
    await pool.open()
    await pool.create(VolumeRequest("v", 32 * MI, block=True, parameters={"erase": "zero"}))
    _write(place / "pool" / "v.img", 32 * MI)
    os.link(place / "pool" / "v.img", place / "kept")
    with suppress(OSError):
        for number in range(100):
            (place / f"filler{number}").touch()
    await pool.delete("v")
    assert not any((place / "kept").read_bytes())
    assert _left(place / "pool") == []
    await pool.close()


async def test_a_snapshots_deletion_that_was_killed_half_way(opened: Opener, real_folder: Path) -> None:
    folder = real_folder / "pool" / ".snapshots"
    pool = await opened(rate=1)
    await pool.create(VolumeRequest("v", 8 * MI, block=True, parameters={"erase": "zero"}))
    _write(real_folder / "pool" / "v.img", 8 * MI)
    await pool.snapshots.create("s", "v")
    record = (folder / "s.json").read_bytes()
    await pool.snapshots.delete("s")
    await pool.close()
    (folder / "s.json").write_bytes(record)  # as if killed before the record was removed
    pool = await opened(rate=1)
    assert await pool.snapshots.list() == []
    assert (await pool.capacity()).used == 16 * MI
    await pool.close()
    pool = await opened()
    await _erased(pool)
    assert (await pool.capacity()).used == 8 * MI


async def test_half_a_copy_of_what_is_to_be_erased_is_erased(opened: Opener, real_folder: Path) -> None:
    """A kill while a clone is made leaves bytes of its source in a file that belongs to nobody."""
    folder, kept = real_folder / "pool", [real_folder / "kept", real_folder / "kept-snapshot"]
    pool = await opened()
    await pool.create(VolumeRequest("v", 8 * MI, block=True, parameters={"erase": "zero"}))
    _write(folder / "v.img", 8 * MI)
    await pool.snapshots.create("s", "v")
    await pool.close()
    for half, name in zip((folder / "clone.img", folder / ".snapshots" / "half.img"), kept, strict=True):
        half.write_bytes((folder / "v.img").read_bytes()[: 3 * MI + 5])
        (half.parent / f".making-{half.stem}").touch()
        os.link(half, name)
    pool = await opened()
    await _erased(pool)
    assert [name.read_bytes() for name in kept] == [bytes(3 * MI + 5)] * 2
    assert (await pool.capacity()).used == 16 * MI
    assert SECRET in (folder / "v.img").read_bytes()


async def test_a_copy_that_fails_is_erased(opened: Opener, real_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Directory, record: VolumeRecord, *, durable: bool = True) -> None:
        os.link(real_folder / "pool" / f"{record.name}.img", kept)
        raise ExhaustedError("no room to write")

    pool, kept = await opened(), real_folder / "kept"
    await pool.create(VolumeRequest("v", 8 * MI, block=True, parameters={"erase": "zero"}))
    _write(real_folder / "pool" / "v.img", 8 * MI)
    with monkeypatch.context() as no_room:
        no_room.setattr(Directory, "write", full)
        with pytest.raises(ExhaustedError):
            await pool.create(VolumeRequest("c", 8 * MI, block=True, source=VolumeOrigin(volume="v")))
    await _erased(pool)
    await pool.close()
    pool = await opened()
    await _erased(pool)
    assert kept.read_bytes() == bytes(8 * MI)
    assert (await pool.capacity()).used == 8 * MI


async def test_many_first_ones_at_once(opened: Opener) -> None:
    """The folders of snapshots and of jobs are made with the first, which may be several."""
    pool = await opened()
    names = [f"v{number}" for number in range(8)]
    for name in names:
        await pool.create(VolumeRequest(name, MI, block=True, parameters={"erase": "zero"}))
    await asyncio.gather(*(pool.snapshots.create(f"s{name}", name) for name in names))
    await asyncio.gather(*(pool.delete(name) for name in names))
    await asyncio.gather(*(pool.snapshots.delete(f"s{name}") for name in names))
    await _erased(pool)
    assert (await pool.capacity()).used == 0


async def test_a_disk_that_fails_is_told_and_the_room_stays_taken(
    opened: Opener, real_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    pool = await opened()
    await pool.create(VolumeRequest("v", 8 * MI, block=True, parameters={"erase": "zero"}))
    _write(real_folder / "pool" / "v.img", 8 * MI)
    with monkeypatch.context() as broken_disk:
        broken_disk.setattr(Wiper, "_write_some", broken)
        await pool.delete("v")
        async with asyncio.timeout(120):
            while not (await pool.erasing())[0].problem:
                await asyncio.sleep(0.005)
    [erasure] = await pool.erasing()
    assert "Input/output error" in erasure.problem
    assert (await pool.capacity()).used == 8 * MI
    await pool.close()
    pool = await opened()
    await _erased(pool)
    assert (await pool.capacity()).used == 0


async def test_snapshots_are_erased_as_their_volume(opened: Opener, real_folder: Path) -> None:
    pool, kept = await opened(), real_folder / "kept"
    await pool.create(VolumeRequest("v", 8 * MI, block=True, parameters={"erase": "zero"}))
    _write(real_folder / "pool" / "v.img", 8 * MI)
    await pool.snapshots.create("s", "v")
    await pool.delete("v")
    os.link(real_folder / "pool" / ".snapshots" / "s.img", kept)
    assert SECRET in kept.read_bytes()
    await _erased(pool)
    await pool.snapshots.delete("s")
    await _erased(pool)
    assert kept.read_bytes() == bytes(8 * MI)
    assert (await pool.capacity()).used == 0


async def test_what_is_damaged_among_the_jobs_is_kept_and_counted(opened: Opener, real_folder: Path) -> None:
    folder = real_folder / "pool"
    pool = await opened(rate=1)
    await pool.create(VolumeRequest("v", 8 * MI, block=True, parameters={"erase": "zero"}))
    _write(folder / "v.img", 8 * MI)
    await pool.delete("v")
    await pool.close()
    (job,) = (folder / ".erasing").glob("*.json")
    job.write_text("{")
    pool = await opened()
    assert (await pool.capacity()).used == 8 * MI
    assert len(list((folder / ".erasing").glob("*.content"))) == 1


async def test_a_volume_in_use_is_not_erased(opened: Opener, real_folder: Path) -> None:
    pool, staging = await opened(), real_folder / "staging"
    await pool.create(VolumeRequest("v", 20 * MI, parameters={"erase": "zero"}))
    await pool.stage("v", staging)
    (staging / "file").write_bytes(SECRET)
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("v")
    assert (staging / "file").read_bytes() == SECRET
    assert " discard" not in Path("/proc/self/mounts").read_text().split(str(staging))[1].splitlines()[0]
    await pool.unstage("v", staging)
    await pool.delete("v")
    await _erased(pool)


async def test_rejected(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = await opened()
    with pytest.raises(InvalidError, match="erase: 'burn' is not offered here, want none or discard or zero or shred"):
        await pool.create(VolumeRequest("v", MI, parameters={"erase": "burn"}))
    monkeypatch.setattr(libc, "fstatfs_type", lambda _: 0x9123683E)
    await pool.close()
    pool = await opened()
    for method in ("zero", "shred"):
        with pytest.raises(UnsupportedError, match="is on btrfs, which writes new bytes elsewhere"):
            await pool.create(VolumeRequest("v", MI, parameters={"erase": method}))
        with pytest.raises(UnsupportedError):
            await pool.capacity_for({"erase": method})
    await pool.create(VolumeRequest("v", MI, parameters={"erase": "discard"}))


@pytest.fixture
def reflinks(real_folder: Path) -> Iterator[Path]:
    """A folder on xfs, where files can share blocks."""
    need("mkfs.xfs")
    image, place = real_folder / "xfs.img", real_folder / "xfs"
    with image.open("wb") as file:
        file.truncate(400 * MI)
    run(["mkfs.xfs", "-q", "-m", "reflink=1", "-s", "size=4096", str(image)])
    fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    attached = loop.attach(fd, str(image))
    place.mkdir()
    mount.mount(attached.path, place, "xfs", ())
    attached.close()
    os.close(fd)
    yield place
    mount.umount(place, lazy=True)


async def test_what_will_be_overwritten_shares_no_blocks(reflinks: Path) -> None:
    pool = Pool("p", make_backend(reflinks / "pool", PoolLimits(300 * MI, sparse=True), disks=Disks()), erase_rate=0)
    await pool.open()
    try:
        await pool.create(VolumeRequest("v", 8 * MI, block=True, parameters={"erase": "zero"}))
        await pool.create(VolumeRequest("plain", 8 * MI, block=True))
        for name in ("v", "plain"):
            _write(reflinks / "pool" / f"{name}.img", 8 * MI)
            await pool.snapshots.create(f"s-{name}", name)
        with pytest.raises(UnsupportedError, match="must be known from the beginning"):
            await pool.modify("plain", {"erase": "zero"})
        await pool.modify("v", {"erase": "shred"})
        await pool.create(
            VolumeRequest(
                "c", 8 * MI, block=True, source=VolumeOrigin(snapshot="s-plain"), parameters={"erase": "zero"}
            )
        )
        shared = [
            name
            for name, place in (("s-v", ".snapshots"), ("s-plain", ".snapshots"), ("c", ""), ("v", ""))
            if b'"shared":true' in (reflinks / "pool" / place / f"{name}.json").read_bytes()
        ]
        assert shared == ["s-plain"]
        await pool.delete("v")
        await _erased(pool)
    finally:
        await pool.close()


async def test_a_volume_does_not_become_trash_while_others_have_its_blocks(reflinks: Path) -> None:
    """What counts as free has to be free once it is deleted."""
    pool, stays = (
        Pool("p", make_backend(reflinks / "pool", PoolLimits(sparse=True), disks=Disks())),
        {UNDELETE: "86400"},
    )
    await pool.open()
    for name in ("alone", "kept"):
        await pool.create(VolumeRequest(name, 20 * MI, owner=stays))
        await pool.stage(name, reflinks / "staging")
        (reflinks / "staging" / "file").write_bytes(os.urandom(8 * MI))
        await pool.unstage(name, reflinks / "staging")
    await pool.snapshots.create("s", "kept")
    assert (await pool.trash.discard("alone"), await pool.trash.discard("kept")) == (True, False)
    await pool.snapshots.delete("s")
    async with asyncio.timeout(60):
        while not await pool.trash.discard("kept"):  # xfs frees what was removed a moment later
            await asyncio.sleep(0.05)
    await pool.create(VolumeRequest("new", (await pool.capacity()).largest))
    assert [volume.name for volume in await pool.list()] == ["new"]
    await pool.close()
