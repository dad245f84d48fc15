"""Snapshots, clones and growth of LVM volumes on a real device-mapper. Run by test_uml.py inside user-mode Linux, on
two disks of 2Gi."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec import structs
from tests.vm.lvm_bench import (
    EXTENT,
    MI,
    THIN,
    Bench,
    bench_in,
    device,
    erased,
    group_free,
    no_tool_runs,
    peek,
    poke,
    report,
    settled,
    soil,
)

from tonnage.base.errors import BusyError, ExhaustedError, NotFoundError, OutOfRangeError, PreconditionError
from tonnage.host import dm, filesystem, lvm
from tonnage.host.descriptor import opened
from tonnage.storage.pools.base.contract import VolumeOrigin, VolumeRequest, VolumeState
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.snapshots import copy_device
from tonnage.storage.pools.lvm.tags import TagEntry, TagKind, encode, lv_name

POOLS = pytest.mark.parametrize("options", ["", THIN], ids=["thick", "thin"])
MIXED = {"thin": "false"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench_in(tmp_path) as made:
        yield made


async def write(pool: Pool, name: str, folder: Path, text: str) -> None:
    """Leave a file with that text in a volume."""
    await pool.stage(name, folder)
    (folder / "file").write_text(text)
    await pool.unstage(name, folder)


async def check_same(pool: Pool) -> None:
    """What the pool counts is what LVM has."""
    assert (await pool.capacity_for(MIXED, block=True)).free == group_free()


@pytest.mark.parametrize(("fstype", "options"), [("ext4", ""), ("xfs", THIN), ("btrfs", ""), ("btrfs", THIN)])
async def test_copies_of_every_file_system_live_beside_their_source_and_grow(
    bench: Bench, fstype: str, options: str
) -> None:
    options = options.replace("512Mi", "1536Mi") + (",overcommit=4" if options else "")
    pool, staging = await bench.pool(options), bench.folder / "s"
    await pool.create(VolumeRequest("a", 310 * MI, fstype=fstype))
    await pool.stage("a", staging)
    (staging / "file").write_text("content")
    await pool.snapshots.create("s", "a")
    (staging / "file").write_text("later")
    made = await pool.create(VolumeRequest("b", 400 * MI, source=VolumeOrigin(snapshot="s")))
    assert (made.fstype, made.state) == (fstype, VolumeState.FORMATTED)
    await pool.stage("b", bench.folder / "b")  # the UUID is its own, or the kernel would reject
    assert (bench.folder / "b" / "file").read_text() == "content"
    assert (await pool.stats("b", bench.folder / "b")).available >= 399 * MI
    await pool.unstage("b", bench.folder / "b")
    await pool.delete("b")
    await pool.snapshots.delete("s")
    expanded = await pool.growth.expand("a", 500 * MI)
    assert (expanded.size, expanded.pending) == (500 * MI, False), "mounted, so its file system grows too"
    assert not (await pool.growth.grow("a", staging)).pending
    assert (await pool.stats("a", staging)).available >= 499 * MI
    assert (staging / "file").read_text() == "later"
    await pool.growth.expand("a", 520 * MI)
    await pool.unstage("a", staging)
    pool = await bench.pool(options)
    await pool.stage("a", staging)
    assert not (await pool.get("a")).pending
    assert (await pool.stats("a", staging)).available >= 519 * MI
    assert not (await pool.condition("a", staging)).abnormal
    await pool.unstage("a", staging)
    await check_same(pool)


async def test_the_origin_of_thick_snapshots_is_kept_out_of_sight_until_the_last_is_gone(bench: Bench) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    empty = group_free()
    await pool.create(VolumeRequest("a", 20 * MI))
    await write(pool, "a", staging, "first")
    for name in ("s1", "s2"):
        await pool.snapshots.create(name, "a")
    await check_same(pool)
    await pool.delete("a")
    await pool.delete("a")
    assert await pool.list() == []
    assert sorted(name[:2] for name in report()) == ["o+", "s+", "s+"]
    assert (await pool.capacity()).used == 60 * MI
    await pool.create(VolumeRequest("a", 30 * MI))  # its name is free
    pool = await bench.pool()
    await pool.create(VolumeRequest("b", 20 * MI, source=VolumeOrigin(snapshot="s2")))
    await pool.stage("b", staging)
    assert (staging / "file").read_text() == "first"
    await pool.unstage("b", staging)
    await pool.snapshots.delete("s1")
    assert any(name.startswith("o+") for name in report())
    await pool.snapshots.delete("s2")
    assert set(report()) == {"a", "b"}
    for name in ("a", "b"):
        await pool.delete(name)
    await check_same(pool)
    assert group_free() == empty
    assert (await pool.capacity()).used == 0


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_snapshot_is_restored_after_a_restart_of_the_machine(bench: Bench, deleted: bool) -> None:
    """Nothing in the group is active then; the origin of the snapshot may be deleted."""
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 20 * MI))
    await write(pool, "a", staging, "first")
    await pool.snapshots.create("s1", "a")
    if deleted:
        await pool.delete("a")
    await pool.close()
    lvm.lvm("vgchange", "--quiet", "--activate", "n", "vg0")
    pool = await bench.pool()
    await pool.create(VolumeRequest("b", 20 * MI, source=VolumeOrigin(snapshot="s1")))
    await pool.stage("b", staging)
    assert (staging / "file").read_text() == "first"
    await pool.unstage("b", staging)
    await pool.snapshots.delete("s1")


async def test_a_file_system_left_frozen_does_not_hinder_recovery(bench: Bench) -> None:
    """LVM suspends the origin to remove what a killed copy left: it is thawed before, whatever the kernel allows."""
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", staging)
    assert isinstance(pool.backend, LvmBackend)
    left = TagEntry(TagKind.COPY, structs.replace(pool.backend.record("a"), name="b", uuid=uuid4()))
    name, marks = lv_name("vg0", left), [word for tag in encode(left) for word in ("--addtag", tag)]
    lvm.lvm("lvcreate", "--yes", "--snapshot", "--size", "8m", "--name", name, *marks, "vg0/a")
    mark = pool.backend.table.frozen_mark("a")
    mark.touch()
    with opened(staging) as at:
        filesystem.freeze(at)
        pool = await bench.pool()
        assert not filesystem.thaw(at), "it was thawed before"
    assert (set(report()), mark.exists()) == ({"a"}, False)
    (staging / "file").write_text("it takes writes again")
    await pool.unstage("a", staging)


async def test_a_snapshot_that_is_somebody_else_s_is_never_removed(bench: Bench) -> None:
    pool = await bench.pool()
    await pool.create(VolumeRequest("a", 20 * MI))
    lvm.lvm("lvcreate", "--yes", "--snapshot", "--size", "8m", "--name", "backup", "vg0/a")
    with pytest.raises(PreconditionError, match="vg0/backup, which is not tonnage's"):
        await pool.delete("a")
    assert set(report()) == {"a", "backup"}
    lvm.lvm("lvremove", "--yes", "vg0/backup")
    pool = await bench.pool()
    await pool.delete("a")


async def test_a_thick_snapshot_that_overflows_is_told_and_never_restored(bench: Bench) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 40 * MI, block=True, parameters={"cowSize": "4Mi"}))
    await pool.stage("a", staging)
    used = (await pool.capacity(block=True)).used
    await pool.snapshots.create("s", "a")
    assert (await pool.capacity(block=True)).used == used + 4 * MI
    assert not (await pool.condition("a")).abnormal
    poke(staging / "device", os.urandom(16 * MI))
    condition = await pool.condition("a")
    assert condition.abnormal
    assert "its snapshot s is lost" in condition.message
    with pytest.raises(PreconditionError, match="snapshot s is lost"):
        await pool.create(VolumeRequest("b", 40 * MI, block=True, source=VolumeOrigin(snapshot="s")))
    assert set(report()) == {"a", "s+s"}
    await pool.snapshots.delete("s")
    assert not (await pool.condition("a")).abnormal
    await check_same(pool)


@POOLS
async def test_a_raw_block_volume_in_use_is_cloned_as_of_one_moment(bench: Bench, options: str) -> None:
    pool, staging = await bench.pool(options), bench.folder / "s"
    await pool.create(VolumeRequest("a", 8 * MI, block=True))
    await pool.stage("a", staging)
    content = os.urandom(3 * MI) + bytes(2 * MI) + os.urandom(3 * MI)
    poke(staging / "device", content)
    soil()
    await pool.create(VolumeRequest("b", 16 * MI, block=True, source=VolumeOrigin(volume="a")))
    await pool.stage("b", bench.folder / "b")
    assert peek(bench.folder / "b" / "device", 20 * MI) == content + bytes(8 * MI)
    await pool.unstage("b", bench.folder / "b")
    assert {name for name in report() if name != "pool"} == {"a", "b"}
    await check_same(pool)


async def test_copies_between_thick_and_thin(bench: Bench) -> None:
    pool, staging = await bench.pool(THIN), bench.folder / "s"
    await pool.create(VolumeRequest("thin", 20 * MI))
    await write(pool, "thin", staging, "content")
    await pool.snapshots.create("s", "thin")
    await pool.create(VolumeRequest("thick", 30 * MI, parameters=MIXED, source=VolumeOrigin(snapshot="s")))
    await pool.snapshots.create("t", "thick")
    await pool.create(VolumeRequest("again", 40 * MI, source=VolumeOrigin(snapshot="t")))
    layouts = report("lv_layout", "lv_active", "pool_lv")
    assert [layouts[name]["lv_layout"] for name in ("thin", "thick", "again")] == [
        "thin,sparse",
        "linear",
        "thin,sparse",
    ]
    assert layouts["s+s"]["lv_active"] == ""
    for name in ("thick", "again"):
        await pool.stage(name, staging)
        assert (staging / "file").read_text() == "content"
        await pool.unstage(name, staging)
    await check_same(pool)
    for name in ("thin", "thick", "again"):
        await pool.delete(name)
    for name in ("s", "t"):
        await pool.snapshots.delete(name)
    assert set(report()) == {"pool"}
    await check_same(pool)
    assert (await pool.capacity()).used == 0


@pytest.mark.parametrize(
    "parameters", [{}, {"type": "striped", "stripes": "2"}, {"type": "raid1"}], ids=["linear", "striped", "raid1"]
)
async def test_a_raw_block_volume_grows_in_use_and_shows_nothing_of_former_owners(
    bench: Bench, parameters: dict[str, str]
) -> None:
    soil()
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 2 * EXTENT, block=True, parameters=parameters))
    await pool.stage("a", staging)
    poke(staging / "device", b"content")
    grown = await pool.growth.expand("a", 5 * EXTENT)
    assert grown.size == (6 if "stripes" in parameters else 5) * EXTENT
    with (staging / "device").open("rb") as file:
        shown = file.read()
    assert shown == b"content" + bytes(grown.size - 7)
    assert not (await pool.growth.grow("a", staging)).pending
    with pytest.raises(OutOfRangeError):
        await pool.growth.expand("a", 6 * EXTENT + 1, limit=6 * EXTENT + 2)
    assert set(report()) == {"a"}
    await check_same(pool)
    await pool.unstage("a", staging)
    await pool.delete("a")
    await check_same(pool)


async def test_a_thick_volume_with_snapshots_grows_while_nobody_uses_it(bench: Bench) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", staging)
    (staging / "file").write_text("content")
    await pool.snapshots.create("s", "a")
    with pytest.raises(PreconditionError, match="is in use and has snapshots"):
        await pool.growth.expand("a", 60 * MI)
    await pool.unstage("a", staging)
    assert (await pool.growth.expand("a", 60 * MI)).size == 60 * MI
    await pool.stage("a", staging)
    assert (await pool.stats("a", staging)).available >= 59 * MI
    await pool.create(VolumeRequest("b", 20 * MI, source=VolumeOrigin(snapshot="s")))
    await pool.unstage("a", staging)
    await check_same(pool)


async def test_expansion_that_a_kill_cut_short_is_completed_by_the_next_call(bench: Bench) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 20 * MI))
    await write(pool, "a", staging, "content")
    lvm.lvm("lvextend", "--size", "100m", "vg0/a")  # all that was done
    pool = await bench.pool()
    assert (await pool.get("a")).size == 20 * MI
    await check_same(pool)
    assert (await pool.growth.expand("a", 60 * MI)).size == 60 * MI
    await pool.stage("a", staging)
    assert (await pool.stats("a", staging)).available >= 59 * MI
    assert (staging / "file").read_text() == "content"
    await pool.unstage("a", staging)
    await pool.delete("a")
    await check_same(pool)


UNCAPABLE = """
import asyncio
from tonnage.base.errors import PreconditionError
from tonnage.storage.pools.config import make, parse

async def main():
    pool = make(parse("lvm:vg0,name=p"))
    await pool.open()
    try:
        await pool.growth.expand("a", 40 * 1024**2)
    except PreconditionError as failure:
        print(failure)
    await pool.close()

asyncio.run(main())
"""


async def test_an_ext4_that_could_not_grow_safely_is_not_extended(bench: Bench) -> None:
    pool = await bench.pool()
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", bench.folder / "s")
    await pool.unstage("a", bench.folder / "s")
    await pool.close()
    before = report("lv_size", "lv_tags")
    words = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", sys.executable, "-c", UNCAPABLE]
    ended = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=True)
    assert "run the driver with that capability" in ended.stdout
    assert report("lv_size", "lv_tags") == before
    pool = await bench.pool()
    await pool.growth.expand("a", 40 * MI)
    await pool.stage("a", bench.folder / "s")
    assert (await pool.stats("a", bench.folder / "s")).available >= 40 * MI
    await pool.unstage("a", bench.folder / "s")


async def test_a_full_thin_pool_takes_no_snapshots_and_says_so(bench: Bench) -> None:
    options = ",thin=pool,thinsize=64Mi,overcommit=8"
    pool, staging = await bench.pool(options), bench.folder / "s"
    await pool.create(VolumeRequest("a", 100 * MI, block=True))
    await pool.stage("a", staging)
    assert not (await pool.condition("a", staging)).abnormal
    poke(staging / "device", os.urandom(62 * MI))
    condition = await pool.condition("a", staging)
    assert condition.abnormal
    assert "thin pool vg0/pool is nearly full (97% of its data" in condition.message
    with pytest.raises(ExhaustedError):
        await pool.snapshots.create("s", "a")
    with pytest.raises((ExhaustedError, OutOfRangeError)):
        await pool.create(VolumeRequest("b", 100 * MI, block=True, source=VolumeOrigin(volume="a")))
    assert set(report()) == {"pool", "a"}
    lvm.lvm("lvextend", "--size", "128m", "vg0/pool")
    pool = await bench.pool(options)
    assert not (await pool.condition("a", staging)).abnormal
    await pool.snapshots.create("s", "a")
    await pool.unstage("a", staging)


async def test_a_copy_that_fails_leaves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 20 * MI))
    await write(pool, "a", staging, "content")
    await pool.snapshots.create("s", "a")
    lvm.lvm("lvcreate", "--yes", "--extents", "100%FREE", "--name", "hog", "vg0")
    for source in (VolumeOrigin(snapshot="s"), VolumeOrigin(volume="a")):
        with pytest.raises((ExhaustedError, OutOfRangeError)):
            await pool.create(VolumeRequest("b", 20 * MI, source=source))
    assert set(report()) == {"a", "s+s", "hog"}
    lvm.lvm("lvremove", "--yes", "vg0/hog")
    pool = await bench.pool()
    real = copy_device

    def overtaken(source: str, fd: int, length: int, **rest: bool | str) -> None:
        """Meanwhile the pod writes more than the helper's snapshot keeps."""
        real(source, fd, length, zeroed=bool(rest["zeroed"]), rest=False, what="x")
        poke(bench.folder / "c" / "device", os.urandom(16 * MI))

    await pool.create(VolumeRequest("c", 20 * MI, block=True, parameters={"cowSize": "4Mi"}))
    await pool.stage("c", bench.folder / "c")
    monkeypatch.setattr("tonnage.storage.pools.lvm.snapshots.copy_device", overtaken)
    with pytest.raises(BusyError, match="faster than it was copied"):
        await pool.create(VolumeRequest("d", 20 * MI, block=True, source=VolumeOrigin(volume="c")))
    assert set(report()) == {"a", "s+s", "c"}
    await pool.unstage("c", bench.folder / "c")
    await check_same(pool)


async def test_limits_of_io_are_kept_and_the_device_is_named(bench: Bench) -> None:
    pool = await bench.pool()
    await pool.create(VolumeRequest("a", 5 * MI, mutable={"iops": "100"}))
    changed = await pool.modify("a", {"iops": "", "bandwidth": "10Mi"})
    assert dict(changed.mutable) == {"bandwidth": "10Mi"}
    assert await (await bench.pool()).get("a") == changed
    pool = bench.pools[-1]
    number = os.stat(device("a")).st_rdev
    assert await pool.device("a") == (os.major(number), os.minor(number))
    lvm.lvm("lvchange", "--activate", "n", "vg0/a")
    assert await pool.device("a") is None
    with pytest.raises(NotFoundError):
        await pool.device("b")


async def test_a_group_with_a_limit_of_volumes(bench: Bench) -> None:
    assert await (await bench.pool()).volume_limit() == 0
    lvm.lvm("lvcreate", "--yes", "--size", "4m", "--name", "other", "vg0")
    lvm.lvm("vgchange", "--logicalvolume", "3", "vg0")
    try:
        pool = await bench.pool()
        assert await pool.volume_limit() == 2
        for name in ("a", "b"):
            await pool.create(VolumeRequest(name, MI))
        with pytest.raises(ExhaustedError, match=r"[Mm]aximum number of logical volumes"):
            await pool.create(VolumeRequest("c", MI))
        assert len(await pool.list()) == await pool.volume_limit() == 2
    finally:
        lvm.lvm("vgchange", "--logicalvolume", "0", "vg0")


_COPIER = """
import asyncio, sys
from tonnage.storage.pools.base.contract import VolumeOrigin, VolumeRequest
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.lvm import snapshots
real = snapshots._copy_some
def slow(origin, fd, at, count, *, zeroed):
    real(origin, fd, at, count, zeroed=zeroed)
    print("at", at, flush=True)
snapshots._copy_some = slow
async def main():
    pool = make(parse("lvm:vg0,name=p"))
    await pool.open()
    await pool.create(VolumeRequest("b", 40 * 2**20, block=True, source=VolumeOrigin(volume="a")))
asyncio.run(main())
"""


def kill_copier() -> None:
    """Let a driver copy, and kill it in the middle."""
    process = subprocess.Popen([sys.executable, "-c", _COPIER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "at 0\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


async def test_a_copy_that_is_killed_is_never_shown_and_begins_anew(bench: Bench) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 40 * MI, block=True, parameters={"erase": "zero"}))
    await pool.stage("a", staging)
    content = os.urandom(40 * MI)
    poke(staging / "device", content)
    await pool.close()
    kill_copier()
    await settled(no_tool_runs)
    assert any(name.startswith("c+") for name in report())  # not yet the volume
    pool = await bench.pool()
    assert [volume.name for volume in await pool.list()] == ["a"]
    await erased(pool)
    assert set(report()) == {"a"}
    with pytest.raises(NotFoundError):
        await pool.get("b")
    await check_same(pool)
    await pool.create(VolumeRequest("b", 40 * MI, block=True, source=VolumeOrigin(volume="a")))
    await pool.stage("b", bench.folder / "b")
    assert hashlib.sha256(peek(bench.folder / "b" / "device", 40 * MI)).digest() == hashlib.sha256(content).digest()
    await pool.unstage("b", bench.folder / "b")
    await pool.unstage("a", staging)


async def test_calls_at_once_on_a_family_of_snapshots(bench: Bench) -> None:
    pool, staging = await bench.pool(), bench.folder / "s"
    await pool.create(VolumeRequest("a", 8 * MI))
    await write(pool, "a", staging, "content")
    await asyncio.gather(*(pool.snapshots.create(f"s{n}", "a") for n in range(3)))
    clones = [pool.create(VolumeRequest(f"v{n}", 8 * MI, source=VolumeOrigin(snapshot=f"s{n}"))) for n in range(2)]
    await asyncio.gather(*clones, pool.delete("a"))
    await asyncio.gather(*(pool.snapshots.delete(f"s{n}") for n in range(3)))
    assert set(report()) == {"v0", "v1"}
    assert dm.status("vg0-a") is None
    await check_same(pool)


async def test_extents_are_named_for_every_layout(bench: Bench) -> None:
    await bench.pool()
    for kind in (["linear"], ["striped", "--stripes", "2"], ["raid1", "--mirrors", "1"]):
        lvm.lvm("lvcreate", "--yes", "--type", *kind, "--extents", "4", "--name", "x+1", "vg0")
        ranges = lvm.extents_of("vg0", "x+1")
        disks = {words.partition(":")[0] for words in ranges}
        assert len(disks) == (1 if kind == ["linear"] else 2)
        lvm.lvm("lvremove", "--yes", "vg0/x+1")
