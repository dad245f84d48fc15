"""What killed LVM commands leave in a thin pool, made here by hand. Run by test_uml.py inside user-mode Linux, on two
disks of 2Gi and one of 1Gi."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as struct_replace
from tests.vm.lvm_bench import MI, THIN, Bench, bench_in, device, peek, poke, report

from tonnage.base.errors import PreconditionError
from tonnage.host import dm, lvm
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import VolumeOrigin, VolumeRequest
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.lvm import tags as lvm_tags
from tonnage.storage.pools.lvm import thin_pool

SECRET = b"\xa5secret!" * 512
KERNEL = "vg0-pool-tpool"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench_in(tmp_path) as made:
        yield made


def dmsetup(*words: str) -> None:
    run(["dmsetup", *words], environment={"DM_DISABLE_UDEV": "1"})


def message(text: str) -> None:
    dmsetup("message", KERNEL, "0", text)


def transaction() -> int:
    found = dm.thin_pool(KERNEL)
    assert found is not None
    return found.transaction


def numbers() -> dict[str, int]:
    """The thin devices that LVM knows."""
    return {name: int(row["thin_id"]) for name, row in report("thin_id").items() if row["thin_id"]}


def leave_snapshot(of: str, *, counted: bool) -> int:
    """Do what lvcreate has the kernel do before it writes its own metadata. counted: to the last step of it."""
    number = max(numbers().values()) + 1
    message(f"create_snap {number} {numbers()[of]}")
    if counted:
        message(f"set_transaction_id {transaction()} {transaction() + 1}")
    return number


async def with_secret(pool: Pool, folder: Path) -> None:
    """A raw block volume `a` that is full of it, staged in the folder."""
    await pool.create(VolumeRequest("a", 16 * MI, block=True))
    await pool.stage("a", folder)
    poke(folder / "device", SECRET * (16 * MI // len(SECRET)))


@pytest.mark.parametrize("counted", [False, True])
async def test_a_snapshot_is_taken_over_what_a_killed_one_left(bench: Bench, counted: bool) -> None:
    pool = await bench.pool(THIN)
    await with_secret(pool, bench.folder / "a")
    number = leave_snapshot("a", counted=counted)
    await pool.snapshots.create("s", "a")
    assert numbers() == {"a": number - 1, "s+s": number}
    leave_snapshot("a", counted=counted)
    await pool.create(VolumeRequest("c", 16 * MI, block=True, source=VolumeOrigin(volume="a")))
    await pool.stage("c", bench.folder / "c")
    assert peek(bench.folder / "c" / "device", len(SECRET)) == SECRET
    known = lvm.thin_numbers("vg0", "pool")
    assert (known.transaction, set(known.devices)) == (transaction(), set(numbers().values()))
    await pool.unstage("c", bench.folder / "c")


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("block", [False, True])
async def test_a_new_volume_never_has_the_content_that_a_killed_snapshot_left(
    bench: Bench, counted: bool, block: bool
) -> None:
    pool = await bench.pool(THIN)
    await with_secret(pool, bench.folder / "a")
    leave_snapshot("a", counted=counted)
    await pool.create(VolumeRequest("b", 16 * MI, block=block))
    if counted:  # the pool's problem was seen, and mended
        assert dm.thin_mapped("vg0-b") == 0
    await pool.stage("b", bench.folder / "b")
    assert SECRET not in peek("/dev/mapper/vg0-b", 16 * MI)
    if not block:
        (bench.folder / "b" / "file").write_text("content")
    await pool.unstage("b", bench.folder / "b")
    assert peek(bench.folder / "a" / "device", len(SECRET)) == SECRET


async def test_a_copy_into_a_thin_volume_neither(bench: Bench) -> None:
    pool = await bench.pool(THIN)
    await with_secret(pool, bench.folder / "a")
    await pool.create(VolumeRequest("thick", 16 * MI, block=True, parameters={"thin": "false"}))
    await pool.stage("thick", bench.folder / "t")
    poke(bench.folder / "t" / "device", b"thick")
    leave_snapshot("a", counted=False)
    await pool.create(VolumeRequest("c", 16 * MI, block=True, source=VolumeOrigin(volume="thick")))
    assert peek("/dev/mapper/vg0-c", 16 * MI) == b"thick".ljust(16 * MI, b"\0")
    await pool.unstage("thick", bench.folder / "t")


async def test_one_that_is_there_is_never_emptied(bench: Bench) -> None:
    pool = await bench.pool(THIN)
    await pool.create(VolumeRequest("b", 16 * MI, block=True))
    poke("/dev/mapper/vg0-b", SECRET)  # as of one whose record is of an earlier moment
    pool = await bench.pool(THIN)
    for _ in range(2):
        await pool.stage("b", bench.folder / "b")
        assert peek(bench.folder / "b" / "device", len(SECRET)) == SECRET
        await pool.unstage("b", bench.folder / "b")


@pytest.mark.parametrize("options", ["", THIN], ids=["thick", "thin"])
async def test_one_that_lvm_has_not_activated_before_it_was_killed_is_made_complete(bench: Bench, options: str) -> None:
    pool = await bench.pool(options)
    await pool.create(VolumeRequest("a", 16 * MI))
    lvm.lvm("lvchange", "--activate", "n", "vg0/a")
    pool = await bench.pool(options)
    assert device("a")
    await pool.stage("a", bench.folder / "a")
    await pool.unstage("a", bench.folder / "a")


@pytest.mark.parametrize("counted", [False, True])
async def test_the_next_start_takes_away_what_a_kill_left(bench: Bench, counted: bool) -> None:
    pool = await bench.pool(THIN)
    await with_secret(pool, bench.folder / "a")
    before = transaction()
    number = leave_snapshot("a", counted=counted)
    await bench.pool(THIN)
    assert transaction() == before
    assert not dm.delete_thin(KERNEL, number), "it is gone"
    assert not thin_pool.settle("vg0", "pool")


async def test_a_pool_that_a_power_cut_left_ahead_of_lvm_is_activated_again(bench: Bench) -> None:
    pool = await bench.pool(THIN)
    await pool.create(VolumeRequest("a", 16 * MI))
    await pool.stage("a", bench.folder / "a")
    (bench.folder / "a" / "file").write_text("content")
    number = leave_snapshot("a", counted=True)
    await pool.unstage("a", bench.folder / "a")
    await pool.close()
    lvm.lvm("vgchange", "--activate", "n", "vg0")  # as it is after a boot
    pool = await bench.pool(THIN)
    await pool.stage("a", bench.folder / "a")
    assert (bench.folder / "a" / "file").read_text() == "content"
    assert not dm.delete_thin(KERNEL, number), "it is gone"
    await pool.snapshots.create("s", "a")
    await pool.create(VolumeRequest("b", 16 * MI))
    assert set(numbers()) == {"a", "b", "s+s"}
    assert not [entry for entry in Path("/run/tonnage").iterdir() if entry.is_dir()]
    await pool.unstage("a", bench.folder / "a")


async def test_nothing_of_a_pool_that_is_well_is_touched(bench: Bench) -> None:
    pool = await bench.pool(THIN)
    assert not thin_pool.settle("vg0", "pool")
    await with_secret(pool, bench.folder / "a")
    await pool.snapshots.create("s", "a")
    before = numbers(), transaction()
    assert not thin_pool.settle("vg0", "pool")
    with pytest.raises(PreconditionError, match="in use"):
        dm.delete_thin(KERNEL, numbers()["a"])
    assert (numbers(), transaction()) == before
    await pool.create(VolumeRequest("b", 16 * MI, block=True, source=VolumeOrigin(snapshot="s")))
    await pool.stage("b", bench.folder / "b")
    assert peek(bench.folder / "b" / "device", len(SECRET)) == SECRET
    for name in ("a", "b"):
        await pool.unstage(name, bench.folder / name)
    assert os.listdir("/run/lock/lvm") == []


@pytest.mark.parametrize("options", ["", THIN], ids=["thick", "thin"])
async def test_devices_that_a_killed_command_left_suspended_go_on_at_the_next_start(bench: Bench, options: str) -> None:
    pool = await bench.pool(options)
    await pool.create(VolumeRequest("a", 16 * MI, block=True))
    await pool.stage("a", bench.folder / "a")
    await pool.close()
    for name in ("vg0-a", *(["vg0-pool-tpool"] if options else [])):
        dmsetup("suspend", "--nolockfs", "--noflush", name)
    assert "vg0-a" in lvm.suspended("vg0")
    assert lvm.suspended("vg") == []
    pool = await bench.pool(options)
    assert lvm.suspended("vg0") == []
    poke(bench.folder / "a" / "device", SECRET)
    await pool.unstage("a", bench.folder / "a")


@pytest.mark.parametrize("start", ["anew", "same"])
async def test_a_device_that_a_killed_lvextend_has_not_made_larger_becomes_so(bench: Bench, start: str) -> None:
    pool = await bench.pool(THIN)
    await pool.create(VolumeRequest("a", 16 * MI))
    await pool.stage("a", bench.folder / "a")
    table = run(["dmsetup", "table", "vg0-a"])
    await pool.growth.expand("a", 40 * MI)
    dmsetup("suspend", "vg0-a")
    dmsetup("load", "vg0-a", "--table", table.strip())
    dmsetup("resume", "vg0-a")
    tags = report("lv_tags")["a"]["lv_tags"].split(",")
    entry = lvm_tags.decode(tags)
    before = replace(entry, record=struct_replace(entry.record, size=16 * MI, pending=False))
    lvm.lvm("lvchange", *lvm_tags.change(tags, before), "vg0/a")  # its record was not written
    if start == "anew":
        pool = await bench.pool(THIN)
    else:
        await pool.close()
        await pool.open()
        dmsetup("suspend", "vg0-a")
        dmsetup("load", "vg0-a", "--table", table.strip())
        dmsetup("resume", "vg0-a")
    await pool.growth.expand("a", 40 * MI)
    assert not (await pool.growth.grow("a", bench.folder / "a")).pending
    assert (await pool.stats("a", bench.folder / "a")).total >= 40 * MI
    await pool.unstage("a", bench.folder / "a")
