"""A static pool whose records are lost, older than the disks, of another node, or half there.

No disk is offered twice, no content is read by another tenant or removed, and all of it is reported.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace
from tests.unit.storage.pools.static.disks import MI, Bench, clean

from tonnage.base.errors import (
    HostError,
    NotFoundError,
    OutOfRangeError,
    PreconditionError,
    TonnageError,
    UnavailableError,
)
from tonnage.host import mount
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.static.content import MARK, OFFERED, is_blank

pytestmark = pytest.mark.real
SECRET = b"secret of the first tenant"
SIZE = 32 * MI
KINDS = ["mount", "device", "block"]


def _request(kind: str, name: str) -> VolumeRequest:
    return VolumeRequest(name, MI, block=kind == "block", fstype="ext4" if kind == "device" else "")


def _disk(bench: Bench, kind: str, entry: str = "d") -> Path:
    return bench.tmpfs(entry, SIZE) if kind == "mount" else bench.device(entry, SIZE)


async def _write(bench: Bench, pool: Pool, kind: str, name: str, at: int = 0) -> None:
    """Make a volume whose pod writes a secret; of a raw block volume at that byte."""
    staging, target = bench.folder / f"staging-{name}", bench.folder / f"target-{name}"
    await pool.create(_request(kind, name))
    await pool.stage(name, staging)
    await pool.publish(name, staging, target)
    if kind == "block":
        fd = os.open(target, os.O_RDWR | os.O_SYNC)
        os.pwrite(fd, SECRET, at)
        os.close(fd)
    else:
        (target / "file").write_bytes(SECRET)
    await pool.unpublish(name, target)
    await pool.unstage(name, staging)


def _content(bench: Bench, kind: str) -> bytes:
    return (bench.disks / "d" / "file").read_bytes() if kind == "mount" else bench.images["d"].read_bytes()


async def _is_not_offered(pool: Pool, kind: str) -> None:
    request = _request(kind, "next")
    assert (await pool.capacity(fstype=request.fstype, block=request.block)).free == 0
    assert (await pool.overall()).free == 0
    with pytest.raises(TonnageError):
        await pool.create(request)
    assert [line for line in await pool.problems() if "disks/d: " in line]


@pytest.mark.parametrize(
    ("kind", "at"),
    [("mount", 0), ("device", 0), ("block", 0), ("block", MI), ("block", SIZE - MI)],
)
async def test_lost_records_give_no_tenant_the_content_of_another(bench: Bench, kind: str, at: int) -> None:
    _disk(bench, kind)
    pool = await bench.open()
    await _write(bench, pool, kind, "a", at)
    await pool.close()
    shutil.move(bench.disks / ".tonnage", bench.folder / "kept")

    pool = await bench.open()
    assert await pool.list() == []
    await _is_not_offered(pool, kind)
    with pytest.raises((NotFoundError, HostError)):
        await pool.stage("a", bench.folder / "staging")
    if kind == "mount":
        with pytest.raises(HostError, match="says that it is this volume, and its record is not here"):
            await pool.delete("a")
    else:
        await pool.delete("a")
    assert SECRET in _content(bench, kind)

    await pool.close()
    shutil.rmtree(bench.disks / ".tonnage")
    shutil.move(bench.folder / "kept", bench.disks / ".tonnage")
    pool = await bench.open()
    assert [volume.name for volume in await pool.list()] == ["a"]
    assert await pool.problems() == []
    await pool.delete("a")
    await clean(pool)
    request = _request(kind, "next")
    assert (await pool.create(request)).place == "d"


async def test_an_empty_file_system_of_a_volume_is_not_offered_either(bench: Bench) -> None:
    path = bench.tmpfs("d", SIZE)
    pool = await bench.open()
    await pool.create(VolumeRequest("a", MI))
    await pool.close()
    shutil.rmtree(bench.disks / ".tonnage")
    pool = await bench.open()
    await _is_not_offered(pool, "mount")
    bench.tmpfs("other", SIZE)
    with pytest.raises(HostError, match="says that it is this volume"):
        await pool.create(VolumeRequest("a", MI))
    os.removexattr(path, MARK)
    assert (await pool.capacity()).free == 2 * SIZE, "a person says that nobody needs it"


@pytest.mark.parametrize("kind", ["mount", "device"])
@pytest.mark.parametrize("moment", ["new", "used", "cleaning"])
async def test_records_of_an_earlier_moment_do_not_touch_the_present_volume(
    bench: Bench, kind: str, moment: str
) -> None:
    _disk(bench, kind)
    pool, older = await bench.open(), bench.folder / "older"

    async def keep(when: str) -> None:
        if when == moment:
            shutil.copytree(bench.disks / ".tonnage", older)

    await _earlier_life(bench, pool, kind, keep)
    await pool.close()
    shutil.rmtree(bench.disks / ".tonnage")
    shutil.move(older, bench.disks / ".tonnage")
    pool = await bench.open()
    await _is_not_offered(pool, kind)
    if moment == "cleaning":
        assert "is of an earlier moment" in "".join(await pool.problems())
    else:
        await _is_left_alone(bench, pool, kind, moment)
    await pool.close()
    assert SECRET in _content(bench, kind)
    bench.pool = None


async def _earlier_life(bench: Bench, pool: Pool, kind: str, keep: Callable[[str], Awaitable[None]]) -> None:
    staging = bench.folder / "staging"
    await pool.create(_request(kind, "a"))
    await keep("new")
    await pool.stage("a", staging)
    await keep("used")
    await pool.unstage("a", staging)
    pool.backend.delete("a")
    await keep("cleaning")
    for job in pool.backend.erasures.jobs():  # type: ignore[union-attr]
        pool.backend.erasures.finish(job)  # type: ignore[union-attr]
    await _write(bench, pool, kind, "b")


async def _is_left_alone(bench: Bench, pool: Pool, kind: str, moment: str) -> None:
    """The record is of volume a, the disk has b."""
    with pytest.raises((UnavailableError, PreconditionError)):
        await pool.stage("a", bench.folder / "staging")
    assert (await pool.condition("a")).abnormal
    with pytest.raises(UnavailableError, match="is of an earlier moment"):
        await pool.delete("a")


async def test_a_volume_that_two_disks_say_they_are_is_left_alone(bench: Bench) -> None:
    """Names are used again: by the older records it is the one disk, by its own mark the other."""
    bench.tmpfs("d", SIZE)
    pool = await bench.open()
    await pool.create(VolumeRequest("a", MI))
    shutil.copytree(bench.disks / ".tonnage", bench.folder / "older")
    await pool.delete("a")
    await pool.create(VolumeRequest("other", MI))
    bench.tmpfs("e", SIZE)
    await _write(bench, pool, "mount", "a")
    await pool.delete("other")
    await pool.close()
    shutil.rmtree(bench.disks / ".tonnage")
    shutil.move(bench.folder / "older", bench.disks / ".tonnage")
    pool = await bench.open()
    for call in (pool.stage("a", bench.folder / "staging"), pool.delete("a")):
        with pytest.raises(UnavailableError, match=r"disk .*/e says that it is volume a, too"):
            await call
    assert (await pool.capacity()).free == 0
    assert (bench.disks / "e" / "file").read_bytes() == SECRET


async def test_records_of_another_node_do_not_offer_or_delete_the_disks_here(bench: Bench) -> None:
    bench.tmpfs("m", SIZE)
    bench.device("d", SIZE)
    pool = await bench.open()
    await pool.create(VolumeRequest("f", MI))
    await pool.create(VolumeRequest("b", MI, block=True))
    await pool.close()
    there = Bench(bench.folder / "there", bench.loops)
    there.disks.mkdir(parents=True)
    there.tmpfs("m", SIZE)
    there.device("d", SIZE)
    shutil.copytree(bench.disks / ".tonnage", there.disks / ".tonnage")
    pool = await there.open()
    assert (await pool.overall()).free == 0
    for name in ("f", "b"):
        with pytest.raises(UnavailableError, match="is another one than it was"):
            await pool.delete(name)
    await pool.close()
    bench.pool = None


async def test_a_disk_that_comes_from_another_pool_is_not_offered(bench: Bench) -> None:
    path = bench.tmpfs("m", SIZE)
    pool = await bench.open()
    await _write(bench, pool, "mount", "a")
    (path / "file").unlink()
    await pool.close()
    there = Bench(bench.folder / "there")
    (there.disks / "d").mkdir(parents=True)
    mount.bind(path, there.disks / "d")
    mount.umount(path)
    pool = await there.open()
    await _is_not_offered(pool, "mount")
    assert "it is of volume a, whose record is not here" in (await pool.problems())[0]
    await pool.close()
    bench.pool = None


async def test_half_written_and_damaged_records_keep_their_disks(bench: Bench) -> None:
    bench.tmpfs("d", SIZE)
    pool = await bench.open()
    await pool.create(VolumeRequest("a", MI))
    await pool.close()
    record = bench.disks / ".tonnage" / "d.json"
    text = record.read_bytes()
    record.write_bytes(text[: len(text) // 2])
    (record.parent / ".new-d.json").write_bytes(text)
    pool = await bench.open()
    await _is_not_offered(pool, "mount")
    with pytest.raises(HostError, match="damaged"):
        await pool.delete("a")
    await pool.close()
    record.unlink()
    pool = await bench.open()
    await _is_not_offered(pool, "mount")


async def test_a_file_system_that_is_offered_with_its_content(bench: Bench) -> None:
    path = bench.tmpfs("d", SIZE)
    (path / "prepared").write_text("by a person")
    pool = await bench.open()
    await _is_not_offered(pool, "mount")
    assert f"setfattr -n {MARK} -v {OFFERED} {path}" in (await pool.problems())[0]
    os.setxattr(path, MARK, OFFERED.encode())
    await pool.create(VolumeRequest("a", MI))
    assert os.getxattr(path, MARK) == b"volume a"
    await pool.delete("a")
    assert (await pool.capacity()).free == SIZE, "no pod had it: it is offered as before"
    await _write(bench, pool, "mount", "b")
    assert (path / "prepared").exists()
    await pool.delete("b")
    await clean(pool)
    assert (os.listdir(path), os.listxattr(path)) == ([], [])


async def test_disks_that_a_former_version_took_with_their_content_are_used_with_it(bench: Bench) -> None:
    node = bench.ext4("d", SIZE)
    place, staging = bench.folder / "place", bench.folder / "staging"
    pool = await bench.open()
    await pool.create(VolumeRequest("a", MI, fstype="ext4"))
    pool.backend.write(replace(pool.backend.records.volumes["a"], uuid=uuid4()))  # as it was
    place.mkdir()
    mount.mount(str(node), place, "ext4")
    (place / "prepared").write_text("by a person")
    mount.umount(place)
    await pool.stage("a", staging)
    assert (staging / "prepared").read_text() == "by a person"
    await pool.unstage("a", staging)


async def test_volumes_of_a_former_version_are_marked_at_the_next_start(bench: Bench) -> None:
    path = bench.tmpfs("d", SIZE)
    bench.device("e", SIZE)
    pool = await bench.open()
    await pool.create(VolumeRequest("a", MI))
    await pool.create(VolumeRequest("b", MI, fstype="ext4"))
    record = pool.backend.records.volumes["b"]
    pool.backend.write(replace(record, uuid=uuid4()))  # as it was
    await pool.stage("b", bench.folder / "staging")
    await pool.unstage("b", bench.folder / "staging")
    await pool.close()
    os.removexattr(path, MARK)
    pool = await bench.open()
    assert os.getxattr(path, MARK) == b"volume a"
    assert await pool.problems() == []
    await pool.stage("b", bench.folder / "staging")
    await pool.unstage("b", bench.folder / "staging")


@pytest.mark.parametrize(
    ("at", "blank"), [(None, True), (0, False), (100, False), (80 * MI - 1, False), (64 * MI, False)]
)
def test_a_blank_device_reads_as_a_cleaner_leaves_it(tmp_path: Path, at: int | None, blank: bool) -> None:
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, 80 * MI)
    fd = os.open(image, os.O_RDWR)
    os.pwrite(fd, b"x" * MI, 10 * MI)  # quick leaves it
    if at is not None:
        os.pwrite(fd, b"x", at)
    assert is_blank(fd) == blank
    os.close(fd)


async def test_a_disk_with_data_that_cannot_fit_says_so(bench: Bench) -> None:
    node = bench.device("d", SIZE)
    with node.open("r+b") as file:
        file.write(b"x")
    pool = await bench.open()
    with pytest.raises(OutOfRangeError, match="can never fit"):
        await pool.create(_request("block", "a"))
    assert "it holds data and has no record here" in (await pool.problems())[0]
    assert "blkdiscard -z" in (await pool.problems())[0]
