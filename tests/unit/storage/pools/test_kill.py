"""kill -9 between any two lines: a child lives a volume's life and is killed at the n-th line of our code; then the
pool is opened again and must agree with what the child was told."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from tonnage.base.errors import BusyError
from tonnage.host import loop, mount
from tonnage.storage.pools.base.contract import VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

MI = 1024**2
SECRETS = 12 * MI  # three steps of erasing
POINTS = int(os.environ.get("TONNAGE_KILL_POINTS", "12"))  # lines tried in each kind; 100000 for every single one

PATIENCE = 6000
"""Tries, 0.01 s apart: only to end what hangs."""

pytestmark = pytest.mark.real
KINDS = [
    pytest.param("image", "sparse=yes", id="image sparse"),
    pytest.param("image", "sparse=no", id="image thick"),
    pytest.param("btrfs", "sparse=yes", id="btrfs"),
]


def _pool(kind: str, option: str, folder: Path) -> Pool:
    return make(parse(f"{kind}:{folder / 'pool'},name=p,size=300Mi,overcommit=yes,{option}"), disks=Disks())


async def _life(pool: Pool, folder: Path, say: Callable[[str], None]) -> None:
    staging, target = folder / "staging", folder / "target"
    await pool.open()
    say("opened")
    await pool.create(VolumeRequest("v", 16 * MI))
    say("created")
    await pool.stage("v", staging)
    say("staged")
    await pool.publish("v", staging, target)
    fd = os.open(target / "file", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"content")
    os.fsync(fd)
    os.close(fd)
    say("written")
    await pool.unpublish("v", target)
    await pool.unstage("v", staging)
    say("unstaged")
    await pool.delete("v")
    say("deleted")
    await pool.close()


async def _copies(pool: Pool, folder: Path, say: Callable[[str], None]) -> None:
    """The life of a volume with a snapshot and a clone, and growth; the snapshot is made while it is mounted."""
    staging = folder / "staging"
    await pool.open()
    await pool.create(VolumeRequest("v", 16 * MI))
    await pool.stage("v", staging)
    _write(staging / "file", b"first")
    say("written")
    await pool.snapshots.create("s", "v")
    say("kept")
    _write(staging / "file", b"second")
    say("changed")
    await pool.growth.expand("v", 24 * MI)
    say("expanded")
    await pool.unstage("v", staging)
    await pool.create(VolumeRequest("c", 20 * MI, source=VolumeOrigin(snapshot="s")))
    say("cloned")
    await pool.stage("v", staging)
    await pool.growth.grow("v", staging)
    say("grown")
    await pool.unstage("v", staging)
    await pool.snapshots.delete("s")
    say("forgotten")
    await pool.close()


async def _erased_life(pool: Pool, folder: Path, say: Callable[[str], None]) -> None:
    """The end of a volume that is to be erased, and of its snapshot; the disk keeps the bytes under other names."""
    await pool.open()
    await pool.create(VolumeRequest("v", SECRETS, block=True, parameters={"erase": "zero"}))
    _write(folder / "pool" / "v.img", b"secret42" * (SECRETS // 8))
    os.link(folder / "pool" / "v.img", folder / "kept")
    say("written")
    await pool.snapshots.create("s", "v")
    os.link(folder / "pool" / ".snapshots" / "s.img", folder / "kept-snapshot")
    say("kept")
    await pool.snapshots.delete("s")
    say("forgotten")
    await pool.delete("v")
    say("deleted")
    await _erased(pool)
    await pool.close()


async def _erased(pool: Pool) -> None:
    async with asyncio.timeout(120):
        while await pool.erasing():
            await asyncio.sleep(0.002)


async def _check_erased(kind: str, option: str, folder: Path, said: list[str]) -> None:
    pool = _pool(kind, option, folder)
    await pool.open()
    volumes = [volume.name for volume in await pool.list()]
    assert volumes in ([], ["v"])
    if "deleted" in said:
        assert volumes == [], "a deleted volume is back"
    elif "forgotten" not in said and "written" in said:
        assert volumes == ["v"]
        assert (folder / "pool" / "v.img").read_bytes() == b"secret42" * (SECRETS // 8), "it was erased while it lived"
    snapshots = [snapshot.name for snapshot in await pool.snapshots.list()]
    if "forgotten" in said:
        assert snapshots == [], "a deleted snapshot is back"
    elif "kept" in said:
        assert "s" in snapshots or await pool.erasing() or not any((folder / "kept-snapshot").read_bytes())
    before = sum(erasure.reserved for erasure in await pool.erasing())
    used = (await pool.capacity()).used - SECRETS * (len(volumes) + len(snapshots))
    assert before >= used >= sum(erasure.reserved for erasure in await pool.erasing()), "it is done meanwhile, or not"
    await pool.snapshots.delete("s")
    await pool.delete("v")
    await _erased(pool)
    for name in ("kept", "kept-snapshot"):
        if (folder / name).exists():
            assert not any((folder / name).read_bytes()), "what was deleted is still on the disk"
    assert (await pool.capacity()).used == 0
    await pool.close()


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)


Life = Callable[[Pool, Path, Callable[[str], None]], Coroutine[Any, Any, None]]
Check = Callable[[str, str, Path, list[str]], Coroutine[Any, Any, None]]


def _run(
    kind: str, option: str, folder: Path, at: int, killers: Callable[..., Any], life: Life
) -> tuple[list[str], int]:
    """Live in a child killed at line `at`; what it was told, and how many lines it lived if it ended by itself."""
    folder.mkdir()
    log = folder / "log"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            killer = killers(at, ("pools", "host"))
            killer.start()
            asyncio.run(
                life(_pool(kind, option, folder), folder, lambda word: void(os.write(fd, f"{word}\n".encode())))
            )
            sys.settrace(None)
            os.write(fd, f"lines {killer.count}\n".encode())
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    said = log.read_text().split("\n")[:-1] if log.exists() else []
    if os.WIFSIGNALED(status):
        return said, 0
    assert status == 0, said  # `at` lies behind its last line: how many there are varies a little
    return said[:-1], int(said[-1].split()[1])


def void(_: object) -> None:
    """For lambdas that answer nothing."""


async def _check(kind: str, option: str, folder: Path, said: list[str]) -> None:
    pool, staging, target = _pool(kind, option, folder), folder / "staging", folder / "target"
    await pool.open()
    names = [volume.name for volume in await pool.list()]
    assert names in ([], ["v"])
    if "created" in said and "unstaged" not in said:
        assert names == ["v"], "an answered volume is gone"
    if "deleted" in said:
        assert names == [], "a deleted volume is back"
    if names:
        await _stage(pool, staging)
        if "written" in said:
            assert (staging / "file").read_bytes() == b"content", "the content is gone: formatted twice"
    await pool.unpublish("v", target)
    await pool.unstage("v", staging)
    await pool.delete("v")
    assert (await pool.capacity()).used == 0
    await pool.close()
    await pool.open()  # a second start finds nothing either
    assert await pool.list() == []
    await pool.close()


async def _check_copies(kind: str, option: str, folder: Path, said: list[str]) -> None:
    pool, staging = _pool(kind, option, folder), folder / "staging"
    await pool.open()
    volumes = {volume.name: volume for volume in await pool.list()}
    snapshots = [snapshot.name for snapshot in await pool.snapshots.list()]
    assert ("v" in volumes) or "written" not in said
    assert ("c" in volumes) or "cloned" not in said
    assert (snapshots == ["s"]) or not ("kept" in said and "grown" not in said)
    if "expanded" in said:
        assert volumes["v"].size == 24 * MI
    used = sum(volume.size for volume in volumes.values()) + 16 * MI * len(snapshots)
    used += 8 * MI * (bool(snapshots) and "v" in volumes and (await pool.snapshots.get("s")).size == 24 * MI)
    assert (await pool.capacity()).used == used
    if "written" in said:
        await _stage(pool, staging)
        now = (staging / "file").read_bytes()  # hangs where a frozen file system was forgotten
        assert now == b"second" if "changed" in said else now in (b"first", b"", b"second")
        _write(staging / "other", b"written")
    if volumes:  # it may be mounted although nothing was said of it
        await pool.unstage("v", staging)
    if snapshots:
        await pool.create(VolumeRequest("d", 30 * MI, source=VolumeOrigin(snapshot="s")))
        volumes["d"] = await pool.get("d")
    for name in sorted(volumes.keys() & {"c", "d"}):
        await _stage(pool, staging, name)
        assert (staging / "file").read_bytes() == b"first"
        await pool.unstage(name, staging)
    await pool.snapshots.delete("s")
    for name in volumes:
        await pool.delete(name)
    assert (await pool.capacity()).used == 0
    await pool.close()


async def _stage(pool: Pool, staging: Path, name: str = "v") -> None:
    for _ in range(PATIENCE):  # an orphaned mkfs may still be at work
        with suppress(BusyError):
            await pool.stage(name, staging)
            return
        time.sleep(0.01)  # noqa: ASYNC251
    raise AssertionError("busy for ever")


def _left(folder: Path) -> list[str]:
    """What is left behind; the kernel may need a moment to free a device, longer on a busy machine."""
    for _ in range(PATIENCE):
        if not (left := _found(folder)):
            break
        time.sleep(0.01)
    return left


def _found(folder: Path) -> list[str]:
    left = [entry.target for entry in mount.mounts() if entry.target.startswith(f"{folder}/")]
    left += [path for _, path in loop.attached() if path.startswith(f"{folder}/")]
    expected = {".tonnage-pool", "pool.img", "mounted", ".snapshots", ".erasing"}
    for below in ("", ".snapshots", ".erasing"):
        if (folder / "pool" / below).exists():
            left += [entry for entry in os.listdir(folder / "pool" / below) if entry not in expected]
    return left


LIVES = [pytest.param(_life, _check, id="life"), pytest.param(_copies, _check_copies, id="copies")]


@pytest.mark.parametrize(("life", "check"), LIVES)
@pytest.mark.parametrize(("kind", "option"), KINDS)
def test_killed_at_any_line(
    kind: str,
    option: str,
    life: Life,
    check: Check,
    real_folder: Path,
    line_killer: Callable[..., Any],
) -> None:
    need("mkfs.btrfs" if kind == "btrfs" else "mkfs.ext4")
    _kill(kind, option, life, check, real_folder, line_killer)


@pytest.mark.parametrize(("kind", "option"), KINDS[:2])
def test_erasing_killed_at_any_line(kind: str, option: str, real_folder: Path, line_killer: Callable[..., Any]) -> None:
    _kill(kind, option, _erased_life, _check_erased, real_folder, line_killer)


def _kill(kind: str, option: str, life: Life, check: Check, real_folder: Path, line_killer: Callable[..., Any]) -> None:
    said, lines = _run(kind, option, real_folder / "whole", 0, line_killer, life)
    asyncio.run(check(kind, option, real_folder / "whole", said))
    assert _left(real_folder / "whole") == []

    chosen = random.Random(lines).sample(range(1, lines), min(POINTS, lines - 1))
    for at in sorted(chosen):
        folder = real_folder / f"at{at}"
        said, _ = _run(kind, option, folder, at, line_killer, life)
        try:
            asyncio.run(check(kind, option, folder, said))
            assert _left(folder) == []
        except BaseException as failure:
            failure.add_note(f"killed at line {at} of {lines}, after {said}")
            raise
