"""kill -9 of a static pool between any two lines: a child lives the lives of a mount and of a device, then the pool is
opened again. No disk is two volumes', none is free before it is clean, nothing that was answered is forgotten."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.errors import BusyError
from tonnage.host import loop, mount
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

pytestmark = pytest.mark.real
MI = 1024**2
SIZE = 16 * MI
POINTS = int(os.environ.get("TONNAGE_KILL_POINTS", "24"))  # lines tried; 100000 for every single one
SECRET = b"secret42"
MOUNTED, DEVICE = VolumeRequest("m", MI), VolumeRequest("d", MI, fstype="ext4", parameters={"cleaner": "zero"})


def _pool(folder: Path) -> Pool:
    return make(parse(f"static:{folder / 'disks'},name=p"))


@pytest.fixture
def disks(real_folder: Path) -> Iterator[Path]:
    """A discovery directory with a mount and a device."""
    folder = real_folder / "disks"
    (folder / "mounted").mkdir(parents=True)
    folder.chmod(0o755)
    mount.mount("disk", folder / "mounted", "tmpfs", [f"size={SIZE}"])
    image = real_folder / "device.img"
    image.touch()
    os.truncate(image, SIZE)
    fd = os.open(image, os.O_RDWR)
    device = loop.attach(fd, str(image), autoclear=False)
    os.close(fd)
    (folder / "device").symlink_to(loop.device(device.index))
    yield real_folder
    for entry in reversed(list(mount.mounts())):
        if entry.target.startswith(f"{real_folder}/"):
            mount.umount(entry.target)
    loop.detach(device.index)


async def _life(pool: Pool, folder: Path, say: Callable[[str], None]) -> None:
    await pool.open()
    for request in (MOUNTED, DEVICE):
        name, staging, target = request.name, folder / f"staging-{request.name}", folder / f"target-{request.name}"
        await pool.create(request)
        say(f"created {name}")
        await _stage(pool, name, staging)
        await pool.publish(name, staging, target)
        _write(target / "file")
        say(f"written {name}")
        await pool.unpublish(name, target)
        await pool.unstage(name, staging)
        say(f"unstaged {name}")
        await pool.delete(name)
        say(f"deleted {name}")
    await _clean(pool)
    await pool.close()


def _write(path: Path) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.write(fd, SECRET)
    os.fsync(fd)
    os.close(fd)


async def _clean(pool: Pool) -> None:
    async with asyncio.timeout(60):
        while await pool.erasing():
            await asyncio.sleep(0.005)


def _run(folder: Path, at: int, killers: Callable[..., Any]) -> tuple[list[str], int]:
    """Live in a child that is killed at line `at`; what it was told, and how many lines it lived if to the end."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        fd = -1
        try:
            fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            killer = killers(at, ("pools", "host"))
            killer.start()

            def say(word: str) -> None:
                os.write(fd, f"{word}\n".encode())

            asyncio.run(_life(_pool(folder), folder, say))
            sys.settrace(None)
            os.write(fd, f"lines {killer.count}\n".encode())
            code = 0
        except BaseException:
            sys.settrace(None)
            os.write(fd, traceback.format_exc().encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    said = log.read_text().split("\n")[:-1] if log.exists() else []
    if os.WIFSIGNALED(status):
        return said, 0
    assert status == 0, "\n".join(said)
    return said[:-1], int(said[-1].split()[1])


async def _check(folder: Path, said: list[str]) -> None:
    pool = _pool(folder)
    await pool.open()
    volumes = {volume.name: volume for volume in await pool.list()}
    assert {v.place for v in volumes.values()} <= {"mounted", "device"}
    for request in (MOUNTED, DEVICE):
        name, staging = request.name, folder / f"staging-{request.name}"
        if f"created {name}" in said and f"unstaged {name}" not in said:
            assert name in volumes, "an answered volume is gone"
        if f"deleted {name}" in said:
            assert name not in volumes, "a deleted volume is back"
        if name in volumes:
            assert await pool.create(request) == volumes[name]
            await _stage(pool, name, staging)
            if f"written {name}" in said:
                assert (staging / "file").read_bytes() == SECRET, "the content is gone"
        await pool.unpublish(name, folder / f"target-{name}")
        await pool.unstage(name, staging)
        await pool.delete(name)
    await _clean(pool)
    assert await pool.problems() == []
    room, devices = await pool.capacity(), await pool.capacity(block=True)
    assert (room.free, room.used, devices.free, devices.used) == (SIZE, 0, SIZE, 0)
    await pool.close()
    assert os.listdir(folder / "disks" / "mounted") == []
    assert SECRET not in (folder / "device.img").read_bytes(), "the next owner could read it"
    assert os.listdir(folder / "disks" / ".tonnage") == [".tonnage-pool"]


async def _stage(pool: Pool, name: str, staging: Path) -> None:
    async with asyncio.timeout(60):
        while True:
            with suppress(
                BusyError
            ):  # an orphaned mkfs may be at work, or another mount namespace have a copy of the mount
                await pool.stage(name, staging)
                return
            await asyncio.sleep(0.02)


def test_killed_at_any_line(disks: Path, line_killer: Callable[..., Any], tell: Callable[[str], None]) -> None:
    said, lines = _run(disks, 0, line_killer)
    asyncio.run(_check(disks, said))
    chosen = random.Random(lines).sample(range(1, lines), min(POINTS, lines - 1))
    for at in sorted(chosen):
        said, _ = _run(disks, at, line_killer)
        try:
            asyncio.run(_check(disks, said))
        except BaseException as failure:
            failure.add_note(f"killed at line {at} of {lines}, after {said}")
            raise
    tell(f"static pool killed at {len(chosen)} of {lines} lines")
