"""Random histories of pools that forget: records are lost, older, damaged or half there at any moment.

No byte of a volume that was not deleted is ever lost, and no volume shows the content of another. When the newest
records are put back, all volumes are there.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from tonnage.base.errors import TonnageError
from tonnage.host import loop, mount
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

pytestmark = pytest.mark.real
MI = 1024**2
HISTORIES = int(os.environ.get("TONNAGE_HISTORIES", "4"))  # of each kind; 2500 by hand
STEPS = 24
TEXTS = {
    "image": "image:{home},size=1Gi,sparse=yes,overcommit=yes,name=p",
    "btrfs": "btrfs:{home},size=300Mi,sparse=yes,overcommit=yes,name=p",
    "static": "static:{home},name=p",
}
Records = dict[Path, bytes]


@dataclass
class World:
    """A pool, what its users have written, and earlier moments of its records.

    alive: volume -> what its pod has written. newest: volume -> its record. steps: what was done, for the report.
    """

    kind: str
    folder: Path
    chance: random.Random
    pool: Pool | None = None
    alive: dict[str, bytes] = field(default_factory=dict)
    newest: dict[str, tuple[Path, bytes]] = field(default_factory=dict)
    earlier: list[Records] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    devices: list[loop.LoopDevice] = field(default_factory=list)
    count: int = 0

    @property
    def home(self) -> Path:
        return self.folder / "pool"

    @property
    def staging(self) -> Path:
        return self.folder / "staging"

    async def restart(self) -> Pool:
        if self.pool is not None:
            await self.pool.close()
        self.pool = make(parse(TEXTS[self.kind].format(home=self.home)), disks=Disks())
        await self.pool.open()
        await _settled(self.pool)
        return self.pool

    # Records

    def records(self) -> Records:
        """All records; of btrfs in an image, they can be reached while the pool is open."""
        places = {"image": self.home, "btrfs": self.home / "mounted", "static": self.home / ".tonnage"}
        return {path: path.read_bytes() for path in sorted(places[self.kind].glob("*.json"))}

    def put(self, records: Records) -> None:
        for path in self.records():
            path.unlink()
        for path, text in records.items():
            path.write_bytes(text)

    def remember(self, name: str) -> None:
        for path, text in self.records().items():
            if f'"name":"{name}"'.encode() in text:
                self.newest[name] = path, text

    # What is done

    async def make(self, pool: Pool) -> None:
        self.count += 1
        name = f"v{self.count}"
        fstype = "ext4" if self.kind == "static" and self.chance.random() < 0.5 else ""
        try:
            await pool.create(VolumeRequest(name, 4 * MI, fstype=fstype))
            if self.chance.random() < 0.5:
                self.earlier.append(self.records())  # which say that no pod ever had it
            await self.fill(pool, name)
        except TonnageError:
            return

    async def fill(self, pool: Pool, name: str) -> None:
        """As the first pod of a volume does."""
        await pool.stage(name, self.staging)
        found = (self.staging / "file").read_bytes() if (self.staging / "file").exists() else None
        assert found is None, f"{name} is new and shows {found!r}"
        self.alive[name] = f"written by the pod of {name}".encode().ljust(64, b".")
        fd = os.open(self.staging / "file", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, self.alive[name])
        os.fsync(fd)
        os.close(fd)
        await pool.unstage(name, self.staging)
        self.remember(name)

    async def delete(self, pool: Pool) -> None:
        name = self.chance.choice([*sorted(self.alive), "nobody"])
        with suppress(TonnageError):
            await pool.delete(name)
            self.alive.pop(name, None)
            self.newest.pop(name, None)
        await _settled(pool)

    async def sweep(self, pool: Pool) -> None:
        """As the agent's sweep does for volumes that no object names: users need all of these."""
        for volume in await pool.list():
            with suppress(TonnageError):
                await pool.delete_unused(volume.name, copies=False)
        await _settled(pool)

    async def look(self, pool: Pool) -> None:
        """Each volume that can be staged shows its own content, if it has any."""
        for volume in await pool.list():
            try:
                await pool.stage(volume.name, self.staging)
            except TonnageError:
                continue
            path = self.staging / "file"
            found = path.read_bytes() if path.exists() else b""
            await pool.unstage(volume.name, self.staging)
            own = f"written by the pod of {volume.name}".encode().ljust(64, b".")
            assert found in (own, *(() if volume.name in self.alive else (b"",))), f"{volume.name} shows {found!r}"

    async def keep(self, pool: Pool) -> None:
        self.earlier.append(self.records())

    async def lose(self, pool: Pool) -> None:
        self.put({})
        await self.restart()

    async def lose_some(self, pool: Pool) -> None:
        self.put({path: text for path, text in self.records().items() if self.chance.random() < 0.6})
        await self.restart()

    async def damage(self, pool: Pool) -> None:
        half = {path: text[: self.chance.randrange(len(text))] for path, text in self.records().items()}
        self.put({path: half[path] if self.chance.random() < 0.4 else text for path, text in self.records().items()})
        await self.restart()

    async def go_back(self, pool: Pool) -> None:
        if self.earlier:
            self.put(self.chance.choice(self.earlier))
            await self.restart()

    async def heal(self, pool: Pool) -> None:
        """A person puts the newest record of each volume back."""
        for path, text in self.newest.values():
            path.write_bytes(text)
        pool = await self.restart()
        listed = {volume.name for volume in await pool.list()}
        assert set(self.alive) <= listed, f"{set(self.alive) - listed} are not there"
        for name in self.alive:
            await pool.stage(name, self.staging)
            assert (self.staging / "file").read_bytes() == self.alive[name]
            await pool.unstage(name, self.staging)

    async def live(self) -> None:
        await self.restart()
        calls: list[Callable[[Pool], Any]] = [
            self.make, self.make, self.make, self.delete, self.delete, self.sweep, self.look, self.keep, self.keep,
            self.lose, self.lose_some, self.damage, self.go_back, self.go_back, self.heal,
        ]  # fmt: skip
        for _ in range(STEPS):
            call = self.chance.choice(calls)
            self.steps.append(call.__name__)
            assert self.pool is not None
            await call(self.pool)
            self.check_bytes()
        assert self.pool is not None
        await self.heal(self.pool)
        await self.pool.close()

    def check_bytes(self) -> None:
        """Everything that a volume's pod has written is still somewhere on the disks."""
        missing = {name for name, text in self.alive.items() if not any(_has(path, text) for path in self.contents())}
        assert not missing, f"the bytes of {missing} are gone"

    def contents(self) -> Iterator[Path]:
        if self.kind == "image":
            yield from self.home.glob("*.img")
        elif self.kind == "btrfs":
            yield from (self.home / "mounted").glob("*.vol/file")
        else:
            yield from self.home.glob("m*/file")
            yield from self.folder.glob("*.img")


def _has(path: Path, text: bytes) -> bool:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0


async def _settled(pool: Pool) -> None:
    """Wait until all deleted volumes are erased that can be."""
    async with asyncio.timeout(60):
        while any(not job.problem for job in await pool.erasing()):
            await asyncio.sleep(0.005)


def _prepare_disks(world: World) -> None:
    world.home.mkdir(mode=0o755)
    for number in range(3):
        (world.home / f"m{number}").mkdir()
        mount.mount("disk", world.home / f"m{number}", "tmpfs", ["size=8m"])
        image = world.folder / f"d{number}.img"
        image.touch()
        os.truncate(image, 16 * MI)
        fd = os.open(image, os.O_RDWR)
        world.devices.append(loop.attach(fd, str(image), autoclear=False))
        os.close(fd)
        (world.home / f"d{number}").symlink_to(loop.device(world.devices[-1].index))


@contextmanager
def _world(kind: str, folder: Path, seed: int) -> Iterator[World]:
    need("mkfs.ext4", *(["mkfs.btrfs"] if kind == "btrfs" else []))
    world = World(kind, folder, random.Random(f"{kind}{seed}"))
    if kind == "static":
        _prepare_disks(world)
    try:
        yield world
    except BaseException as failure:
        failure.add_note(f"history {seed} of {kind}: {' '.join(world.steps)}")
        raise
    finally:
        for entry in reversed(list(mount.mounts())):
            if entry.target.startswith(f"{folder}/"):
                mount.umount(entry.target, lazy=True)
        for device in world.devices:
            loop.detach(device.index)


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize("kind", sorted(TEXTS))
def test_what_was_written_stays(kind: str, seed: int, real_folder: Path) -> None:
    with _world(kind, real_folder, seed) as world:
        asyncio.run(world.live())


@pytest.mark.parametrize("kind", sorted(TEXTS))
def test_a_record_from_before_the_first_pod_does_not_pass_for_one_of_an_unused_volume(
    kind: str, real_folder: Path
) -> None:
    async def look(world: World) -> None:
        pool = await world.restart()
        await pool.create(VolumeRequest("unused", 4 * MI))
        await pool.create(VolumeRequest("v1", 4 * MI))
        before = world.records()
        assert not await pool.delete_unused("v1", copies=False, ask=True)
        await world.fill(pool, "v1")
        world.put(before)
        pool = await world.restart()
        assert "its content was used" in await pool.delete_unused("v1", copies=False)
        assert not await pool.delete_unused("unused", copies=False)
        world.check_bytes()
        del world.alive["v1"]
        await pool.delete("v1")  # by its user
        await _settled(pool)
        for _ in range(3):
            await world.make(pool)
        await pool.close()

    with _world(kind, real_folder, 0) as world:
        asyncio.run(look(world))
