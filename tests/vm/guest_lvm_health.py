"""Erasing, and disks that fail, under an LVM pool on a real device-mapper. Run by test_uml.py inside user-mode Linux, on
two disks of 2Gi and one of 1Gi."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.vm.lvm_bench import DISKS, MI, Bench, bench_in, device, erased, group_free, peek, poke, report

from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    HostError,
    NotFoundError,
    OutOfRangeError,
    PreconditionError,
)
from tonnage.host import filesystem, loop, lvm, mount
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import VolumeOrigin, VolumeRequest
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.lvm import tags as lvm_tags
from tonnage.storage.pools.lvm.volumes import LogicalVolumes

SECRET = b"\xa5secret!" * 512
SPARE = "/dev/ubdc"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench_in(tmp_path) as made:
        yield made


def holds_secret() -> bool:
    """Whether a disk of the group still has what a volume had."""
    for disk in DISKS:
        with open(disk, "rb") as file:
            if SECRET in file.read(256 * MI):  # LVM gives out extents from the beginning
                return True
    return False


def forget_caches() -> None:
    """What the test reads of the disks is what is on them."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


async def with_secrets(pool: Pool, staging: Path, method: str) -> None:
    """A raw block volume `a` whose snapshot `s` keeps a secret, and a copy `b` of that."""
    parameters = {"erase": method}
    await pool.create(VolumeRequest("a", 32 * MI, block=True, parameters=parameters))
    await pool.stage("a", staging)
    poke(staging / "device", SECRET * 2048)
    await pool.snapshots.create("s", "a")
    poke(staging / "device", bytes(len(SECRET) * 2048))
    await pool.create(VolumeRequest("b", 32 * MI, block=True, parameters=parameters, source=VolumeOrigin(snapshot="s")))
    await pool.unstage("a", staging)


async def test_the_eraser_may_rename_what_a_call_is_just_deleting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as its tags say that it is to be erased: both do it then, one after the other."""
    once = LogicalVolumes.set_aside

    def twice(store: LogicalVolumes, lv: str, entry: lvm_tags.TagEntry) -> str:
        with ThreadPoolExecutor(2) as threads:
            (name, again) = threads.map(lambda _: once(store, lv, entry), range(2))
        assert name == again
        return name

    monkeypatch.setattr(LogicalVolumes, "set_aside", twice)
    pool = await bench.pool(",eraserate=0")
    await with_secrets(pool, bench.folder / "s", "zero")
    for delete, name in ((pool.delete, "a"), (pool.snapshots.delete, "s"), (pool.delete, "b")):
        await delete(name)
    await erased(pool)
    assert report() == {}


async def test_erased_volumes_and_snapshots_leave_nothing_on_the_disks(bench: Bench) -> None:
    pool, empty = await bench.pool(",eraserate=0"), group_free()
    await with_secrets(pool, bench.folder / "s", "zero")
    forget_caches()
    assert holds_secret()
    await pool.delete("a")
    await pool.snapshots.delete("s")
    await pool.delete("b")
    assert not await pool.list()
    assert not await pool.snapshots.list()
    await pool.create(VolumeRequest("b", 5 * MI))  # the name is free
    await pool.delete("b")
    await erased(pool)
    assert report() == {}
    forget_caches()
    assert not holds_secret()
    assert ((await pool.capacity(block=True)).free, (await pool.capacity()).used) == (empty, 0)
    assert group_free() == empty


async def test_erasing_goes_on_after_a_restart_and_its_room_counts(bench: Bench) -> None:
    pool = await bench.pool(",eraserate=1Mi")
    empty = (await pool.capacity(block=True)).free
    await pool.create(VolumeRequest("a", 64 * MI, block=True, parameters={"erase": "zero"}))
    await pool.stage("a", bench.folder / "s")
    poke(bench.folder / "s" / "device", SECRET * 2048)
    await pool.unstage("a", bench.folder / "s")
    await pool.delete("a")
    [erasure] = await pool.erasing()
    assert (erasure.name, erasure.method, erasure.total, erasure.reserved) == ("a", "zero", 64 * MI, 64 * MI)
    assert (await pool.capacity(block=True)).free == empty - 64 * MI
    assert (await pool.capacity()).used == 64 * MI
    [name] = report()
    assert name.startswith("e+")
    while not (await pool.erasing())[0].done:
        await asyncio.sleep(0.05)
    pool = await bench.pool(",eraserate=1Mi")
    [erasure] = await pool.erasing()
    assert erasure.done > 0
    assert [volume.name for volume in await pool.list()] == []
    with pytest.raises(NotFoundError):
        await pool.get("a")
    pool = await bench.pool(",eraserate=0")
    await erased(pool)
    assert report() == {}
    assert (await pool.capacity(block=True)).free == empty


async def test_an_erasure_that_was_killed_between_its_steps_is_set_aside_at_the_next_start(bench: Bench) -> None:
    pool = await bench.pool()
    await with_secrets(pool, bench.folder / "s", "zero")
    await pool.close()
    for name, method in (
        ("b", "zero"),
        ("s+s", "zero"),
    ):  # as far as delete() and delete_snapshot() come by one command
        tags = report("lv_tags")[name]["lv_tags"].split(",")
        after = replace(lvm_tags.decode(tags), kind=lvm_tags.TagKind.ERASING, method=method)
        lvm.lvm("lvchange", *lvm_tags.change(tags, after), f"vg0/{name}")
    pool = await bench.pool(",eraserate=0")
    await pool.create(VolumeRequest("b", 5 * MI))
    await erased(pool)
    assert set(report()) == {"a", "b"}
    assert not (await pool.condition("a")).abnormal


async def test_a_raw_block_volume_is_shown_read_only(bench: Bench) -> None:
    pool, staging, target = await bench.pool(), bench.folder / "s", bench.folder / "t"
    await pool.create(VolumeRequest("a", 5 * MI, block=True))
    await pool.stage("a", staging)
    poke(staging / "device", b"content")
    for _ in range(2):
        await pool.publish("a", staging, target, readonly=True)
    await pool.publish("a", staging, bench.folder / "w")
    for path, readonly in ((target, False), (bench.folder / "w", True)):
        with pytest.raises(AlreadyExistsError, match="readonly"):
            await pool.publish("a", staging, path, readonly=readonly)
    assert peek(target, 7) == b"content"
    with pytest.raises(OSError, match=r"not permitted|Read-only|Permission"):
        poke(target, b"changed")
    assert (await pool.stats("a", target)).total == 8 * MI
    assert not (await pool.condition("a", target)).abnormal
    for path in (bench.folder / "w", target):
        await pool.unpublish("a", path)
    await pool.unstage("a", staging)
    await pool.delete("a")
    assert list(loop.attached()) == []


async def test_a_read_only_view_that_a_kill_left_is_freed(bench: Bench) -> None:
    pool, staging, target = await bench.pool(), bench.folder / "s", bench.folder / "t"
    await pool.create(VolumeRequest("a", 5 * MI, block=True))
    await pool.stage("a", staging)
    await pool.publish("a", staging, target, readonly=True)
    await pool.unstage("a", staging)
    pool = await bench.pool()
    assert len(list(loop.attached())) == 1, "it is shown"
    mount.umount(target)
    target.unlink()
    pool = await bench.pool()
    assert list(loop.attached()) == []
    await pool.delete("a")


async def test_a_file_system_that_a_killed_process_left_frozen_is_thawed_at_the_next_start(bench: Bench) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 120 * MI, fstype="btrfs"))
    await pool.stage("a", staging)
    fd = os.open(staging, os.O_RDONLY)
    filesystem.freeze(fd)
    mark = Path("/run/tonnage/lvm-vg0-a.frozen")
    with pytest.raises(PreconditionError, match="frozen by another process"):
        await pool.snapshots.create("s", "a")
    assert not mark.exists()
    mark.touch()  # as a kill in the middle leaves it
    pool = await bench.pool()
    assert not mark.exists()
    assert not filesystem.thaw(fd), "it is thawed already"
    os.close(fd)
    (staging / "file").write_text("content")
    await pool.snapshots.create("s", "a")
    await pool.unstage("a", staging)


def dmsetup(*words: str) -> None:
    """Run dmsetup where there is no udev to make the nodes in /dev."""
    run(["dmsetup", *words], environment={"DM_DISABLE_UDEV": "1"})


@pytest.fixture
def fragile() -> Iterator[tuple[str, str]]:
    """A group `vg1` on two disks that can be made to fail."""
    sectors = 480 * MI // 512
    for number in range(2):
        table = f"0 {sectors} linear {SPARE} {2048 + number * sectors}"
        dmsetup("create", f"disk{number}", "--table", table)
    disks = ("/dev/mapper/disk0", "/dev/mapper/disk1")
    lvm.lvm("vgcreate", "--yes", "vg1", *disks)
    yield disks
    for number in range(2):
        table = f"0 {sectors} linear {SPARE} {2048 + number * sectors}"
        dmsetup("suspend", "--noflush", f"disk{number}")
        dmsetup("load", f"disk{number}", "--table", table)
        dmsetup("resume", f"disk{number}")
    with suppress(HostError):
        lvm.lvm("vgextend", "--restoremissing", "vg1", *disks)
    lvm.lvm("vgchange", "--yes", "--activate", "n", "vg1")
    lvm.lvm("vgremove", "--yes", "--force", "--force", "vg1")
    for number in range(2):
        dmsetup("remove", f"disk{number}")
    subprocess.run(["dd", "if=/dev/zero", f"of={SPARE}", "bs=1M", "count=4"], check=True, capture_output=True)


def break_disk(number: int) -> None:
    """From here on all that is read from or written to a disk fails."""
    dmsetup("wipe_table", "--noflush", f"disk{number}")


async def test_a_disk_that_fails_is_told_for_the_volumes_on_it(tmp_path: Path, fragile: tuple[str, str]) -> None:
    pool = make(parse("lvm:vg1,name=p"))
    await pool.open()
    try:
        await pool.create(VolumeRequest("mirrored", 40 * MI, parameters={"type": "raid1"}))
        await pool.create(VolumeRequest("striped", 40 * MI, parameters={"type": "striped"}))
        await pool.create(VolumeRequest("alone", 40 * MI))
        for name in ("mirrored", "striped", "alone"):
            await pool.stage(name, tmp_path / name)
            (tmp_path / name / "file").write_text("content")
            assert not (await pool.condition(name, tmp_path / name)).abnormal
        os.sync()
        where = report("devices", group="vg1")["alone"]["devices"]
        broken = 0 if "disk1" in where else 1  # the one that `alone` is not on
        break_disk(broken)
        with suppress(OSError):
            (tmp_path / "mirrored" / "other").write_text("content")
            os.sync()
        await pool.close()
        await pool.open()
        told = {name: await pool.condition(name, tmp_path / name) for name in ("mirrored", "striped", "alone")}
        assert [told[name].abnormal for name in ("mirrored", "striped", "alone")] == [True, True, False]
        assert "1 of its 2 copies" in told["mirrored"].message
        assert "a disk that it needs is missing" in told["striped"].message
        assert (tmp_path / "mirrored" / "file").read_text() == "content"
        assert (await pool.capacity()).largest == 0
        with pytest.raises((ExhaustedError, OutOfRangeError)):
            await pool.create(VolumeRequest("more", 20 * MI))
        assert {volume.name for volume in await pool.list()} == {"alone", "mirrored", "striped"}
    finally:
        for name in ("mirrored", "striped", "alone"):
            with suppress(PreconditionError, HostError):
                await pool.unstage(name, tmp_path / name)
        await pool.close()


async def test_a_file_system_that_stopped_writing_is_told(bench: Bench) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 40 * MI))
    await pool.stage("a", staging, options=("ro",))
    assert not (await pool.condition("a", staging)).abnormal, "it was wanted read-only"
    await pool.unstage("a", staging)
    await pool.stage("a", staging)
    await pool.publish("a", staging, bench.folder / "t", readonly=True)
    assert not (await pool.condition("a", bench.folder / "t")).abnormal
    await pool.unpublish("a", bench.folder / "t")
    kernel_name = Path(os.path.realpath(f"/sys/dev/block/{os.major(n := os.stat(device('a')).st_rdev)}:{os.minor(n)}"))
    Path("/sys/fs/ext4", kernel_name.name, "trigger_fs_error").write_text("tried")
    with pytest.raises(OSError, match="Read-only"):
        (staging / "file").touch()
    condition = await pool.condition("a", staging)
    assert condition.abnormal
    assert "errors in itself" in condition.message or "went read-only" in condition.message
    assert (await pool.condition("a", bench.folder / "nowhere")).abnormal
    await pool.unstage("a", staging)
