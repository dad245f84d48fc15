"""Snapshots, clones and growth of the image pool beyond the common contract: shared blocks, freezing, damage."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from itertools import count
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import ExhaustedError, PreconditionError
from tonnage.host import device, filesystem, loop, mount
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import PoolLimits, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fs.formats import EXT4
from tonnage.storage.pools.image import consistent_copy
from tonnage.storage.pools.image.backend import make_backend

pytestmark = pytest.mark.real
MI = 1024**2


def _pool(folder: Path, *, size: int = 1024 * MI, sparse: bool = True, ratio: float = float("inf")) -> Pool:
    return Pool("p", make_backend(folder / "pool", PoolLimits(size=size, sparse=sparse, ratio=ratio), disks=Disks()))


@pytest.fixture(params=["xfs", "btrfs"])
def sharing(request: pytest.FixtureRequest, real_folder: Path) -> Path:
    """A disk whose files can share blocks."""
    need(f"mkfs.{request.param}")
    image, root = real_folder / "disk", real_folder / "root"
    with image.open("wb") as file:
        file.truncate(700 * MI)
    run(
        [
            f"mkfs.{request.param}",
            "-q",
            *(["-m", "reflink=1", "-s", "size=4096"] if request.param == "xfs" else []),
            str(image),
        ]
    )
    root.mkdir()
    fd = os.open(image, os.O_RDWR)
    attached = loop.attach(fd, str(image))
    os.close(fd)
    try:
        mount.mount(attached.path, root, request.param)
    finally:
        attached.close()
    return root


async def test_blocks_are_shared_where_the_disk_can_and_promised_all_the_same(sharing: Path) -> None:
    pool, staging = _pool(sharing, ratio=1.0), sharing / "staging"
    await pool.open()
    await pool.create(VolumeRequest("a", 150 * MI))
    await pool.stage("a", staging)
    (staging / "file").write_bytes(os.urandom(100 * MI))
    os.sync()
    before = os.statvfs(sharing).f_bfree * os.statvfs(sharing).f_frsize
    await pool.snapshots.create("s", "a")
    await pool.create(VolumeRequest("b", 150 * MI, source=VolumeOrigin(snapshot="s")))
    after = os.statvfs(sharing).f_bfree * os.statvfs(sharing).f_frsize
    assert before - after < 50 * MI
    with pytest.raises(ExhaustedError):  # all three may be overwritten
        await pool.create(VolumeRequest("c", 250 * MI))
    (staging / "file").write_bytes(b"changed")
    other = sharing / "other"
    await pool.stage("b", other)
    assert (other / "file").stat().st_size == 100 * MI
    await pool.unstage("b", other)
    await pool.unstage("a", staging)
    await pool.close()
    again = _pool(sharing, ratio=1.0)
    await again.open()
    with pytest.raises(ExhaustedError):
        await again.create(VolumeRequest("c", 250 * MI))
    await again.close()


class _Writer:
    """A program that writes a number to one file, then to another, each durably, until it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.done = 0
        self._stopped = threading.Event()
        self._files = [os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in ("first", "second")]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for number in count(1):
            for fd in self._files:
                os.pwrite(fd, number.to_bytes(8, "big") * 512, 0)
                os.fdatasync(fd)
            self.done = number
            if self._stopped.is_set():
                return

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        for fd in self._files:
            os.close(fd)


def _read(path: Path) -> int:
    """The number in a file, which was written as a whole."""
    numbers = {number for (number,) in struct.iter_unpack(">Q", path.read_bytes())}
    (number,) = numbers
    return int(number)


@pytest.mark.parametrize(
    ("parameters", "frozen"), [({}, 0), ({"mkfsOptions": "-O ^has_journal"}, 3)], ids=["journal", "no journal"]
)
async def test_a_snapshot_is_of_one_moment_while_a_program_writes(
    sharing: Path, monkeypatch: pytest.MonkeyPatch, parameters: dict[str, str], frozen: int
) -> None:
    """It has what was written before the call, synced or not. A file system with a journal need not be frozen."""
    pool, staging, freezes, freeze = _pool(sharing), sharing / "staging", 0, filesystem.freeze

    def counted(fd: int) -> None:
        nonlocal freezes
        freezes += 1
        freeze(fd)

    monkeypatch.setattr(filesystem, "freeze", counted)
    await pool.open()
    await pool.create(VolumeRequest("a", 40 * MI, parameters=parameters))
    await pool.stage("a", staging)
    writer, begun = _Writer(staging), []
    while not writer.done:
        await asyncio.sleep(0.01)
    for number in range(3):
        (staging / f"unsynced-{number}").write_bytes(b"x" * MI)
        begun.append(writer.done)
        await pool.snapshots.create(f"s{number}", "a")
    writer.stop()
    await pool.unstage("a", staging)
    assert freezes == frozen
    for number, least in enumerate(begun):
        await pool.create(VolumeRequest(f"r{number}", 40 * MI, source=VolumeOrigin(snapshot=f"s{number}")))
        await pool.stage(f"r{number}", staging)
        first, second = _read(staging / "first"), _read(staging / "second")
        assert first - second in (0, 1)
        assert least <= second <= writer.done
        assert (staging / f"unsynced-{number}").read_bytes() == b"x" * MI
        assert not (staging / f"unsynced-{number + 1}").exists()
        await pool.unstage(f"r{number}", staging)
    await pool.close()


async def test_an_image_of_many_pieces_is_frozen(sharing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To share all of it at one moment would take longer."""
    monkeypatch.setattr(consistent_copy, "_FEW", 0)
    pool, staging = _pool(sharing), sharing / "staging"
    await pool.open()
    await pool.create(VolumeRequest("a", 40 * MI))
    await pool.stage("a", staging)
    (staging / "file").write_text("not synced")
    await pool.snapshots.create("s", "a")
    await pool.unstage("a", staging)
    await pool.create(VolumeRequest("b", 40 * MI, source=VolumeOrigin(snapshot="s")))
    await pool.stage("b", staging)
    assert (staging / "file").read_text() == "not synced"
    await pool.unstage("b", staging)
    await pool.close()


async def test_raw_block_in_use_is_copied_only_where_blocks_can_be_shared(real_folder: Path) -> None:
    pool, staging = _pool(real_folder), real_folder / "staging"
    await pool.open()
    await pool.create(VolumeRequest("a", 8 * MI, block=True))
    await pool.stage("a", staging)
    try:
        await pool.snapshots.create("s", "a")
    except PreconditionError:  # not here: then nothing is left of it
        assert await pool.snapshots.list() == []
        assert os.listdir(real_folder / "pool" / ".snapshots") == [".tonnage-pool"]
    await pool.unstage("a", staging)
    assert (await pool.snapshots.create("t", "a")).block
    await pool.close()


async def test_what_a_killed_process_left_frozen_is_thawed(real_folder: Path) -> None:
    pool, staging = _pool(real_folder), real_folder / "staging"
    await pool.open()
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", staging)
    fd = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
    (real_folder / "pool" / ".frozen-a").touch()
    filesystem.freeze(fd)
    try:
        await pool.close()
        await pool.open()
        assert not filesystem.thaw(fd), "it was thawed before"
    finally:
        filesystem.thaw(fd)
        os.close(fd)
    assert not (real_folder / "pool" / ".frozen-a").exists()
    (staging / "file").write_text("can be written")
    await pool.unstage("a", staging)
    await pool.close()


async def test_what_an_unfinished_expansion_added_is_cut(real_folder: Path) -> None:
    pool = _pool(real_folder, sparse=False)
    await pool.open()
    await pool.create(VolumeRequest("a", 20 * MI))
    image = real_folder / "pool" / "a.img"
    length = image.stat().st_size
    await pool.close()
    os.truncate(image, length + 50 * MI)
    await pool.open()
    assert image.stat().st_size == length
    await pool.growth.expand("a", 40 * MI)
    found = image.stat()
    assert found.st_size >= 40 * MI
    assert found.st_blocks * 512 >= found.st_size, "thick"
    await pool.close()


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
async def test_every_copy_has_a_uuid_of_its_own(real_folder: Path, fstype: str) -> None:
    need(f"mkfs.{fstype}")
    pool, staging = _pool(real_folder, size=4096 * MI), real_folder / "staging"
    await pool.open()
    await pool.create(VolumeRequest("a", 300 * MI, fstype=fstype))
    await pool.stage("a", staging)
    await pool.create(VolumeRequest("b", 300 * MI, source=VolumeOrigin(volume="a")))  # its log is not empty
    await pool.create(VolumeRequest("c", 300 * MI, source=VolumeOrigin(volume="b")))  # a copy of a copy
    found = []
    for name in "abc":
        fd = os.open(real_folder / "pool" / f"{name}.img", os.O_RDONLY)
        found.append(device.probe(fd))
        os.close(fd)
    assert len({signature.uuid for signature in found if signature is not None}) == 3
    await pool.unstage("a", staging)
    await pool.close()


async def test_health_tells_what_is_wrong(real_folder: Path) -> None:
    pool, staging = _pool(real_folder), real_folder / "staging"
    await pool.open()
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", staging)
    assert not (await pool.condition("a", staging)).abnormal
    await pool.unstage("a", staging)
    image = real_folder / "pool" / "a.img"
    for damage, words in (("unstaged", "not mounted"), ("short", "was cut off"), ("lost", "is gone")):
        if damage == "short":
            os.truncate(image, MI)
        if damage == "lost":
            image.unlink()
        told = await pool.condition("a", staging)
        assert told.abnormal
        assert words in told.message
    await pool.close()


@pytest.mark.parametrize("made", [1, 5, 31, 64, 300])
@pytest.mark.parametrize("usable", [64, 511, 700, 3000])
async def test_a_grown_ext4_holds_what_was_asked(real_folder: Path, made: int, usable: int) -> None:
    if usable < made:
        return
    pool, staging = _pool(real_folder, size=8192 * MI), real_folder / "staging"
    await pool.open()
    await pool.create(VolumeRequest("a", made * MI))
    await pool.stage("a", staging)
    await pool.unstage("a", staging)
    await pool.growth.expand("a", usable * MI)
    await pool.stage("a", staging)
    assert (await pool.stats("a", staging)).available >= usable * MI
    assert EXT4.grown(usable * MI, EXT4.length(made * MI)) < usable * MI * 1.06 + 64 * MI
    await pool.unstage("a", staging)
    await pool.close()
