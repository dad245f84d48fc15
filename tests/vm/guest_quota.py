"""The quota pool on file systems with project quotas. Run by test_uml.py inside user-mode Linux, on a disk of 2Gi."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tonnage.base.errors import HostError, InvalidError, OutOfRangeError, UnavailableError, UnsupportedError
from tonnage.host import mount, quota
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.directory.backend import DirectoryBackend

MI = 1024**2
DISK = "/dev/ubda"
MKFS = {"xfs": ["mkfs.xfs", "-q", "-f"], "ext4": ["mkfs.ext4", "-q", "-F", "-O", "quota,project"]}
UNENFORCED = {"allowUnenforced": "true"}


def wanted(name: str, size: int = 20 * MI) -> VolumeRequest:
    return VolumeRequest(name, size, parameters=UNENFORCED)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """Makes a file system and mounts it; what is left mounted is taken away."""

    def mounted(fstype: str, options: str = "prjquota") -> Path:
        folder = tmp_path / "disk"
        folder.mkdir()
        subprocess.run([*MKFS[fstype], DISK], check=True)
        mount.mount(DISK, folder, fstype, options.split(","))
        return folder

    yield mounted
    for entry in reversed(list(mount.mounts())):
        if entry.target.startswith(f"{tmp_path}/"):
            mount.umount(entry.target, lazy=True)


@pytest.fixture(params=["xfs", "ext4"])
async def pool(request: pytest.FixtureRequest, disk: Callable[[str], Path]) -> AsyncIterator[Pool]:
    made = pool_in(disk(request.param))
    await made.open()
    yield made
    await made.close()


def pool_in(folder: Path) -> Pool:
    return make(parse(f"quota:{folder / 'pool'},name=q"), disks=Disks())


def project_of(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return quota.project(fd)
    finally:
        os.close(fd)


def limit_of(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return quota.get(fd, quota.project(fd)).limit
    finally:
        os.close(fd)


def fill(path: Path, most: int) -> tuple[int, int]:
    """Bytes written and the error that ended it."""
    written = 0
    try:
        with path.open("wb", buffering=0) as file:
            while written < most:
                written += file.write(bytes(MI))
                os.fdatasync(file.fileno())
    except OSError as failure:
        return written, failure.errno or 0
    return written, 0


def without_resource_capability(work: Callable[[], bool]) -> bool:
    """Do something as an ordinary pod's root would, which lacks CAP_SYS_RESOURCE; whether it was as expected."""
    if (pid := os.fork()) == 0:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        data = (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None)
        libc.capget(header, data)
        data[0] &= ~(1 << 24)
        libc.capset(header, data)
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def directory(pool: Pool) -> Path:
    assert isinstance(pool.backend, DirectoryBackend)
    return pool.backend.folder.path


def folder(pool: Pool, name: str) -> Path:
    return directory(pool) / f"{name}.vol"


async def test_a_pod_is_held_to_its_size_and_df_shows_it(pool: Pool, tmp_path: Path) -> None:
    staging = tmp_path / "s"
    await pool.create(wanted("a"))
    await pool.stage("a", staging)

    def writes() -> bool:
        written, error = fill(staging / "file", 64 * MI)
        return 20 * MI <= written <= 22 * MI and error in (errno.ENOSPC, errno.EDQUOT)

    assert without_resource_capability(writes)
    found = os.statvfs(staging)
    assert 20 * MI <= found.f_blocks * found.f_frsize <= 22 * MI
    stats = await pool.stats("a", staging)
    assert (stats.total, stats.available) == (20 * MI, 0)
    await pool.unstage("a", staging)
    await pool.delete("a")
    assert not folder(pool, "a").exists()


async def test_ext4_does_not_bind_everybody_and_has_to_be_allowed(disk: Callable[[str], Path], tmp_path: Path) -> None:
    pool = pool_in(disk("ext4"))
    await pool.open()
    with pytest.raises(UnsupportedError, match="allowUnenforced"):
        await pool.create(VolumeRequest("a", 20 * MI))
    with pytest.raises(InvalidError, match="allowUnenforced='maybe'"):
        await pool.create(VolumeRequest("a", 20 * MI, parameters={"allowUnenforced": "maybe"}))
    await pool.create(wanted("a"))
    assert fill(folder(pool, "a") / "file", 64 * MI) == (64 * MI, 0)  # what the message says
    await pool.close()


async def test_a_number_is_not_used_again_while_anything_is_charged_to_it(pool: Pool) -> None:
    await pool.create(wanted("a"))
    first = project_of(folder(pool, "a"))
    opened = os.open(folder(pool, "a") / "file", os.O_RDWR | os.O_CREAT)
    os.write(opened, bytes(MI))
    os.fsync(opened)
    await pool.delete("a")
    await pool.close()  # a new process would begin with the same number
    await pool.open()
    await pool.create(wanted("b"))
    assert project_of(folder(pool, "b")) != first
    assert quota.get(opened, project_of(folder(pool, "b"))).used < MI // 2
    os.close(opened)


async def test_a_lost_limit_is_set_again_and_a_lost_project_stops_only_its_volume(pool: Pool) -> None:
    for name in ("a", "b", "c"):
        await pool.create(wanted(name))
    fd = os.open(folder(pool, "a"), os.O_RDONLY)
    quota.set_limit(fd, quota.project(fd), 0)
    os.close(fd)
    fd = os.open(folder(pool, "b"), os.O_RDONLY)
    quota.set_project(fd, 0)
    os.close(fd)
    await pool.close()
    await pool.open()
    assert 20 * MI <= limit_of(folder(pool, "a")) <= 22 * MI
    assert [volume.name for volume in await pool.list()] == ["a", "c"]
    for call in (pool.get("b"), pool.delete("b"), pool.create(wanted("b"))):
        with pytest.raises(HostError, match="damaged"):
            await call
    assert folder(pool, "b").exists()


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_folder_moved_into_anothers_project_does_the_other_no_harm(pool: Pool, *, restarts: bool) -> None:
    await pool.create(wanted("a", 30 * MI))
    await pool.create(wanted("b", 20 * MI))
    fd = os.open(folder(pool, "b"), os.O_RDONLY)
    quota.set_project(fd, project_of(folder(pool, "a")))
    os.close(fd)
    if restarts:
        await pool.close()
        await pool.open()
        assert [volume.name for volume in await pool.list()] == ["a"]  # whichever of them was moved
    else:
        assert (await pool.condition("b")).abnormal
        await pool.delete("b")
    assert 30 * MI <= limit_of(folder(pool, "a")) <= 32 * MI


async def test_file_systems_without_project_quotas(disk: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="is on tmpfs"):
        await pool_in(tmp_path).open()
    with pytest.raises(UnavailableError, match="mount it with -o prjquota"):
        await pool_in(disk("xfs", "noquota")).open()


async def test_a_volume_larger_than_the_disk_is_rejected(pool: Pool) -> None:
    with pytest.raises(OutOfRangeError, match="can never fit"):
        await pool.create(wanted("a", 3 * 1024 * MI))


_WRITER = """
import asyncio, sys
from pathlib import Path
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.config import make, parse
async def main():
    pool = make(parse(f"quota:{sys.argv[1]},name=q"))
    await pool.open()
    print("ready", flush=True)
    for number in range(100000):
        name = f"v{number % 5}"
        await pool.create(VolumeRequest(name, 20 * 2**20, parameters={"allowUnenforced": "true"}))
        file = Path(sys.argv[1]) / f"{name}.vol" / "file"
        if not file.exists():
            file.write_text(name)
        print("made", name, flush=True)
        if number % 2:
            print("deleting", name, flush=True)
            await pool.delete(name)
asyncio.run(main())
"""


@pytest.mark.parametrize("seed", range(3))
async def test_killed_at_any_moment_nothing_is_lost_or_left(pool: Pool, seed: int) -> None:
    where = directory(pool)
    await pool.close()
    lines = killed_writer(where, random.Random(seed).uniform(0.05, 0.8))
    await pool.open()
    made: set[str] = set()
    for line in lines:
        word, name = line.split()
        made = made - {name} if word == "deleting" else made | {name}
    names = {volume.name for volume in await pool.list()}
    assert made <= names
    assert {path.name for path in where.glob("*.vol")} == {f"{name}.vol" for name in names}
    for name in names:
        assert 20 * MI <= limit_of(folder(pool, name)) <= 22 * MI
        if name in made:
            assert (folder(pool, name) / "file").read_text() == name
        await pool.delete(name)
    assert not list(where.glob("*.vol"))


def killed_writer(where: Path, delay: float) -> list[str]:
    """What a driver said before it was killed."""
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(where)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with suppress(subprocess.TimeoutExpired):
        process.wait(delay)
    process.send_signal(signal.SIGKILL)
    said = process.communicate()[0]
    return said[: said.rfind("\n") + 1].splitlines()  # the last line may have been cut off
