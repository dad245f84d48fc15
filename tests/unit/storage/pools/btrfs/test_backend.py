"""The btrfs pool beyond the common contract."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import HostError, InvalidError, TonnageError, UnavailableError, UnsupportedError
from tonnage.host import btrfs, loop, mount, tree
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import PoolLimits, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.record import UNDELETE
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.btrfs.backend import make_backend
from tonnage.storage.pools.core.pool import Pool

pytestmark = pytest.mark.real
MI = 1024**2
ANY = PoolLimits(size=500 * MI, sparse=True, ratio=float("inf"))


@pytest.fixture
async def pool(real_folder: Path) -> AsyncIterator[Pool]:
    need("mkfs.btrfs")
    made = Pool("p", make_backend(real_folder / "pool", ANY, disks=Disks()))
    await made.open()
    yield made
    with suppress(TonnageError):
        await made.close()


async def _loops(folder: Path) -> list[str]:
    """The files below folder that are attached; the kernel may need a moment to free a device."""
    for _ in range(200):
        if not (found := [path for _, path in loop.attached() if path.startswith(f"{folder}/")]):
            break
        await asyncio.sleep(0.01)
    return found


async def test_rejects_what_it_cannot(pool: Pool, real_folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="no raw block"):
        await pool.create(VolumeRequest("v", MI, block=True))
    with pytest.raises(UnsupportedError, match="no file system 'ext4'"):
        await pool.create(VolumeRequest("v", MI, fstype="ext4"))
    await pool.create(VolumeRequest("v", MI))
    with pytest.raises(UnsupportedError, match="commit=30"):
        await pool.stage("v", real_folder / "s", options=["noatime", "commit=30"])
    assert not mount.is_mount(real_folder / "s")


async def test_closing_gives_the_machine_back(pool: Pool, real_folder: Path) -> None:
    await pool.create(VolumeRequest("v", 20 * MI))
    await pool.close()
    assert await _loops(real_folder) == []
    assert not [entry for entry in mount.mounts() if entry.target.startswith(f"{real_folder}/")]
    await pool.open()
    assert [volume.name for volume in await pool.list()] == ["v"]


async def test_volumes_stay_mounted_while_the_process_is_gone(pool: Pool, real_folder: Path) -> None:
    staging = real_folder / "staging"
    await pool.create(VolumeRequest("v", 20 * MI))
    await pool.stage("v", staging)
    await pool.close()
    (staging / "file").write_text("content")
    await pool.open()
    assert len([path for _, path in loop.attached() if path.startswith(f"{real_folder}/")]) == 1
    assert (real_folder / "pool" / "mounted" / "v.vol" / "file").read_text() == "content"
    await pool.unstage("v", staging)


async def test_stats_are_the_volumes_own(pool: Pool, real_folder: Path) -> None:
    staging = real_folder / "staging"
    await pool.create(VolumeRequest("v", 20 * MI))
    await pool.stage("v", staging)
    with (staging / "file").open("wb") as file:
        file.write(bytes(8 * MI))
        os.fsync(file.fileno())
    os.sync()
    stats = await pool.stats("v", staging)
    assert stats.total == 20 * MI
    assert 8 * MI <= stats.used <= 9 * MI
    assert stats.available == stats.total - stats.used


async def test_subvolumes_made_inside_a_volume_go_with_it(pool: Pool, real_folder: Path) -> None:
    root = real_folder / "pool" / "mounted"
    await pool.create(VolumeRequest("v", 20 * MI))
    (root / "v.vol" / "deep").mkdir()
    for place, name in ((root / "v.vol", "outer"), (root / "v.vol" / "deep", "inner")):
        fd = os.open(place, os.O_RDONLY)
        btrfs.create(fd, name, MI)
        os.close(fd)
    await pool.delete("v")
    assert os.listdir(root) == [".tonnage-pool"]


async def test_a_pod_cannot_keep_its_volume_from_being_deleted(pool: Pool, real_folder: Path) -> None:
    root = real_folder / "pool" / "mounted"
    for name in ("nested", "whole", "flagged"):
        await pool.create(VolumeRequest(name, 20 * MI))
        run(["btrfs", "subvolume", "create", str(root / f"{name}.vol" / "outer")])
        run(["btrfs", "subvolume", "create", str(root / f"{name}.vol" / "outer" / "inner")])
    run(["btrfs", "property", "set", str(root / "nested.vol" / "outer"), "ro", "true"])
    run(["btrfs", "property", "set", str(root / "whole.vol"), "ro", "true"])
    for path in ("outer/inner", "outer", "."):
        run(["chattr", "+i", str(root / "flagged.vol" / path)])
    for name in ("nested", "whole", "flagged"):
        await pool.delete(name)
    assert os.listdir(root) == [".tonnage-pool"]


async def test_rubbish_that_cannot_be_removed_is_no_end_of_the_pool(
    pool: Pool, real_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = real_folder / "pool" / "mounted"
    for name in ("v", "w"):
        await pool.create(VolumeRequest(name, 20 * MI))
    (root / "v.json").unlink()
    (root / ".making-v").touch()
    await pool.close()

    def reject(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(tree, "remove_subvolume", reject)
        await pool.open()
        assert [volume.name for volume in await pool.list()] == ["w"]
        with pytest.raises(HostError, match="cannot delete subvolume"):
            await pool.delete("v")  # it is not gone, and so not said to be
    await pool.delete("v")
    assert not (root / "v.vol").exists()


async def test_many_creates_share_commits(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = 0
    real = btrfs.commit

    def counted(at: int) -> None:
        nonlocal commits
        commits += 1
        real(at)

    monkeypatch.setattr(btrfs, "commit", counted)
    await asyncio.gather(*(pool.create(VolumeRequest(f"v{number}", MI)) for number in range(100)))
    assert commits < 30
    await asyncio.gather(*(pool.delete(f"v{number}") for number in range(100)))
    assert (await pool.capacity()).used == 0


async def test_groups_of_deleted_volumes_go(pool: Pool, real_folder: Path) -> None:
    fd = os.open(real_folder / "pool" / "mounted", os.O_RDONLY)
    try:
        fs = btrfs.fsid(fd)
        assert fs is not None
        before = set(btrfs.qgroups(fs))
        for number in range(10):
            await pool.create(VolumeRequest(f"v{number}", MI))
        assert len(set(btrfs.qgroups(fs)) - before) == 10
        for number in range(10):
            await pool.delete(f"v{number}")
        for _ in range(100):
            if set(btrfs.qgroups(fs)) <= before:
                break
            await asyncio.sleep(0.02)
            btrfs.commit(fd)
        assert set(btrfs.qgroups(fs)) <= before
    finally:
        os.close(fd)


async def test_directory_of_a_btrfs_that_is_there(pool: Pool, real_folder: Path) -> None:
    place = real_folder / "pool" / "mounted" / "mine" / "below"
    inner = Pool("q", make_backend(place, PoolLimits(size=50 * MI), disks=Disks()))
    await inner.open()
    await inner.create(VolumeRequest("v", 20 * MI))
    assert (await inner.capacity()).free == 30 * MI
    assert sorted(os.listdir(place)) == [".tonnage-pool", "v.json", "v.vol"]
    await inner.delete("v")
    await inner.close()


async def test_needs_a_size_where_there_is_no_btrfs(real_folder: Path) -> None:
    pool = Pool("p", make_backend(real_folder / "pool", disks=Disks()))
    with pytest.raises(InvalidError, match="give the pool a size="):
        await pool.open()
    await pool.close()


async def test_taken_by_another_process(pool: Pool, real_folder: Path) -> None:
    other = Pool("p", make_backend(real_folder / "pool", ANY, disks=Disks()))
    with pytest.raises(UnavailableError, match="in use by another process"):
        await other.open()
    await other.close()
    assert mount.is_mount(real_folder / "pool" / "mounted")


@pytest.fixture(params=["simple", "full"])
def native(request: pytest.FixtureRequest, real_folder: Path) -> Path:
    """A folder on a btrfs that was there before, with either kind of quotas."""
    need("mkfs.btrfs")
    need("btrfs")
    image, root = real_folder / "disk", real_folder / "root"
    with image.open("wb") as file:
        file.truncate(500 * MI)
    run(["mkfs.btrfs", "-q", str(image)])
    root.mkdir()
    fd = os.open(image, os.O_RDWR)
    attached = loop.attach(fd, str(image))
    os.close(fd)
    try:
        mount.mount(attached.path, root, "btrfs")
    finally:
        attached.close()
    if request.param == "full":
        run(["btrfs", "quota", "enable", str(root)])
    return root


def _overwrite(path: Path, size: int) -> None:
    with path.open("wb", buffering=0) as file:
        for _ in range(size // MI):
            file.write(os.urandom(MI))
            os.fdatasync(file.fileno())


async def test_trash_makes_way_on_a_btrfs_that_was_there(native: Path) -> None:
    """The bytes of a deleted subvolume are free after a commit only: until then, the disk seems too small."""
    pool = Pool("p", make_backend(native / "pool", PoolLimits(), disks=Disks()))
    await pool.open()
    for name in ("a", "b", "c"):
        await pool.create(VolumeRequest(name, 60 * MI, owner={UNDELETE: "86400"}))
        _overwrite(native / "pool" / f"{name}.vol" / "file", 50 * MI)
        await pool.trash.discard(name)
    free = (await pool.capacity()).free
    await pool.create(VolumeRequest("new", free - 130 * MI))
    assert [volume.name for volume in await pool.list()] == ["new"]
    assert "a" not in [volume.name for volume in await pool.trash.list()]
    await pool.close()


async def test_a_volume_with_snapshots_is_overwritten_and_keeps_its_limit(native: Path) -> None:
    pool, staging = Pool("p", make_backend(native / "pool", ANY, disks=Disks())), native / "staging"
    await pool.open()
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", staging)
    for number in range(3):
        _overwrite(staging / "file", 15 * MI)  # 60 MiB in all are kept, the volume shows 15
        await pool.snapshots.create(f"s{number}", "a")
    _overwrite(staging / "file", 15 * MI)
    await pool.create(VolumeRequest("b", 20 * MI, source=VolumeOrigin(snapshot="s0")))
    for number in range(3):
        await pool.snapshots.delete(f"s{number}")
    await pool.unstage("a", staging)
    await pool.stage("b", staging)
    assert (staging / "file").stat().st_size == 15 * MI
    with pytest.raises(OSError, match="quota"):
        _overwrite(staging / "other", 30 * MI)  # the clone has a limit of its own
    await pool.unstage("b", staging)
    await pool.close()


async def test_a_folder_with_snapshots_can_be_removed(native: Path) -> None:
    pool = Pool("p", make_backend(native / "pool", ANY, disks=Disks()))
    await pool.open()
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", native / "staging")
    (native / "staging" / "file").write_text("content")
    await pool.snapshots.create("s", "a")
    await pool.unstage("a", native / "staging")
    await pool.close()
    tree.remove(native / "pool")
    assert not (native / "pool").exists()


async def test_a_subvolume_that_is_gone_is_told(pool: Pool, real_folder: Path) -> None:
    await pool.create(VolumeRequest("a", 20 * MI))
    assert not (await pool.condition("a")).abnormal
    [path] = (real_folder / "pool").rglob("a.vol")
    path.rmdir()
    told = await pool.condition("a")
    assert told.abnormal
    assert "is gone" in told.message


async def test_compression_is_a_classs_and_can_be_changed(pool: Pool, real_folder: Path) -> None:
    """It is in force for what is written then, also after a start, and a copy has its own."""
    staging = real_folder / "staging"
    text = b"tonnage" * MI

    async def allocated() -> int:
        (staging / "file").unlink(missing_ok=True)
        (staging / "file").write_bytes(text)
        os.sync()
        return (await pool.stats("a", staging)).used

    await pool.create(VolumeRequest("a", 20 * MI, parameters={"compression": "zstd"}))
    await pool.stage("a", staging)
    assert await allocated() < MI
    await pool.modify("a", {"compression": "none"})
    assert await allocated() > 6 * MI
    await pool.modify("a", {"compression": "lzo"})
    assert await allocated() < MI
    btrfs_property = "btrfs.compression"
    os.setxattr(staging, btrfs_property, b"zlib")  # as one that was killed before its record was written
    await pool.close()
    await pool.open()
    assert os.getxattr(staging, btrfs_property) == b"lzo"
    await pool.modify("a", {"compression": ""})
    assert os.getxattr(staging, btrfs_property) == b"zstd"
    await pool.unstage("a", staging)
    await pool.create(VolumeRequest("b", 20 * MI, source=VolumeOrigin(volume="a")))
    await pool.stage("b", staging)
    assert btrfs_property not in os.listxattr(staging)
    await pool.unstage("b", staging)
    with pytest.raises(InvalidError, match="compression: 'gzip'"):
        await pool.modify("a", {"compression": "gzip"})


async def test_a_full_volume_expands_and_its_compression_is_what_it_was(pool: Pool, real_folder: Path) -> None:
    staging = real_folder / "staging"
    await pool.create(VolumeRequest("a", 20 * MI, parameters={"compression": "zstd"}))
    await pool.stage("a", staging)
    with pytest.raises(OSError, match="quota"):
        _overwrite(staging / "file", 40 * MI)
    await pool.growth.expand("a", 40 * MI)
    _overwrite(staging / "file", 30 * MI)
    await pool.unstage("a", staging)


async def test_a_volume_does_not_become_trash_while_others_have_its_blocks(native: Path) -> None:
    """What counts as free has to be free once it is deleted."""
    pool, clock = Pool("p", make_backend(native / "pool", PoolLimits(), disks=Disks())), {UNDELETE: "86400"}
    await pool.open()
    for name in ("alone", "before", "kept", "copied"):
        await pool.create(VolumeRequest(name, 20 * MI, owner=clock))
        await pool.stage(name, native / "staging")
        await pool.unstage(name, native / "staging")
    await pool.snapshots.create("s", "kept")
    await pool.create(VolumeRequest("copy", 20 * MI, owner=clock, source=VolumeOrigin(volume="copied")))
    stays = {name: await pool.trash.discard(name) for name in ("alone", "kept", "copied", "copy")}
    assert stays == {"alone": True, "kept": False, "copied": False, "copy": False}
    await pool.delete("kept")
    assert not await pool.trash.discard("before"), "nobody knows whether the volume of the snapshot was a copy of it"
    await pool.create(VolumeRequest("later", 20 * MI, owner=clock))
    assert await pool.trash.discard("later")
    await pool.delete("copied")
    await pool.delete("copy")
    await pool.snapshots.delete("s")
    await pool.close()
