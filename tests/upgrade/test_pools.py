"""Pools that earlier commits made: their volumes keep their content, can be mounted, grown, copied and deleted.

Those on disks of their own need project quotas or the device mapper: tests/vm runs them in user-mode Linux, which says
by TONNAGE_TEST_DISKS which scratch disks they may have.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.programs import need
from tests.upgrade.archive import COMMITS, NEWER, later, read, unpack

from tonnage.base.errors import HostError, NotFoundError, PreconditionError
from tonnage.csi.driver.driver import context_of
from tonnage.csi.driver.group_members import GroupMember, group_of, is_complete
from tonnage.host import lvm, mount
from tonnage.host.filesystem import may_grow_ext4
from tonnage.storage.pools.base.contract import VolumeOrigin, VolumeRequest, VolumeState
from tonnage.storage.pools.base.record import FORMAT
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.lvm.tags import decode, encode

pytestmark = pytest.mark.real
MI = 1024**2
ERASED = 120.0
"""Seconds after which erasing counts as hung."""
DISKS = os.environ.get("TONNAGE_TEST_DISKS", "").split()
POOLS: dict[tuple[str, str], dict[str, Any]] = {
    (commit, name): pool
    for commit in COMMITS
    for name, pool in read(commit, "pools").items()
    if ("disk" in pool) == bool(DISKS)
}
GROWN = ("larger", "plain", "raw", "origin")
"""What is grown in guests, which are slow."""
LATER = ("plain", "trashed", "snapshot", "small", "d0")
"""Volumes and snapshots that get records of a later format, and the disk whose record is that of a volume."""
NEW_TEXT = "written by the present version\n"


@dataclass
class Bench:
    """A pool of before and what is to be found in it. volumes: name -> size, block, fstype, text ..."""

    commit: str
    name: str
    folder: Path
    disk: str = ""
    pools: list[Pool] = field(default_factory=list)
    volumes: dict[str, dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.volumes = dict(self.expected["volumes"])

    @property
    def expected(self) -> dict[str, Any]:
        return POOLS[self.commit, self.name]

    def set_up(self) -> None:
        """Unpack the pool to where its description is to say that it is."""
        place = self.folder / "pool"
        if not (image := self.expected.get("disk")):
            unpack(self.commit, f"pools/{self.name}", self.folder)
            (self.folder / self.name).rename(place)
            if "disks" in self.expected:
                unpack(self.commit, "pools/static-disks", self.folder)
            for disk in self.expected.get("disks", ()):
                subprocess.run(
                    ["mount", "-o", "loop", f"{self.folder}/static-disks/{disk}.img", place / disk], check=True
                )
            if "sparse=no" in self.expected["pool"]:
                for file in place.rglob("*.img"):  # the archive has holes where these had zeros
                    subprocess.run(["fallocate", "-l", str(file.stat().st_size), file], check=True)
            return
        unpack(self.commit, f"pools/{self.name}", self.folder)
        copy_to_disk(self.folder / image, self.disk)
        if fstype := self.expected.get("file system"):
            place.mkdir()
            mount.mount(self.disk, place, fstype, ["prjquota"])

    async def open(self) -> Pool:
        """The pool, as a new process sees it."""
        for before in self.pools:
            await before.close()
        place = self.folder / "pool" / ("pool" if "file system" in self.expected else "")
        self.pools.append(make(parse(self.expected["pool"].replace("{folder}", str(place))), disks=Disks()))
        await self.pools[-1].open()
        return self.pools[-1]

    async def end(self) -> None:
        """Remove what is left on the machine."""
        for pool in self.pools:
            await pool.close()
        for entry in reversed(list(mount.mounts())):
            if entry.target.startswith(f"{self.folder}/"):
                mount.umount(entry.target, lazy=True)
        if self.name.startswith("lvm"):
            lvm.lvm("lvremove", "--yes", "vg0")
            lvm.lvm("vgremove", "--yes", "vg0")
            lvm.lvm("pvremove", "--yes", self.disk)  # the next disk has one of the same UUID

    async def show(self, pool: Pool, name: str) -> Path:
        """Publish a volume; where its content is."""
        staging, target = self.folder / "staging" / name, self.folder / "target" / name
        for parent in (staging.parent, target.parent):
            parent.mkdir(exist_ok=True)
        await pool.stage(name, staging)
        await pool.publish(name, staging, target)
        return target if (await pool.get(name)).block else target / "file"

    async def hide(self, pool: Pool, name: str) -> None:
        await pool.unpublish(name, self.folder / "target" / name)
        await pool.unstage(name, self.folder / "staging" / name)

    async def grow(self, pool: Pool, name: str, size: int) -> None:
        """Both halves of an expansion: while the volume is published, or where that cannot be, before it is again."""
        try:
            assert (await pool.growth.expand(name, size)).size >= size
            await pool.growth.grow(name, self.folder / "staging" / name)
        except PreconditionError:
            is_thick_origin = (self.name, name) == ("lvm-thick", "origin")
            assert is_thick_origin or not may_grow_ext4()
            await self.hide(pool, name)
            assert (await pool.growth.expand(name, size)).size >= size
            await self.show(pool, name)
        assert not (await pool.get(name)).pending


def copy_to_disk(image: Path, disk: str) -> None:
    """Write what is not a hole; a scratch disk has nothing but zeros at first."""
    with image.open("rb") as source, open(disk, "r+b") as target:
        end, at = os.fstat(source.fileno()).st_size, 0
        while at < end:
            try:
                at = os.lseek(source.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole
                break
            stop = os.lseek(source.fileno(), at, os.SEEK_HOLE)
            source.seek(at)
            target.seek(at)
            target.write(source.read(stop - at))
            at = stop
        target.flush()
        os.fsync(target.fileno())


def content(path: Path, length: int) -> str:
    with path.open("rb") as file:
        return file.read(length).decode()


def write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_RDWR | (0 if path.is_block_device() else os.O_CREAT | os.O_TRUNC))
    os.write(fd, text.encode())
    os.fsync(fd)
    os.close(fd)


@pytest.fixture(params=list(POOLS), ids=" ".join)
async def bench(request: pytest.FixtureRequest, real_folder: Path) -> AsyncIterator[Bench]:
    need("mkfs.xfs", "mkfs.btrfs")
    disk = DISKS[list(POOLS).index(request.param)] if DISKS else ""
    commit, name = request.param
    made = Bench(commit, name, real_folder, disk)
    try:
        made.set_up()
        yield made
    finally:
        await made.end()


async def test_volumes_of_before(bench: Bench) -> None:
    """One after the other, as unpacking takes the longest: found, read, grown, restarted, read, deleted."""
    pool = await bench.open()
    await found(bench, pool)
    if bench.commit == COMMITS[-1]:
        pool = await later_format(bench, pool)
    await undeleted(bench, pool)
    await read_and_grown(bench, pool)
    await restarted(bench, await bench.open())
    await copied(bench, bench.pools[-1])
    await half_done(bench, bench.pools[-1])
    await deleted(bench, bench.pools[-1])


async def none_is_damaged(bench: Bench, pool: Pool) -> None:
    """What a kill of the former version has left cannot be distinguished from a volume that lost its record."""
    assert set(await pool.damaged()) <= set(bench.expected.get("gone", ()))


async def found(bench: Bench, pool: Pool) -> None:
    await none_is_damaged(bench, pool)
    volumes = {volume.name: volume for volume in await pool.list()}
    assert sorted(volumes) == sorted(bench.volumes)
    for name, expected in bench.volumes.items():
        volume = volumes[name]
        assert (volume.size, volume.block, volume.fstype) == (expected["size"], expected["block"], expected["fstype"])
        assert volume.mutable == expected.get("mutable", {})
        assert context_of(volume) == expected["context"]
        assert volume.pending == expected.get("pending", False)
        if expected["text"] and not volume.block and pool.kind in ("image", "lvm"):
            assert volume.state is VolumeState.FORMATTED or expected.get("source")
        if "source" in expected:
            assert volume.source == VolumeOrigin(snapshot=expected["source"])


async def later_format(bench: Bench, pool: Pool) -> Pool:
    """Records of a later format are reported and left alone. When the later version has gone back, all is there."""
    before = records_of(bench)
    after = {name: (later if name.startswith("/") else later_tags)(text) for name, text in before.items()}
    write_records(before, after)
    pool = await bench.open()
    parameters = {"allowUnenforced": "true"} if bench.name == "quota-ext4" else {}
    hidden = [name for name in LATER if name in bench.volumes or name in bench.expected.get("trash", {})]
    assert hidden
    for name in hidden:
        for call in (
            pool.get(name),
            pool.delete(name),
            pool.create(VolumeRequest(name, 4 * MI, parameters=parameters)),
        ):
            with pytest.raises(HostError, match=NEWER):
                await call
        assert NEWER in (await pool.condition(name)).message
    assert sorted(volume.name for volume in await pool.list()) == sorted(set(bench.volumes) - set(hidden))
    assert not await pool.trash.list()
    if "snapshots" in bench.expected:
        for done in (pool.snapshots.get("snapshot"), pool.snapshots.delete("snapshot")):
            with pytest.raises(HostError, match=NEWER):
                await done
    reported = [*(await pool.damaged()).values(), *(await pool.problems())]
    assert sum(NEWER in text for text in reported) >= len(before)
    assert records_of(bench) == after
    write_records(after, before)
    pool = await bench.open()
    await found(bench, pool)
    return pool


def later_tags(text: bytes) -> bytes:
    """The tags of a record in the format after the present one."""
    entry = decode(text.decode().split(","))
    newer = replace(entry, record=structs.replace(entry.record, version=FORMAT + 1))
    return ",".join(sorted(encode(newer))).encode()


def records_of(bench: Bench) -> dict[str, bytes]:
    """Some records: by the path of each, or by the logical volume whose tags it is."""
    if not bench.name.startswith("lvm"):
        return {str(path): path.read_bytes() for path in (bench.folder / "pool").rglob("*.json") if path.stem in LATER}
    report = json.loads(lvm.lvm("lvs", "--reportformat", "json", "-o", "lv_name,lv_tags", "vg0"))["report"][0]["lv"]
    return {lv["lv_name"]: lv["lv_tags"].encode() for lv in report if lv["lv_name"].removeprefix("s+") in LATER}


def write_records(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    for name, text in after.items():
        if name.startswith("/"):
            Path(name).write_bytes(text)
        else:
            old, new = set(before[name].decode().split(",")), set(text.decode().split(","))
            words = [*(f"--addtag={tag}" for tag in new - old), *(f"--deltag={tag}" for tag in old - new)]
            lvm.lvm("lvchange", *words, f"vg0/{name}")


async def undeleted(bench: Bench, pool: Pool) -> None:
    """Trash is found and restored; from here on it is a volume as the others."""
    trash: dict[str, dict[str, Any]] = bench.expected.get("trash", {})
    assert [volume.name for volume in await pool.trash.list()] == sorted(trash)
    for name, expected in trash.items():
        restored = await pool.trash.restore(name)
        assert (restored.size, restored.fstype) == (expected["size"], expected["fstype"])
        bench.volumes[name] = expected
    assert not await pool.trash.list()


async def read_and_grown(bench: Bench, pool: Pool) -> None:
    for name, expected in bench.volumes.items():
        file = await bench.show(pool, name)
        if text := expected["text"]:
            assert content(file, len(text)) == text, name
        elif not expected["block"]:
            assert not file.exists()
        write(file, text + NEW_TEXT)
        if pool.features.expansion and (name in GROWN or not DISKS):
            before = (await pool.stats(name, file if expected["block"] else file.parent)).total
            await bench.grow(pool, name, expected["size"] + 4 * MI)
            after = (await pool.stats(name, file if expected["block"] else file.parent)).total
            assert after >= before, name
            assert after >= expected["size"] + 4 * MI or not expected["block"], name
            assert content(file, len(text + NEW_TEXT)) == text + NEW_TEXT, name
        assert not (await pool.condition(name, bench.folder / "target" / name)).abnormal
        await bench.hide(pool, name)


async def restarted(bench: Bench, pool: Pool) -> None:
    """Records that were written anew are read again."""
    await none_is_damaged(bench, pool)
    for name, expected in list(bench.volumes.items())[: 2 if DISKS else None]:  # guests are slow
        file = await bench.show(pool, name)
        text = expected["text"] + NEW_TEXT
        assert content(file, len(text)) == text, name
        await bench.hide(pool, name)


async def copied(bench: Bench, pool: Pool) -> None:
    snapshots: dict[str, str] = bench.expected.get("snapshots", {})
    found = await pool.snapshots.list()
    assert [snapshot.name for snapshot in found] == sorted(snapshots)
    group = [GroupMember(pool, snapshot) for snapshot in found if group_of(snapshot.owner) == "g"]
    assert [member.snapshot.name for member in group] == bench.expected.get("group", [])
    assert is_complete(group) or not group
    for name, text in snapshots.items():
        if pool.features.clones:
            size = (await pool.snapshots.get(name)).size
            await pool.create(VolumeRequest("restored", size, source=VolumeOrigin(snapshot=name)))
            file = await bench.show(pool, "restored")
            assert content(file, len(text)) == text
            await bench.hide(pool, "restored")
            await pool.delete("restored")
        await pool.snapshots.delete(name)
    assert not await pool.snapshots.list()


async def half_done(bench: Bench, pool: Pool) -> None:
    orphans = await pool.damaged()
    for name in bench.expected.get("gone", ()):
        with pytest.raises(HostError if name in orphans else NotFoundError):
            await pool.get(name)
    async with asyncio.timeout(ERASED):
        while await pool.erasing():
            await asyncio.sleep(0.05)
    if pool.kind == "image":
        volumes = sorted(volume.name for volume in await pool.list())
        assert sorted(path.stem for path in (bench.folder / "pool").glob("*.img")) == sorted([*volumes, *orphans])
    for name in orphans:
        (bench.folder / "pool" / f"{name}.img").unlink()  # as the documentation says
    if orphans:
        assert not await (await bench.open()).damaged()


async def deleted(bench: Bench, pool: Pool) -> None:
    for name in bench.volumes:
        await pool.delete(name)
    assert not await pool.list()
    async with asyncio.timeout(ERASED):
        while await pool.erasing():
            await asyncio.sleep(0.05)
    used = await pool.overall()
    assert used.used == 0


@pytest.mark.parametrize("commit", COMMITS)
def test_no_pool_is_left_out(commit: str) -> None:
    kinds = ["btrfs", "image-sparse", "image-thick", "lvm-thick", "lvm-thin", "quota-ext4", "quota-xfs", "static"]
    assert sorted(read(commit, "pools")) == kinds
