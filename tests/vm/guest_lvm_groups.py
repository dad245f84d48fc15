"""Group snapshots with LVM volumes on a real device-mapper. Run by test_uml.py inside user-mode Linux, on two disks of
2Gi, and one of 1Gi for an image pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.unit.storage.pools.core import database
from tests.vm.lvm_bench import MI, THIN, Bench, bench_in

from tonnage.base.errors import PreconditionError
from tonnage.host import filesystem, mount
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import SnapshotRequest, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core import group
from tonnage.storage.pools.core.group import MemberRequest
from tonnage.storage.pools.core.pool import Pool

ROUNDS = 3
DISK = "/dev/ubdc"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench_in(tmp_path) as made:
        yield made


@pytest.fixture
async def images(bench: Bench) -> AsyncIterator[Pool]:
    """An image pool on an xfs where files share blocks."""
    run(["mkfs.xfs", "-q", "-f", "-m", "reflink=1", DISK])
    disk = bench.folder / "disk"
    disk.mkdir()
    mount.mount(DISK, disk, "xfs", ())
    pool = make(parse(f"image:{disk / 'pool'},name=images,size=4Gi,sparse=yes,overcommit=yes"))
    await pool.open()
    yield pool
    await pool.close()


async def stage(bench: Bench, pool: Pool, name: str) -> Path:
    path = bench.folder / f"staged-{pool.name}-{name}"
    path.mkdir(exist_ok=True)
    await pool.stage(name, path)
    return path


async def unstage(bench: Bench, pool: Pool, name: str) -> None:
    await pool.unstage(name, bench.folder / f"staged-{pool.name}-{name}")


async def check_database(bench: Bench, log: tuple[Pool, str], data: tuple[Pool, str]) -> None:
    """Take groups while a database writes to both volumes, and look at their copies."""
    paths = [await stage(bench, *place) for place in (log, data)]
    members: Sequence[Sequence[MemberRequest]] = [
        [MemberRequest(pool, SnapshotRequest(f"s{number}-{name}", name)) for pool, name in (log, data)]
        for number in range(ROUNDS)
    ]
    with database.running(*paths):
        while not (paths[1] / "data").exists():
            await asyncio.sleep(0.05)
        for wanted in members:
            await group.take(wanted, seconds=120)  # the guest is slow
    for place in (log, data):
        await unstage(bench, *place)
    for number in range(ROUNDS):
        shown = []
        for pool, name in (log, data):
            source = VolumeOrigin(snapshot=f"s{number}-{name}")
            await pool.create(VolumeRequest(f"r-{name}", (await pool.get(name)).size, source=source))
            shown.append(await stage(bench, pool, f"r-{name}"))
        last_logged, last_written = database.numbers(shown[0], shown[1])
        assert last_written <= last_logged <= last_written + 1
        for pool, name in (log, data):
            await unstage(bench, pool, f"r-{name}")
            await pool.delete(f"r-{name}")
            await pool.snapshots.delete(f"s{number}-{name}")


@pytest.mark.parametrize("order", [1, -1], ids=["log on LVM", "data on LVM"])
@pytest.mark.parametrize("options", ["", THIN], ids=["thick", "thin"])
async def test_a_database_on_lvm_and_an_image(bench: Bench, images: Pool, options: str, order: int) -> None:
    pool = await bench.pool(options)
    await pool.create(VolumeRequest("v", 60 * MI))
    await images.create(VolumeRequest("i", 60 * MI))
    log, data = [(pool, "v"), (images, "i")][::order]
    await check_database(bench, log, data)


async def test_a_frozen_btrfs_and_one_that_lvm_freezes(bench: Bench) -> None:
    pool = await bench.pool()
    await pool.create(VolumeRequest("b", 120 * MI, fstype="btrfs"))
    await pool.create(VolumeRequest("e", 60 * MI))
    await check_database(bench, (pool, "b"), (pool, "e"))


async def test_two_that_lvm_freezes_need_a_kernel_where_freezes_nest(bench: Bench) -> None:
    pool = await bench.pool()
    for name in ("a", "b"):
        await pool.create(VolumeRequest(name, 60 * MI))
    members = [MemberRequest(pool, SnapshotRequest(f"s-{name}", name)) for name in ("a", "b")]
    if filesystem.freezes_nest():
        await check_database(bench, (pool, "a"), (pool, "b"))
        return
    paths = [await stage(bench, pool, name) for name in ("a", "b")]
    with pytest.raises(PreconditionError, match=r"p/a has ext4 that this kernel .* before Linux 6\.8; p/b has ext4"):
        await group.take(members)
    assert list(await pool.snapshots.list()) == []
    (paths[0] / "file").write_text("it takes writes")
    await unstage(bench, pool, "b")
    await group.take(members)  # one is not in use


async def test_two_raw_block_volumes_in_use_are_rejected(bench: Bench) -> None:
    pool = await bench.pool()
    for name in ("a", "b"):
        await pool.create(VolumeRequest(name, 20 * MI, block=True))
        await stage(bench, pool, name)
        await pool.publish(name, bench.folder / f"staged-p-{name}", bench.folder / f"target-{name}")
    members = [MemberRequest(pool, SnapshotRequest(f"s-{name}", name)) for name in ("a", "b")]
    with pytest.raises(PreconditionError, match="p/a is raw block; p/b is raw block"):
        await group.take(members)
    await group.take(members[:1])
