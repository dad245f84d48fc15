"""The static pool on real mounts and loop devices: which entries are volumes, who gets which disk, how it is cleaned."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.unit.storage.pools.static.disks import MI, Bench, clean

from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    InvalidError,
    OutOfRangeError,
    PreconditionError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.host import device, disk, mount
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.static import discovery
from tonnage.storage.pools.static.backend import StaticBackend
from tonnage.storage.pools.static.content import MARK, OFFERED
from tonnage.storage.pools.static.discovery import readable

pytestmark = pytest.mark.real
GI = 1024**3
SECRET = b"secret of the first owner"


def mount_number(path: Path) -> str:
    number = os.stat(path).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def test_sizes_are_rounded_to_what_people_can_read() -> None:
    assert readable(100 * GI + 5 * MI) == 100 * GI
    assert readable(10 * GI) == 10 * GI
    assert readable(9 * GI + 5) == 9 * GI
    assert readable(9 * GI + 5 * MI + 5) == 9 * GI + 5 * MI
    assert readable(9 * MI + 5) == 9 * MI + 5


async def test_what_is_a_volume_and_what_is_not(bench: Bench) -> None:
    bench.tmpfs("mounted", 64 * MI)
    bench.device("linked", 32 * MI)
    (bench.disks / "plain").mkdir()
    (bench.disks / "file").write_text("")
    (bench.disks / "dangling").symlink_to("/nowhere/at/all")
    (bench.disks / "folder-link").symlink_to(bench.folder)
    (bench.disks / "a b\nc").mkdir()
    (bench.disks / ".hidden").mkdir()
    (bench.disks / "lost+found").mkdir()
    (bench.disks / "again").symlink_to(os.readlink(bench.disks / "linked"))
    bench.tmpfs("shared", 16 * MI)
    (bench.folder / "there-too").mkdir()
    mount.bind(bench.disks / "shared", bench.folder / "there-too")
    bound = bench.disks / "bound"
    bound.mkdir()
    mount.bind(bench.folder, bound)
    pool = await bench.open()
    linked = Path(os.readlink(bench.disks / "linked"))
    assert {linked, Path("/dev/block", mount_number(bench.disks / "mounted"))} <= set(pool.backend.devices())

    assert (await pool.capacity()).free == 64 * MI
    assert (await pool.capacity(block=True)).free == 32 * MI
    assert (await pool.overall()).total == 96 * MI
    problems = dict(line.removeprefix(f"{bench.disks}/").split(": ", 1) for line in await pool.problems())
    assert set(problems) == {"plain", "file", "dangling", "folder-link", "a b\nc", "linked", "bound", "shared"}
    assert f"mounted at {bench.folder}/there-too too" in problems["shared"]
    assert "no mount point: a pod would fill the disk below it" in problems["plain"]
    assert "same disk as again" in problems["linked"]
    assert "bind mount of the disk that the directory is on" in problems["bound"]
    assert "which does not exist" in problems["dangling"]
    assert "no block device" in problems["folder-link"]
    assert "not one for a volume" in problems["a b\nc"]
    assert (bench.disks / "plain").is_dir(), "nothing is ever removed"


async def test_a_directory_that_others_can_write_to_is_rejected(bench: Bench) -> None:
    bench.disks.chmod(0o777)
    with pytest.raises(UnavailableError, match="can be written to by others"):
        await bench.open()
    bench.disks.chmod(0o755)
    bench.pool = None
    bench.disks.rename(bench.folder / "real")
    with pytest.raises(UnavailableError, match="make it and mount the disks below it"):
        await bench.open()
    bench.pool = None
    bench.disks.symlink_to(bench.folder / "real")
    with pytest.raises(UnavailableError, match="not a directory"):
        await bench.open()
    bench.pool = None


async def test_the_smallest_disk_that_is_large_enough(bench: Bench) -> None:
    for entry, size in (("big", 100 * MI), ("small", 20 * MI), ("middle", 50 * MI)):
        bench.tmpfs(entry, size)
    pool = await bench.open()
    room = await pool.capacity()
    assert (room.total, room.free, room.largest, room.smallest) == (170 * MI, 170 * MI, 100 * MI, 20 * MI)

    made = await pool.create(VolumeRequest("a", 10 * MI))
    assert (made.size, made.place, made.fstype) == (20 * MI, "small", "tmpfs")
    assert await pool.create(VolumeRequest("a", 10 * MI)) == made
    with pytest.raises(AlreadyExistsError, match="its size is"):
        await pool.create(VolumeRequest("a", 30 * MI))
    with pytest.raises(
        OutOfRangeError, match=r"10Mi to 15Mi can never fit: the mounted disks .* are 20Mi, 50Mi, 100Mi"
    ):
        await pool.create(VolumeRequest("b", 10 * MI, limit=15 * MI))
    with pytest.raises(ExhaustedError, match="volumes already, or being cleaned"):
        await pool.create(VolumeRequest("b", 10 * MI, limit=25 * MI))
    with pytest.raises(OutOfRangeError):
        await pool.create(VolumeRequest("b", 101 * MI))
    assert (await pool.create(VolumeRequest("b", 10 * MI))).place == "middle"
    assert (await pool.create(VolumeRequest("c", 100 * MI))).place == "big"
    with pytest.raises(ExhaustedError):
        await pool.create(VolumeRequest("d", 1))

    pool = await bench.open()
    assert [(v.name, v.place) for v in await pool.list()] == [("a", "small"), ("b", "middle"), ("c", "big")]
    bench.tmpfs("later", 30 * MI)
    assert (await pool.capacity()).largest == 30 * MI


async def test_many_at_once_never_get_the_same_disk(bench: Bench) -> None:
    for number in range(6):
        bench.tmpfs(f"d{number}", 20 * MI)
    pool = await bench.open()
    answers = await asyncio.gather(
        *(pool.create(VolumeRequest(f"v{n}", MI)) for n in range(10)), return_exceptions=True
    )
    places = [answer.place for answer in answers if not isinstance(answer, BaseException)]
    assert sorted(places) == [f"d{number}" for number in range(6)]
    assert sum(isinstance(answer, ExhaustedError) for answer in answers) == 4


async def test_a_mount_is_shown_and_its_content_removed_for_the_next(bench: Bench) -> None:
    path = bench.tmpfs("d", 20 * MI)
    outside = bench.folder / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    (path / "prepared").write_text("by the administrator")
    os.setxattr(path, MARK, OFFERED.encode())
    pool = await bench.open()
    staging, target = bench.folder / "staging", bench.folder / "target"
    await pool.create(VolumeRequest("a", MI))
    with pytest.raises(UnsupportedError, match="mount option 'dax'"):
        await pool.stage("a", staging, options=["dax"])
    for _ in range(2):
        await pool.stage("a", staging, options=["noatime"])
        await pool.publish("a", staging, target)
    assert (target / "prepared").exists()
    (target / "deep" / "deeper").mkdir(parents=True)
    (target / "deep" / "file").write_bytes(SECRET)
    (target / "deep" / "link").symlink_to(outside)
    assert (await pool.stats("a", target)).total == 20 * MI
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")
    pool = await bench.open()
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")
    await pool.unpublish("a", target)
    await pool.unstage("a", staging)
    await pool.delete("a")
    await pool.delete("a")
    assert await pool.list() == []
    await clean(pool)

    assert os.listdir(path) == []
    assert (outside / "precious").read_text() == "kept"
    assert (await pool.capacity()).free == 20 * MI
    assert mount.is_mount(path)


async def test_a_volume_that_nobody_had_is_free_at_once(bench: Bench) -> None:
    path = bench.tmpfs("d", 20 * MI)
    (path / "prepared").write_text("content")
    os.setxattr(path, MARK, OFFERED.encode())
    pool = await bench.open()
    await pool.create(VolumeRequest("a", MI))
    await pool.delete("a")
    assert (await pool.erasing(), (await pool.capacity()).free) == ([], 20 * MI)
    assert (path / "prepared").exists()


@pytest.mark.parametrize("cleaner", ["quick", "discard", "zero", "shred"])
async def test_a_device_is_cleaned_as_its_class_says(bench: Bench, cleaner: str) -> None:
    node = bench.device("d", 16 * MI)
    pool = await bench.open()
    staging, target = bench.folder / "staging", bench.folder / "target"
    made = await pool.create(VolumeRequest("a", MI, block=True, parameters={"cleaner": cleaner}))
    assert (made.size, made.block) == (16 * MI, True)
    await pool.stage("a", staging)
    await pool.publish("a", staging, target)
    with pytest.raises(UnsupportedError, match="read-only"):
        await pool.publish("a", staging, target, readonly=True)
    fd = os.open(target, os.O_RDWR | os.O_SYNC)
    os.pwrite(fd, b"XFSB", 0)
    os.pwrite(fd, SECRET, 8 * MI)
    os.close(fd)
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")
    await pool.unpublish("a", target)
    await pool.unstage("a", staging)
    await pool.delete("a")
    await clean(pool)

    content = bench.images["d"].read_bytes()
    assert (SECRET in content) == (cleaner == "quick")
    fd = os.open(node, os.O_RDONLY)
    assert device.probe(fd) is None
    os.close(fd)
    assert (await pool.capacity(block=True)).free == 16 * MI


async def test_a_device_gets_a_file_system_once_if_one_is_asked_for(bench: Bench) -> None:
    bench.device("d", 64 * MI)
    bench.tmpfs("t", 100 * MI)
    pool = await bench.open()
    staging = bench.folder / "staging"
    room = await pool.capacity(fstype="ext4")
    made = await pool.create(VolumeRequest("a", 50 * MI, fstype="ext4"))
    assert (made.place, made.fstype, made.size) == ("d", "ext4", room.largest)
    await pool.stage("a", staging)
    assert (await pool.stats("a", staging)).available >= made.size
    (staging / "file").write_bytes(SECRET)
    await pool.unstage("a", staging)
    pool = await bench.open()
    await pool.stage("a", staging)
    assert (staging / "file").read_bytes() == SECRET
    with pytest.raises(PreconditionError, match="in use"):
        await pool.delete("a")
    await pool.unstage("a", staging)
    await pool.delete("a")
    await clean(pool)
    await pool.create(VolumeRequest("b", 50 * MI, fstype="ext4"))
    await pool.stage("b", staging)
    assert os.listdir(staging) == ["lost+found"]
    await pool.unstage("b", staging)


async def test_a_file_system_that_was_prepared_is_kept_and_another_is_not_formatted(bench: Bench) -> None:
    node = bench.ext4("d", 64 * MI, "mine")
    pool = await bench.open()
    staging = bench.folder / "staging"
    await pool.create(VolumeRequest("a", MI, fstype="ext4"))
    await pool.stage("a", staging)
    await pool.unstage("a", staging)
    assert b"mine" in bench.images["d"].read_bytes()[:4096]
    await pool.delete("a")
    await clean(pool)
    with node.open("r+b") as file:
        file.write(b"LUKS\xba\xbe")
        file.flush()
        os.fsync(file.fileno())
    with pytest.raises(OutOfRangeError):
        await pool.create(VolumeRequest("b", MI, fstype="ext4"))
    assert "d: it holds LUKS and has no record here" in (await pool.problems())[0]


async def test_what_is_written_to_a_taken_disk_by_others_is_neither_formatted_nor_shown(bench: Bench) -> None:
    node = bench.device("d", 64 * MI)
    pool = await bench.open()
    for request, content, words in (
        (VolumeRequest("a", MI, fstype="ext4"), b"LUKS\xba\xbe", "LUKS that we did not make"),
        (VolumeRequest("b", MI, fstype="ext4"), SECRET, "not blank"),
        (VolumeRequest("c", MI, block=True), SECRET, "not blank"),
    ):
        await pool.create(request)
        with node.open("r+b") as file:
            file.write(content)
        with pytest.raises(PreconditionError, match=words):
            await pool.stage(request.name, bench.folder / "staging")
        assert node.read_bytes().startswith(content)
        with node.open("r+b") as file:
            file.write(bytes(64))
        await pool.delete(request.name)


async def test_cleaning_goes_on_after_a_restart(bench: Bench) -> None:
    node = bench.device("d", 64 * MI)
    path = bench.tmpfs("t", 20 * MI)
    pool = await bench.open(",eraserate=1")  # one chunk, then it waits for ever
    staging = bench.folder / "staging"
    await pool.create(VolumeRequest("b", MI, block=True, parameters={"cleaner": "zero"}))
    await pool.create(VolumeRequest("f", MI))
    for name in ("b", "f"):
        await pool.stage(name, staging)
        await pool.unstage(name, staging)
    with node.open("r+b") as file:
        file.seek(40 * MI)
        file.write(SECRET)
    (path / "file").write_text("content")
    await pool.delete("b")
    await pool.delete("f")
    assert {e.name for e in await pool.erasing()} >= {"b"}
    with pytest.raises(ExhaustedError):
        await pool.create(VolumeRequest("next", MI, block=True))

    pool = await bench.open()
    await clean(pool)
    assert SECRET not in bench.images["d"].read_bytes()
    assert os.listdir(path) == []
    assert (await pool.create(VolumeRequest("next", MI, block=True))).place == "d"


async def test_a_cleaner_that_fails_keeps_the_disk_out_of_service(bench: Bench) -> None:
    path = bench.tmpfs("t", 20 * MI)
    pool = await bench.open()
    staging = bench.folder / "staging"
    await pool.create(VolumeRequest("a", MI))
    await pool.stage("a", staging)
    inner = staging / "inner"
    inner.mkdir()
    await pool.unstage("a", staging)
    mount.mount("x", path / "inner", "tmpfs")
    await pool.delete("a")

    async def problem() -> str:
        async with asyncio.timeout(60):
            while not (said := [e.problem for e in await pool.erasing()])[0]:
                await asyncio.sleep(0.01)
        return said[0]

    assert "cannot clean disk" in await problem()
    assert (await pool.capacity()).free == 0
    assert [line for line in await pool.problems() if "volume a is not cleaned" in line]
    mount.umount(path / "inner")
    pool = await bench.open()
    await clean(pool)
    assert (await pool.capacity()).free == 20 * MI


async def test_a_disk_that_vanished_or_was_swapped_is_told_and_never_deleted(bench: Bench) -> None:
    path = bench.tmpfs("t", 20 * MI)
    bench.tmpfs("other", 20 * MI)
    bench.device("d", 16 * MI)
    pool = await bench.open()
    staging = bench.folder / "staging"
    await pool.create(VolumeRequest("f", MI, limit=20 * MI))
    await pool.create(VolumeRequest("f2", MI, limit=20 * MI))
    await pool.create(VolumeRequest("b", MI, block=True))
    assert not (await pool.condition("f")).abnormal
    taken = {volume.place: volume.name for volume in await pool.list()}
    name = taken["t"]

    mount.umount(path)
    (bench.disks / "d").unlink()
    for volume in (name, "b"):
        assert (await pool.condition(volume)).abnormal
        for call in (pool.delete(volume), pool.stage(volume, staging)):
            with pytest.raises(UnavailableError, match="bring it back as it was"):
                await call
    assert len(await pool.list()) == 3
    assert not (await pool.condition(taken["other"])).abnormal

    mount.mount("disk", path, "tmpfs", ["size=20m"])
    condition = await pool.condition(name)
    assert "is another one than it was" in condition.message
    pool = await bench.open()
    with pytest.raises(UnavailableError, match="another one"):
        await pool.delete(name)
    assert len(await pool.problems()) == 2
    assert (await pool.capacity()).free == 0


async def test_a_damaged_record_keeps_its_disk_from_everybody(bench: Bench) -> None:
    bench.tmpfs("t", 20 * MI)
    pool = await bench.open()
    await pool.create(VolumeRequest("a", MI))
    await pool.close()
    (bench.disks / ".tonnage" / "t.json").write_text('{"entry": "t"')
    pool = await bench.open()
    assert await pool.list() == []
    assert (await pool.capacity()).free == 0
    assert "its record is damaged" in (await pool.problems())[0]
    with pytest.raises(OutOfRangeError):
        await pool.create(VolumeRequest("b", MI))


async def test_looks_at_once_do_not_take_each_other_for_users_of_a_device(bench: Bench) -> None:
    bench.tmpfs("m", 16 * MI)
    node = bench.device("d", 16 * MI)
    pool = await bench.open()

    async def look() -> None:
        for _ in range(100):
            assert (await pool.capacity(block=True)).total == 16 * MI

    def look_elsewhere() -> None:
        for _ in range(300):
            assert disk.inspect(node).users == ()

    async def live() -> None:
        for _ in range(20):
            await pool.create(VolumeRequest("v", MI, fstype="ext4"))
            await pool.stage("v", bench.folder / "staging")
            await pool.unstage("v", bench.folder / "staging")
            await pool.delete("v")
            await clean(pool)

    await asyncio.gather(look(), look(), asyncio.to_thread(look_elsewhere))
    await asyncio.gather(look(), look(), live())


async def test_a_device_in_use_is_not_taken(bench: Bench) -> None:
    node = bench.ext4("d", 64 * MI)
    place = bench.folder / "place"
    place.mkdir()
    mount.mount(str(node), place, "ext4")
    pool = await bench.open()
    assert (await pool.capacity(block=True)).free == 0
    assert f"is in use: it is mounted at {place}" in (await pool.problems())[0]
    mount.umount(place)
    assert (await pool.capacity(block=True)).free == 0
    assert "it holds a used ext4 file system" in (await pool.problems())[0]
    with node.open("r+b") as file:
        file.write(bytes(64 * MI))
    assert (await pool.capacity(block=True)).free == 64 * MI


async def test_cleaners_are_checked_by_name(bench: Bench) -> None:
    bench.tmpfs("t", 20 * MI)
    bench.device("d", 64 * MI)
    pool = await bench.open()
    with pytest.raises(InvalidError, match="'mop' is unknown, want quick, discard, zero, shred"):
        await pool.create(VolumeRequest("a", MI, parameters={"cleaner": "mop"}))
    with pytest.raises(UnsupportedError, match="cleaner zero overwrites a whole device"):
        await pool.capacity_for({"cleaner": "zero"})
    room = await pool.capacity_for({"cleaner": "zero"}, fstype="ext4")
    assert 0 < room.largest < 64 * MI


async def test_who_tells_of_room_hears_of_each_disk_that_is_clean(bench: Bench) -> None:
    bench.tmpfs("d", 20 * MI)
    pool = await bench.open()
    heard = asyncio.Event()
    pool.on_capacity = heard.set
    await pool.create(VolumeRequest("a", MI))
    await pool.stage("a", bench.folder / "staging")
    await pool.unstage("a", bench.folder / "staging")
    assert not heard.is_set()
    await pool.delete("a")
    async with asyncio.timeout(60):
        await heard.wait()
    assert (await pool.capacity()).free == 20 * MI


async def test_the_end_of_a_pool_cleans_what_is_quick_and_leaves_the_rest_to_the_next(bench: Bench) -> None:
    path = bench.tmpfs("t", 20 * MI)
    bench.device("d", 16 * MI)
    pool = await bench.open()
    staging = bench.folder / "staging"
    await pool.create(VolumeRequest("f", MI))
    await pool.create(VolumeRequest("b", MI, block=True, parameters={"cleaner": "shred"}))
    for name in ("f", "b"):
        await pool.stage(name, staging)
        await pool.unstage(name, staging)
    (path / "file").write_text("content")
    await pool.close()
    for _ in range(2):
        store = StaticBackend(bench.disks)
        store.open()
        store.give_up()
        store.close()
    assert os.listdir(path) == []
    pool = await bench.open()
    assert [e.method for e in await pool.erasing()] == ["shred"]
    await clean(pool)
    assert await pool.list() == []


@pytest.mark.parametrize(
    ("described", "slot"),
    [
        ("/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vdb", "pci0000:00/0000:00:02.0"),
        ("/sys/devices/platform/a003e00.virtio_mmio/virtio0/block/vda", "platform/a003e00.virtio_mmio"),
        ("/sys/devices/virtual/block/zram0", "zram0"),
    ],
)
def test_a_disk_without_a_name_is_known_by_its_slot(described: str, slot: str) -> None:
    assert discovery._slot(Path(described)) == slot
