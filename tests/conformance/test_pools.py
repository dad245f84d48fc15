"""The Pool contract, one test file for all kinds: whatever passes here can stand behind the CSI driver."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.conformance import benches
from tests.conformance.benches import MI, SIZE, Bench
from tests.programs import need

from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    HostError,
    InvalidError,
    NotFoundError,
    OutOfRangeError,
    PreconditionError,
    TonnageError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.host import lvm, mount
from tonnage.host.filesystem import may_grow_ext4
from tonnage.storage.pools import kinds
from tonnage.storage.pools.base.contract import INLINE, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.parameters import ERASE, LIMITS, RESERVE, SOURCE
from tonnage.storage.pools.base.record import UNDELETE
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.directory.backend import DirectoryBackend
from tonnage.storage.pools.lvm.backend import LvmBackend

KINDS = [
    pytest.param(of, id=name, marks=pytest.mark.real if of.mounts else ()) for name, of in benches.chosen().items()
]


@pytest.fixture(params=KINDS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with benches.opened(request.param, tmp_path, request) as made:
        yield made


async def test_capacity_counts_what_was_asked_to_the_byte(bench: Bench) -> None:
    if bench.fixed:
        return  # tests/unit/storage/pools/static/test_backend.py says how disks are chosen
    pool = bench.pool
    assert (await pool.capacity()).free == SIZE

    volume = await pool.create(VolumeRequest("a", 4096 * MI))
    room = await pool.capacity()
    assert volume.size == 4096 * MI
    assert (room.total, room.free, room.largest, room.used) == (SIZE, 26620 * MI, 26620 * MI, 4096 * MI)

    await pool.delete("a")
    room = await pool.capacity()
    assert (room.free, room.largest, room.used) == (SIZE, SIZE, 0)


async def test_capacity_rejects_what_it_does_not_have(bench: Bench) -> None:
    with pytest.raises(UnsupportedError, match="zfs"):
        await bench.pool.capacity(fstype="zfs")
    if not bench.pool.features.blocks:
        with pytest.raises(UnsupportedError, match="block"):
            await bench.pool.capacity(block=True)


async def test_create_again_gives_the_same_volume(bench: Bench) -> None:
    request = VolumeRequest("a", 5 * MI, owner={"claim": "default/x"})
    first = await bench.pool.create(request)
    again = await bench.pool.create(request)
    larger_limit = await bench.pool.create(VolumeRequest("a", MI, limit=8 * MI))

    assert first == again == larger_limit
    fstype = "tmpfs" if bench.fixed else bench.pool.features.fstypes[0]  # a disk has the one that it came with
    assert (first.owner, first.fstype, first.block) == ({"claim": "default/x"}, fstype, False)
    assert [v.name for v in await bench.pool.list()] == ["a"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        pytest.param(VolumeRequest("a", 6 * MI), "its size is", id="larger"),
        pytest.param(VolumeRequest("a", MI, limit=2 * MI), "its size is", id="limit below"),
        pytest.param(VolumeRequest("a", 5 * MI, block=True), "file system", id="block"),
    ],
)
async def test_create_rejects_a_taken_name(bench: Bench, other: VolumeRequest, words: str) -> None:
    await bench.pool.create(VolumeRequest("a", 5 * MI))
    if other.block and not bench.pool.features.blocks:
        return
    with pytest.raises(AlreadyExistsError, match=words):
        await bench.pool.create(other)
    assert (await bench.pool.get("a")).size == 5 * MI


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        pytest.param(VolumeRequest("a", 0), InvalidError, id="size 0"),
        pytest.param(VolumeRequest("a", -1), InvalidError, id="negative"),
        pytest.param(VolumeRequest("a", 2**70), InvalidError, id="beyond int64"),
        pytest.param(VolumeRequest("../a", MI), InvalidError, id="path"),
        pytest.param(VolumeRequest("a\0b", MI), InvalidError, id="NUL"),
        pytest.param(VolumeRequest("a" * 10_000, MI), InvalidError, id="10 kB"),
        pytest.param(VolumeRequest("", MI), InvalidError, id="no name"),
        pytest.param(VolumeRequest(".hidden", MI), InvalidError, id="hidden"),
        pytest.param(VolumeRequest("a", MI, fstype="zfs"), UnsupportedError, id="unknown file system"),
        pytest.param(VolumeRequest("a", MI, parameters={"color": "red"}), InvalidError, id="unknown parameter"),
        pytest.param(VolumeRequest("a", SIZE + 1), OutOfRangeError, id="larger than the pool"),
        pytest.param(VolumeRequest("a", 2**62), OutOfRangeError, id="huge"),
        pytest.param(VolumeRequest("a", 2 * MI, limit=MI), OutOfRangeError, id="size above limit"),
    ],
)
async def test_create_rejects(bench: Bench, request_: VolumeRequest, error: type[TonnageError]) -> None:
    with pytest.raises(error):
        await bench.pool.create(request_)
    assert await bench.pool.list() == []
    assert (await bench.pool.capacity()).used == 0


async def test_exact_fit_and_not_a_byte_more(bench: Bench) -> None:
    if bench.fixed:
        return  # tests/unit/storage/pools/static/test_backend.py says how disks are chosen
    for number in range(7):
        await bench.pool.create(VolumeRequest(f"v{number}", 4388 * MI))  # 7 x 4388Mi = 30716Mi
    assert (await bench.pool.capacity()).largest == 0
    with pytest.raises(ExhaustedError, match="at most 0 for one volume"):
        await bench.pool.create(VolumeRequest("one", MI))
    await bench.pool.delete("v3")
    await bench.pool.create(VolumeRequest("again", 4388 * MI))


async def test_many_at_once_never_promise_more_than_there_is(bench: Bench) -> None:
    if bench.fixed:
        return  # tests/unit/storage/pools/static/test_backend.py says how disks are chosen

    async def attempt(number: int) -> bool:
        try:
            await bench.pool.create(VolumeRequest(f"v{number}", 3 * 1024 * MI))
        except ExhaustedError:
            return False
        return True

    made = await asyncio.gather(*(attempt(number) for number in range(20)))

    assert sum(made) == len(await bench.pool.list()) == 9
    assert (await bench.pool.capacity()).used == 9 * 3 * 1024 * MI


async def test_same_volume_asked_for_many_times_at_once(bench: Bench) -> None:
    volumes = await asyncio.gather(*(bench.pool.create(VolumeRequest("a", 5 * MI)) for _ in range(10)))
    assert len({volume.created for volume in volumes}) == 1
    assert (await bench.pool.capacity()).used == 5 * MI


async def test_unknown_names(bench: Bench) -> None:
    pool, folder = bench.pool, bench.folder
    await pool.delete("nobody")
    await pool.unstage("nobody", folder / "nowhere")
    await pool.unpublish("nobody", folder / "nowhere")
    for call in (
        pool.get("nobody"),
        pool.stage("nobody", folder / "s"),
        pool.publish("nobody", folder / "s", folder / "t"),
        pool.stats("nobody", folder / "s"),
    ):
        with pytest.raises(NotFoundError):
            await call


async def test_a_life_every_step_twice(bench: Bench) -> None:
    pool, staging, target = bench.pool, bench.folder / "staging", bench.folder / "target"
    await pool.create(VolumeRequest("a", 20 * MI))
    with pytest.raises(PreconditionError, match="not staged"):
        await pool.publish("a", staging, target)
    for _ in range(2):
        await pool.stage("a", staging)
    for _ in range(2):
        await pool.publish("a", staging, target)
    with pytest.raises(AlreadyExistsError, match="readonly"):
        await pool.publish("a", staging, target, readonly=True)

    (target / "file").write_text("content")
    stats = await pool.stats("a", target)
    assert stats.total >= 20 * MI
    assert stats.available >= 19 * MI
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")

    for _ in range(2):
        await pool.unpublish("a", target)
    assert not target.exists()
    with pytest.raises(NotFoundError):
        await pool.stats("a", target)
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")
    for _ in range(2):
        await pool.unstage("a", staging)
    for _ in range(2):
        await pool.delete("a")
    assert await pool.list() == []


async def test_two_targets_one_read_only(bench: Bench) -> None:
    pool, staging = bench.pool, bench.folder / "staging"
    writable, readonly = bench.folder / "w", bench.folder / "r"
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", staging)
    await pool.publish("a", staging, writable)
    for _ in range(2):
        await pool.publish("a", staging, readonly, readonly=True)
    if bench.mounts:
        (writable / "file").write_text("content")
        assert (readonly / "file").read_text() == "content"
        with pytest.raises(OSError, match="Read-only"):
            (readonly / "other").write_text("no")
    await pool.unpublish("a", writable)
    await pool.unpublish("a", readonly)
    await pool.unstage("a", staging)
    await pool.delete("a")


async def test_content_and_record_outlive_the_process(bench: Bench) -> None:
    if not bench.mounts:
        return
    staging = bench.folder / "staging"
    owner = {"claim": "default/x", "ephemeral": "true"}
    await bench.pool.create(VolumeRequest("a", 20 * MI, owner=owner))
    await bench.pool.stage("a", staging)
    (staging / "file").write_text("content")

    pool = await bench.again()
    [volume] = await pool.list()
    assert (volume.name, volume.size, volume.owner) == ("a", 20 * MI, owner)
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")
    await pool.stage("a", staging)
    await pool.unstage("a", staging)
    assert not mount.is_mount(staging)

    pool = await bench.again()
    await pool.stage("a", staging)
    assert (staging / "file").read_text() == "content"
    await pool.unstage("a", staging)
    await pool.delete("a")
    await bench.settled()
    assert (await pool.capacity()).used == 0


def _fill(path: Path) -> int:
    """Write until the volume is full and say how many bytes it took."""
    written = 0
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                written += file.write(bytes(MI // 4))
                os.fdatasync(file.fileno())  # btrfs counts when it allocates
        except OSError as failure:
            if failure.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
    return written


async def test_a_size_is_a_limit_and_usable_in_full(bench: Bench) -> None:
    if not bench.mounts:
        return
    staging = bench.folder / "staging"
    await bench.pool.create(VolumeRequest("a", 20 * MI))
    await bench.pool.stage("a", staging)
    written = _fill(staging / "file")
    assert 20 * MI <= written <= 22 * MI
    await bench.pool.unstage("a", staging)
    await bench.pool.delete("a")


async def test_targets_are_never_followed_nor_emptied(bench: Bench) -> None:
    if not bench.mounts:
        return
    pool, staging, folder = bench.pool, bench.folder / "staging", bench.folder
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", staging)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("kept")
    link = folder / "link"
    link.symlink_to(elsewhere)
    with pytest.raises(PreconditionError, match="symlink"):
        await pool.publish("a", staging, link)
    with pytest.raises(PreconditionError, match="its files stay"):
        await pool.unpublish("a", elsewhere)
    await pool.unpublish("a", link)
    assert (elsewhere / "precious").read_text() == "kept"
    assert not link.is_symlink()


async def test_busy_target_is_a_precondition(bench: Bench) -> None:
    if not bench.mounts:
        return
    pool, staging = bench.pool, bench.folder / "staging"
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", staging)
    with (staging / "open").open("w"), pytest.raises(PreconditionError, match="in use"):
        await pool.unstage("a", staging)
    await pool.unstage("a", staging)


async def test_staging_place_taken_by_another_volume(bench: Bench) -> None:
    if not bench.mounts:
        return
    pool, staging = bench.pool, bench.folder / "staging"
    for name in ("a", "b"):
        await pool.create(VolumeRequest(name, 20 * MI))
    await pool.stage("a", staging)
    with pytest.raises(AlreadyExistsError):
        await pool.stage("b", staging)
    with pytest.raises(PreconditionError):
        await pool.publish("b", staging, bench.folder / "t")
    await pool.unstage("a", staging)


async def test_cancelled_calls_leave_a_pool_that_agrees_with_itself(bench: Bench) -> None:
    async def cancelled(number: int) -> None:
        task = asyncio.ensure_future(bench.pool.create(VolumeRequest(f"v{number}", 5 * MI)))
        for _ in range(number):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    await asyncio.gather(*(cancelled(number) for number in range(8)))
    volumes = await bench.pool.list()
    assert (await bench.pool.capacity()).used == 5 * MI * len(volumes)
    if bench.mounts:
        again = await bench.again()
        assert await again.list() == volumes


async def test_a_pool_that_is_not_open_never_says_that_a_volume_is_gone(bench: Bench) -> None:
    if not bench.mounts:
        return
    await bench.pool.create(VolumeRequest("a", 5 * MI))
    await bench.pool.close()
    for call in (
        bench.pool.delete("a"),
        bench.pool.delete("b"),
        bench.pool.get("b"),
        bench.pool.list(),
        bench.pool.create(VolumeRequest("a", 5 * MI)),
        bench.pool.capacity(),
    ):
        with pytest.raises(UnavailableError, match="not open"):
            await call


async def _write(bench: Bench, name: str, text: str) -> None:
    """Leave a file with that text in a volume."""
    staging = bench.folder / f"staging-{name}"
    await bench.pool.stage(name, staging)
    if bench.mounts:
        (staging / "file").write_text(text)
    await bench.pool.unstage(name, staging)


async def _shows(bench: Bench, name: str, text: str, *, least: int = 0) -> None:
    """Check that a volume has that text and room for `least` bytes in all."""
    staging = bench.folder / f"staging-{name}"
    await bench.pool.stage(name, staging)
    if bench.mounts:
        assert (staging / "file").read_text() == text
        assert (await bench.pool.stats(name, staging)).available >= least
    await bench.pool.unstage(name, staging)


def _has(bench: Bench, *flags: str) -> bool:
    """Whether a pool offers all of these; if not, test_what_a_pool_does_not_offer... is what it is held against."""
    return all(getattr(bench.pool.features, flag) for flag in flags)


async def test_what_a_pool_does_not_offer_is_rejected_by_name(bench: Bench) -> None:
    pool = bench.pool
    await pool.create(VolumeRequest("a", 20 * MI))
    if not pool.features.snapshots:
        assert await pool.snapshots.list() == []
        with pytest.raises(UnsupportedError, match="snapshots"):
            await pool.snapshots.create("s", "a")
    if not pool.features.clones:
        with pytest.raises(UnsupportedError, match="volume a"):
            await pool.create(VolumeRequest("b", 20 * MI, source=VolumeOrigin(volume="a")))
    if not pool.features.expansion:
        with pytest.raises(UnsupportedError, match="larger"):
            await pool.growth.expand("a", 30 * MI)
    assert not (await pool.condition("a")).abnormal
    with pytest.raises(NotFoundError):
        await pool.condition("nobody")


async def test_a_snapshot_keeps_what_was_and_outlives_its_volume(bench: Bench) -> None:
    if not _has(bench, "snapshots", "clones"):
        return
    pool = bench.pool
    await pool.create(VolumeRequest("a", 20 * MI, owner={"claim": "x"}))
    await _write(bench, "a", "first")
    snapshot = await pool.snapshots.create("s", "a", owner={"driver": "d"})
    assert (snapshot.name, snapshot.volume, snapshot.size, snapshot.owner) == ("s", "a", 20 * MI, {"driver": "d"})
    assert await pool.snapshots.create("s", "a") == snapshot == await pool.snapshots.get("s")
    await _write(bench, "a", "second")
    assert (await pool.capacity()).used == 40 * MI
    await pool.delete("a")
    assert await pool.snapshots.create("s", "a") == snapshot, "repeated after its volume is gone"

    pool = await bench.again()
    assert await pool.snapshots.list() == [snapshot]
    request = VolumeRequest("b", 30 * MI, source=VolumeOrigin(snapshot="s"))
    volume = await pool.create(request)
    assert (volume.size, volume.source, volume.fstype) == (30 * MI, request.source, snapshot.fstype)
    for _ in range(2):
        await pool.snapshots.delete("s")
    assert await pool.create(request) == volume, "repeated after its source is gone"
    await _shows(bench, "b", "first", least=29 * MI)
    assert (await pool.capacity()).used == 30 * MI
    await pool.delete("b")
    assert (await (await bench.again()).capacity()).used == 0


async def test_a_snapshot_of_a_volume_in_use_is_of_one_moment(bench: Bench) -> None:
    if not _has(bench, "snapshots", "clones"):
        return
    pool, staging = bench.pool, bench.folder / "staging"
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", staging)
    if bench.mounts:
        (staging / "file").write_text("not yet on the disk")
    await pool.snapshots.create("s", "a")
    if bench.mounts:
        (staging / "file").write_text("later: it is not frozen")
    await pool.create(VolumeRequest("b", 20 * MI, source=VolumeOrigin(snapshot="s")))
    await pool.create(VolumeRequest("c", 24 * MI, source=VolumeOrigin(volume="a")))
    both = bench.folder / "both"
    await pool.stage("b", both)  # beside its source: they must not be taken for the same
    if bench.mounts:
        assert (both / "file").read_text() == "not yet on the disk"
        (both / "file").write_text("its own")
        assert (staging / "file").read_text() == "later: it is not frozen"
    await pool.unstage("b", both)
    await _shows(bench, "c", "later: it is not frozen", least=22 * MI)
    await pool.unstage("a", staging)


async def test_a_copy_of_a_volume_that_was_never_used(bench: Bench) -> None:
    if not _has(bench, "snapshots", "clones"):
        return
    pool = bench.pool
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.snapshots.create("s", "a")
    for name, source in (("b", VolumeOrigin(snapshot="s")), ("c", VolumeOrigin(volume="a"))):
        await pool.create(VolumeRequest(name, 24 * MI, source=source))
        await _write(bench, name, name)
        await _shows(bench, name, name, least=22 * MI)


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
async def test_every_file_system_is_copied_and_grows(bench: Bench, fstype: str) -> None:
    if not _has(bench, "snapshots", "clones", "expansion"):
        return
    if bench.kind != "image":
        return  # only its volumes have file systems of several kinds
    need(f"mkfs.{fstype}")
    pool, staging = bench.pool, bench.folder / "staging"
    await pool.create(VolumeRequest("a", 310 * MI, fstype=fstype))
    await pool.stage("a", staging)
    (staging / "file").write_text("content")
    await pool.snapshots.create("s", "a")
    await pool.create(VolumeRequest("b", 600 * MI, source=VolumeOrigin(snapshot="s")))
    await pool.create(VolumeRequest("c", 310 * MI, source=VolumeOrigin(volume="a")))
    await _shows(bench, "b", "content", least=599 * MI)
    await _shows(bench, "c", "content", least=309 * MI)
    expanded = await pool.growth.expand("a", 700 * MI)
    rejected = fstype == "ext4" and not may_grow_ext4()
    assert (expanded.size, expanded.pending) == (700 * MI, rejected)
    assert ("CAP_SYS_RESOURCE" in pool.growth.unfinished("a")) == rejected
    if rejected:
        assert pool.growth.unfinished("a") in (await pool.condition("a")).message
        with pytest.raises(PreconditionError, match="CAP_SYS_RESOURCE"):
            await pool.growth.grow("a", staging)
    else:
        assert not (await pool.growth.grow("a", staging)).pending
        assert (await pool.stats("a", staging)).available >= 699 * MI
    await pool.unstage("a", staging)
    await _shows(bench, "a", "content", least=699 * MI)
    assert not (await pool.get("a")).pending
    other = "xfs" if fstype == "ext4" else "ext4"
    with pytest.raises(InvalidError, match=fstype):
        await pool.create(VolumeRequest("d", 400 * MI, fstype=other, source=VolumeOrigin(snapshot="s")))


async def test_raw_block_is_copied_and_grows(bench: Bench) -> None:
    if not _has(bench, "snapshots", "clones", "expansion", "blocks"):
        return
    pool, staging = bench.pool, bench.folder / "staging"
    await pool.create(VolumeRequest("a", 8 * MI, block=True))
    await pool.snapshots.create("s", "a")
    await pool.create(VolumeRequest("b", 12 * MI, block=True, source=VolumeOrigin(snapshot="s")))
    with pytest.raises(InvalidError, match="raw block"):
        await pool.create(VolumeRequest("c", 30 * MI, source=VolumeOrigin(snapshot="s")))
    await pool.stage("b", staging)
    await pool.growth.expand("b", 16 * MI)
    grown = await pool.growth.grow("b", staging)
    assert (grown.size, grown.pending) == (16 * MI, False)
    if bench.mounts:
        with (staging / "device").open("rb") as device:
            assert device.seek(0, os.SEEK_END) == 16 * MI
    await pool.unstage("b", staging)


async def test_raw_block_that_is_shown_stays_what_it_is(bench: Bench) -> None:
    """Unstaged too early: who still sees the device must not see that of another volume, which takes its number."""
    if not _has(bench, "expansion", "blocks") or not bench.mounts:
        return
    pool, staging, other = bench.pool, bench.folder / "staging", bench.folder / "other"
    await pool.create(VolumeRequest("a", 8 * MI, block=True))
    await pool.create(VolumeRequest("b", 8 * MI, block=True))
    target = bench.folder / "target"
    await pool.stage("a", staging)
    await pool.publish("a", staging, target, readonly=False)
    before = target.stat().st_rdev
    target.write_bytes(b"content of a")
    await pool.unstage("a", staging)
    await pool.stage("b", other)
    assert (other / "device").stat().st_rdev != before == target.stat().st_rdev
    with target.open("rb") as shown:
        assert shown.read(12) == b"content of a"
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")
    await pool.unpublish("a", target)
    await pool.unstage("b", other)
    await pool.delete("a")
    await pool.delete("b")


async def test_snapshots_that_are_rejected(bench: Bench) -> None:
    if not _has(bench, "snapshots", "clones"):
        return
    pool = bench.pool
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.create(VolumeRequest("b", 20 * MI))
    await pool.snapshots.create("s", "a")
    with pytest.raises(AlreadyExistsError, match="of volume a"):
        await pool.snapshots.create("s", "b")
    for volume, error in (("nobody", NotFoundError), ("a", InvalidError)):
        with pytest.raises(error):
            await pool.snapshots.create("../x" if volume == "a" else "t", volume)
    with pytest.raises(OutOfRangeError, match="less than that of its source"):
        await pool.create(VolumeRequest("c", 10 * MI, source=VolumeOrigin(snapshot="s")))
    for source in (VolumeOrigin(snapshot="nobody"), VolumeOrigin(volume="nobody")):
        with pytest.raises(NotFoundError):
            await pool.create(VolumeRequest("c", 20 * MI, source=source))
    with pytest.raises(AlreadyExistsError, match="made from nothing"):
        await pool.create(VolumeRequest("a", 20 * MI, source=VolumeOrigin(snapshot="s")))
    await pool.snapshots.delete("nobody")
    with pytest.raises(NotFoundError):
        await pool.snapshots.get("nobody")
    await pool.create(VolumeRequest("big", SIZE - 60 * MI))
    with pytest.raises(ExhaustedError):
        await pool.snapshots.create("t", "a")
    assert [snapshot.name for snapshot in await pool.snapshots.list()] == ["s"]


async def test_volumes_grow_and_never_shrink(bench: Bench) -> None:
    if not _has(bench, "expansion"):
        return
    pool, staging = bench.pool, bench.folder / "staging"
    await pool.create(VolumeRequest("a", 20 * MI))
    await _write(bench, "a", "content")
    for _ in range(2):
        assert (await pool.growth.expand("a", 40 * MI)).size == 40 * MI
    assert (await pool.growth.expand("a", 10 * MI)).size == 40 * MI, "large enough"
    assert (await pool.capacity()).used == 40 * MI
    with pytest.raises(OutOfRangeError, match="never made smaller"):
        await pool.growth.expand("a", 10 * MI, limit=30 * MI)
    with pytest.raises(OutOfRangeError):
        await pool.growth.expand("a", SIZE + MI)
    with pytest.raises(NotFoundError):
        await pool.growth.expand("nobody", MI)
    with pytest.raises(NotFoundError):
        await pool.growth.grow("a", staging)
    await pool.create(VolumeRequest("b", SIZE - 60 * MI))
    with pytest.raises(ExhaustedError, match="cannot grow by"):
        await pool.growth.expand("a", 100 * MI)
    pool = await bench.again()
    await pool.stage("a", staging)
    for _ in range(2):
        assert not (await pool.growth.grow("a", staging)).pending
    assert (await pool.stats("a", staging)).total >= 40 * MI
    grown = await pool.growth.expand("a", 60 * MI)  # with its file system, since it is mounted
    rejected = grown.fstype == "ext4" and not may_grow_ext4() and bench.mounts
    assert (grown.size, grown.pending, bool(pool.growth.unfinished("a"))) == (60 * MI, rejected, rejected)
    assert (await pool.stats("a", staging)).total >= (38 if rejected else 58) * MI
    await pool.unstage("a", staging)
    await _shows(bench, "a", "content", least=58 * MI)
    assert (await pool.capacity()).used == SIZE


async def test_copies_at_once_do_not_wait_in_a_circle(bench: Bench) -> None:
    if not _has(bench, "clones"):
        return
    pool = bench.pool
    await pool.create(VolumeRequest("a", 20 * MI))
    requests = [VolumeRequest(f"v{n}", 20 * MI, source=VolumeOrigin(volume="a")) for n in range(6)]
    missing = [
        VolumeRequest("x", 20 * MI, source=VolumeOrigin(volume="y")),
        VolumeRequest("y", 20 * MI, source=VolumeOrigin(volume="x")),
    ]
    answers = await asyncio.gather(*(pool.create(r) for r in [*requests, *missing]), return_exceptions=True)
    assert [isinstance(answer, NotFoundError) for answer in answers] == [False] * 6 + [True] * 2
    assert (await pool.capacity()).used == 7 * 20 * MI


async def test_erasing_frees_the_name_at_once_and_the_room_at_the_end(bench: Bench) -> None:
    if ERASE not in bench.pool.features.parameters:
        return
    pool = bench.pool
    for method in ("none", "discard", "zero", "shred"):
        request = VolumeRequest("a", 20 * MI, parameters={"erase": method})
        try:
            await pool.create(request)
        except (InvalidError, UnsupportedError):
            assert method != "none", "that is offered everywhere"
            assert (await pool.capacity()).used == 0
            continue
        await _write(bench, "a", "content")
        await pool.delete("a")
        await pool.delete("a")
        with pytest.raises(NotFoundError):
            await pool.get("a")
        waiting = sum(erasure.reserved for erasure in await pool.erasing())
        assert (await pool.capacity()).used <= waiting
        again = await pool.create(request)
        assert again.created
        if bench.mounts:
            staging = bench.folder / "staging"
            await pool.stage("a", staging)
            assert not (staging / "file").exists()
            await pool.unstage("a", staging)
        pool = await bench.again()
        assert [volume.name for volume in await pool.list()] == ["a"]
        await pool.delete("a")
        async with asyncio.timeout(120):
            while await pool.erasing():
                await asyncio.sleep(0.005)
        assert (await pool.capacity()).used == 0
    with pytest.raises(InvalidError, match="erase"):
        await pool.create(VolumeRequest("a", 20 * MI, parameters={"erase": "burn"}))


async def test_erase_can_be_changed_where_it_is_offered_so(bench: Bench) -> None:
    if ERASE not in bench.pool.features.modifiable:
        return
    if bench.pool.kind == "btrfs":
        await bench.pool.create(VolumeRequest("a", 20 * MI))
        assert (await bench.pool.modify("a", {"erase": "none"})).effective == {"erase": "none"}
        with pytest.raises(InvalidError, match="want none"):
            await bench.pool.modify("a", {"erase": "discard"})
        return
    await bench.pool.create(VolumeRequest("a", 20 * MI))
    changed = await bench.pool.modify("a", {"erase": "discard"})
    assert changed.effective["erase"] == "discard"
    pool = await bench.again()
    assert (await pool.get("a")).effective["erase"] == "discard"
    assert "erase" not in (await pool.modify("a", {"erase": ""})).effective
    with pytest.raises(InvalidError):
        await pool.modify("a", {"erase": "burn"})


async def test_a_class_leaves_a_reserve_to_others(bench: Bench) -> None:
    pool = bench.pool
    if RESERVE not in pool.features.parameters:
        return
    reserve = {"reserve": "10Gi"}
    room = await pool.capacity_for(reserve)
    assert (room.total, room.free, room.largest) == (SIZE - 10240 * MI, SIZE - 10240 * MI, SIZE - 10240 * MI)

    with pytest.raises(OutOfRangeError, match="10Gi that the class leaves to others"):
        await pool.create(VolumeRequest("a", SIZE - 10240 * MI + 1, parameters=reserve))
    await pool.create(VolumeRequest("a", SIZE - 12288 * MI, parameters=reserve))
    with pytest.raises(ExhaustedError, match="10Gi that the class leaves to others"):
        await pool.create(VolumeRequest("b", 4096 * MI, parameters=reserve))
    if pool.features.expansion:
        with pytest.raises(OutOfRangeError, match="10Gi that the class leaves to others"):
            await pool.growth.expand("a", SIZE - 10239 * MI)
        assert (await pool.growth.expand("a", SIZE - 10240 * MI)).size == SIZE - 10240 * MI
    await pool.create(VolumeRequest("b", 9216 * MI))
    assert (await pool.capacity_for(reserve)).largest == 0
    for wrong in ("0", "-1Gi", "much"):
        with pytest.raises(InvalidError, match="reserve"):
            await pool.capacity_for({"reserve": wrong})


async def test_room_is_kept_for_inline_volumes(bench: Bench) -> None:
    pool = bench.pool
    if "inline" not in kinds.get(pool.kind).options:
        return
    pool.backend.inline = 10240 * MI
    assert (await pool.capacity_for({})).free == SIZE - 10240 * MI
    assert (await pool.overall()).free == (await pool.capacity_for({}, inline=True)).free == SIZE
    await pool.create(VolumeRequest("a", SIZE - 12288 * MI))
    with pytest.raises(ExhaustedError, match="10Gi that are reserved for inline volumes"):
        await pool.create(VolumeRequest("b", 4096 * MI))
    await pool.create(VolumeRequest("i", 11264 * MI, owner={INLINE: "true"}))
    free = (await pool.capacity_for({})).free
    assert 0 < free <= 1024 * MI
    assert free == (await pool.capacity_for({}, inline=True)).free, "none of the budget is left"
    pool = await bench.again()
    pool.backend.inline = 10240 * MI
    assert (await pool.capacity_for({})).free == free, "after a start as before"
    await pool.delete("i")
    assert (await pool.capacity_for({})).free == 2048 * MI


async def test_limits_of_io_are_kept_with_the_volume(bench: Bench) -> None:
    pool = bench.pool
    if not pool.features.modifiable >= LIMITS:
        return
    given = VolumeRequest("a", 20 * MI, parameters={"iops": "100"}, mutable={"bandwidth": "50Mi"})
    assert (await pool.create(given)).effective == {"iops": "100", "bandwidth": "50Mi"}
    await pool.modify("a", {"iops": "200"})

    pool = await bench.again()
    assert (await pool.get("a")).effective == {"iops": "200", "bandwidth": "50Mi"}
    assert (await pool.modify("a", {"iops": "", "bandwidth": "1Gi"})).effective == {"iops": "100", "bandwidth": "1Gi"}
    assert await pool.create(given) == await pool.get("a"), "what was changed since does not make it another volume"
    for wrong in ({"iops": "many"}, {"bandwidth": "0"}, {"reserve": "1Gi"}, {"color": "red"}):
        with pytest.raises(InvalidError, match=next(iter(wrong))):
            await pool.modify("a", wrong)
        with pytest.raises(InvalidError, match=next(iter(wrong))):
            await pool.create(VolumeRequest("b", 20 * MI, mutable=wrong))
    with pytest.raises(NotFoundError):
        await pool.modify("b", {"iops": "1"})
    assert (await pool.get("a")).mutable == {"bandwidth": "1Gi"}


async def test_the_device_that_limits_hold_for(bench: Bench) -> None:
    pool = bench.pool
    await pool.create(VolumeRequest("a", 20 * MI))
    if not pool.features.modifiable >= LIMITS:
        with pytest.raises(UnsupportedError, match="block devices"):
            await pool.device("a")
        return
    with pytest.raises(NotFoundError):
        await pool.device("b")
    staging = bench.folder / "staging"
    await pool.stage("a", staging)
    number = await pool.device("a")
    assert number is not None
    assert os.makedev(*number) == os.stat(staging).st_dev
    await pool.unstage("a", staging)


async def test_what_a_kind_can_never_have_is_rejected_with_the_reason(bench: Bench) -> None:
    pool = bench.pool
    assert not pool.features.parameters & set(pool.features.rejected)
    for key, reason in pool.features.rejected.items():
        with pytest.raises(InvalidError, match=f"parameter {key}: .*{reason[:20]}"):
            await pool.create(VolumeRequest("a", 20 * MI, parameters={key: "1"}))


async def test_a_new_volume_begins_with_a_folders_content(bench: Bench) -> None:
    pool, folder = bench.pool, bench.folder / "models"
    if SOURCE not in pool.features.parameters:
        return
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("learnt")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "inner" / "file").write_bytes(b"x" * 30 * MI)
    with pytest.raises(OutOfRangeError, match="ask for more"):
        await pool.create(VolumeRequest("a", 20 * MI, parameters={"source": f"dir://{folder}"}))
    (folder / "inner" / "file").write_text("learnt")
    for text in (f"dir://{folder}/nowhere", f"dir://{folder}/inner/file", f"dir://{folder}/link"):
        with pytest.raises(PreconditionError, match="source"):
            await pool.create(VolumeRequest("a", 20 * MI, parameters={"source": text}))

    await pool.create(VolumeRequest("a", 20 * MI, parameters={"source": f"dir://{folder}"}))
    pool, staging = await bench.again(), bench.folder / "staging"
    await pool.stage("a", staging)
    assert (staging / "inner" / "file").read_text() == "learnt"
    assert os.readlink(staging / "link") == "/etc/passwd"
    (staging / "inner" / "file").write_text("changed")
    await pool.unstage("a", staging)
    await pool.stage("a", staging)
    assert (staging / "inner" / "file").read_text() == "changed", "filled once"
    await pool.unstage("a", staging)
    if pool.features.blocks:
        with pytest.raises(InvalidError, match=r"source: a raw block volume"):
            await pool.create(VolumeRequest("b", 20 * MI, block=True, parameters={"source": f"dir://{folder}"}))


async def test_trash_is_restored_or_makes_way(bench: Bench) -> None:
    """Deleted volumes that stay count as free, survive the process, and go when their bytes are needed."""
    if bench.kind in ("image", "btrfs"):  # without overcommit
        await bench.pool.close()
        bench.pool = make(parse(f"{bench.kind}:{bench.folder / 'own'},name=p,size=1Gi,sparse=yes"), disks=Disks())
        await bench.pool.open()
    pool, request = bench.pool, VolumeRequest("v", 300 * MI, owner={UNDELETE: "86400"})
    if pool.trash.fault():
        await pool.create(replace(request, size=5 * MI))
        await _write(bench, "v", "mine")
        assert not await pool.trash.discard("v")
        assert ([v.name for v in await pool.list()], await pool.trash.list()) == (["v"], [])
        return
    free = (await pool.capacity()).free
    await pool.create(request)
    await _write(bench, "v", "mine")
    taken = (await pool.capacity()).free
    assert taken <= free - 300 * MI
    await pool.trash.discard("v")
    assert (await pool.list(), [v.name for v in await pool.trash.list()]) == ([], ["v"])
    assert (await pool.capacity()).free == free
    if bench.mounts:
        await pool.close()
    await pool.open()
    assert (await pool.list(), [v.name for v in await pool.trash.list()]) == ([], ["v"])
    assert (await pool.capacity()).free == free
    await pool.trash.restore("v")
    assert (await pool.capacity()).free == taken
    await _shows(bench, "v", "mine")
    await pool.trash.discard("v")
    await pool.create(VolumeRequest("new", (await pool.capacity()).largest - 16 * MI))
    assert ([v.name for v in await pool.list()], await pool.trash.list()) == (["new"], [])


LOST = "pvc-0a53b1d5-4b5c-4a35-9b4e-1f2e3d4c5b6a"


def _lose(pool: Pool, name: str, *, half: bool) -> Callable[[], None]:
    """Remove a volume's record, or half of it, from an open pool's disk; returns what puts it back."""
    if pool.kind == "lvm":
        return _lose_tags(pool, name, half=half)
    backend: Any = pool.backend
    if pool.kind == "static":
        path = backend.directory / ".tonnage" / f"{backend.volume(backend.record(name)).place}.json"
    else:
        folder = backend.homes[name].directory if pool.kind == "pmem" else backend.folder.directory
        path = folder.path / f"{name}.json"
    text = path.read_bytes()
    if half:
        path.write_bytes(text[: len(text) // 2])
    else:
        path.unlink()

    def put_back() -> None:
        path.write_bytes(text)

    return put_back


def _lose_tags(pool: Pool, name: str, *, half: bool) -> Callable[[], None]:
    table = cast(LvmBackend, pool.backend).table
    found = table.account.read().volumes[table.lv(name)]
    gone = found.tags[: len(found.tags) // 2] if half else found.tags

    def change(option: str) -> None:
        words = [word for tag in gone for word in (option, tag)]
        lvm.lvm("lvchange", "--quiet", *words, f"{table.group}/{found.name}")

    change("--deltag")
    return lambda: change("--addtag")


@pytest.mark.parametrize("half", [False, True], ids=["lost", "half there"])
async def test_a_volume_that_lost_its_record_is_neither_deleted_nor_given_away(bench: Bench, *, half: bool) -> None:
    """Whatever is asked of the pool meanwhile, its content is there when the record is put back."""
    if not bench.mounts:
        return
    pool, staging = bench.pool, bench.folder / "staging"
    for name in (LOST, "b"):
        await pool.create(VolumeRequest(name, 20 * MI))
        await pool.stage(name, staging)
        (staging / "file").write_text(f"of {name}")
        await pool.unstage(name, staging)
    put_back = _lose(pool, LOST, half=half)
    for _ in range(2):
        pool = await bench.again()
        assert [volume.name for volume in await pool.list()] == ["b"]
        said = f"{await pool.damaged()} {await pool.problems()}"
        assert LOST in said, "it is reported"
        await _ask(pool, staging)
    put_back()  # of some kinds, the records can be reached only while the pool is open
    pool = await bench.again()
    assert [volume.name for volume in await pool.list()] == ["b", LOST]
    for name in (LOST, "b"):
        await pool.stage(name, staging)
        assert (staging / "file").read_text() == f"of {name}"
        await pool.unstage(name, staging)
        await pool.delete(name)
    await bench.settled()
    assert await pool.list() == []


async def _ask(pool: Pool, staging: Path) -> None:
    """Create, use and delete volumes, of that name too: none has the content of another."""
    for name in (LOST, "next"):
        with suppress(HostError, AlreadyExistsError):
            await pool.create(VolumeRequest(name, 20 * MI))
            await pool.stage(name, staging)
            assert not (staging / "file").exists()
            await pool.unstage(name, staging)
        with suppress(HostError):
            await pool.delete(name)


async def test_a_snapshot_that_lost_its_record_is_not_deleted(bench: Bench) -> None:
    if bench.kind not in ("image", "btrfs"):
        return  # that of LVM is in its logical volume, others have none
    pool = bench.pool
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.snapshots.create("s", "a")
    snapshots = cast(DirectoryBackend, pool.backend).folder.snapshots
    record, content = snapshots.path / "s.json", snapshots.content("s")
    text = record.read_bytes()
    record.unlink()
    for _ in range(2):
        pool = await bench.again()
        assert await pool.snapshots.list() == []
        assert "snapshot s: its record" in (await pool.problems())[0]
        for call in (pool.snapshots.delete("s"), pool.snapshots.create("s", "a")):
            with pytest.raises(HostError, match="nothing was touched"):
                await call
        assert content.exists()
    record.write_bytes(text)
    pool = await bench.again()
    assert [snapshot.name for snapshot in await pool.snapshots.list()] == ["s"]
    await pool.snapshots.delete("s")
    assert not content.exists()


async def test_content_without_a_record_makes_way_for_a_snapshot_that_nobody_has(bench: Bench) -> None:
    """As a former version left it that was stopped meanwhile. It stays, and is reported, also by the next start."""
    if bench.kind not in ("image", "btrfs"):
        return
    pool, staging = bench.pool, bench.folder / "staging"
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.snapshots.create("s", "a")
    snapshots = cast(DirectoryBackend, pool.backend).folder.snapshots
    (snapshots.path / "s.json").unlink()
    pool = await bench.again()
    for _ in range(2):
        await pool.snapshots.make_way("s")
        await pool.snapshots.create("s", "a")
    pool = await bench.again()
    assert [snapshot.name for snapshot in await pool.snapshots.list()] == ["s"]
    snapshots = cast(DirectoryBackend, pool.backend).folder.snapshots
    (aside,) = snapshots.path.glob("s.lost-*")
    (problem,) = await pool.problems()
    assert str(aside) in problem
    await pool.create(VolumeRequest("copy", 20 * MI, source=VolumeOrigin(snapshot="s")))
    await pool.stage("copy", staging)
    await pool.unstage("copy", staging)
