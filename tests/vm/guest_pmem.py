"""The pmem pool on emulated NVDIMMs. Run by test_qemu.py inside QEMU: region0 of 2Gi has labels, region1 of 1Gi none."""

from __future__ import annotations

import asyncio
import errno
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from benchmarks.driver.memcached_client import MemcachedClient

from tonnage.base.errors import (
    ExhaustedError,
    HostError,
    InvalidError,
    NotFoundError,
    OutOfRangeError,
    PreconditionError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.host import mount, ndctl
from tonnage.host.ndctl import Ndctl
from tonnage.host.run import run
from tonnage.storage.pools.base.contract import PoolLimits, VolumeRequest
from tonnage.storage.pools.base.record import UNDELETE
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

MI = 1024**2
DAY = {UNDELETE: "86400"}
SECRET = b"a former owner's secret, 32 bytes"[:32]
MAP_SHARED_VALIDATE, MAP_SYNC = 0x03, 0x80000  # mmap(2)
KILLS = int(os.environ.get("TONNAGE_PMEM_KILLS", "6"))


def pool_of(text: str = "pmem:region0") -> Pool:
    return make(parse(f"{text},name=p"))


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    made = pool_of()
    await made.open()
    yield made
    await emptied(made, tmp_path)


async def emptied(pool: Pool, folder: Path) -> None:
    """Remove everything; the region has then all that it had."""
    for entry in reversed(list(mount.mounts())):
        if entry.target.startswith(f"{folder}/"):
            mount.umount(entry.target, lazy=True)
    await pool.open()
    for volume in (*await pool.list(), *await pool.trash.list()):
        await pool.delete(volume.name)
    await erased(pool)
    await pool.close()


async def erased(pool: Pool) -> None:
    async with asyncio.timeout(120):
        while await pool.erasing():
            await asyncio.sleep(0.05)


def labels(region: str = "region0") -> list[str]:
    return sorted(namespace.label for namespace in ndctl.namespaces(region))


def mounted(path: Path) -> str:
    """Options of the file system at path."""
    [line] = [line for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == str(path)]
    return line.split()[3]


def synced_mapping(path: Path) -> int:
    """Map a new file so that what is written needs no fsync; the error, 0 for none."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(fd, 0, 4 * MI)
    try:
        with mmap.mmap(fd, 4 * MI, flags=MAP_SHARED_VALIDATE | MAP_SYNC) as memory:
            memory[:5] = b"hello"
    except OSError as failure:
        return failure.errno or -1
    finally:
        os.close(fd)
    return 0


async def published(pool: Pool, name: str, folder: Path) -> Path:
    """A raw block volume's node as a pod sees it."""
    await pool.stage(name, folder / f"s-{name}")
    await pool.publish(name, folder / f"s-{name}", folder / f"t-{name}")
    return folder / f"t-{name}"


async def hidden(pool: Pool, name: str, folder: Path) -> None:
    await pool.unpublish(name, folder / f"t-{name}")
    await pool.unstage(name, folder / f"s-{name}")


def fill(node: Path, size: int, pattern: bytes = SECRET) -> None:
    """Write a device full, by mapping where it can only be mapped."""
    fd = os.open(node, os.O_RDWR)
    try:
        if node.is_block_device():
            for _ in range(size // MI):
                os.write(fd, pattern * (MI // len(pattern)))
            os.fsync(fd)
        else:
            with mmap.mmap(fd, size) as memory:
                memory[:] = pattern * (size // len(pattern))
    finally:
        os.close(fd)


def content(node: Path, size: int) -> bytes:
    fd = os.open(node, os.O_RDONLY if node.is_block_device() else os.O_RDWR)
    try:
        if node.is_block_device():
            return b"".join(os.read(fd, MI) for _ in range(-(-size // MI)))[:size]
        with mmap.mmap(fd, size) as memory:
            return memory[:]
    finally:
        os.close(fd)


@pytest.mark.parametrize(("fstype", "size"), [("ext4", 20 * MI), ("xfs", 310 * MI)])
async def test_files_are_mapped_without_a_copy(pool: Pool, tmp_path: Path, fstype: str, size: int) -> None:
    await pool.create(VolumeRequest("a", size, fstype=fstype))
    await pool.stage("a", tmp_path / "s")
    assert "dax=always" in mounted(tmp_path / "s")
    assert synced_mapping(tmp_path / "s" / "file") == 0
    assert (tmp_path / "s" / "file").read_bytes()[:5] == b"hello"
    assert (await pool.stats("a", tmp_path / "s")).total >= size
    assert not (await pool.condition("a", tmp_path / "s")).abnormal
    await pool.unstage("a", tmp_path / "s")


async def test_items_of_memcached_outlive_it(pool: Pool, tmp_path: Path) -> None:
    """The program of examples/memcached-pmem.yaml, with fewer items: its next start has them without loading."""
    await pool.create(VolumeRequest("cache", 100 * MI))
    await pool.stage("cache", tmp_path / "s")
    keys, value = [f"key-{number}" for number in range(200)], b"v" * 2048
    with memcached(tmp_path / "s" / "memory") as client:
        assert (client.hits(keys, value), client.set(keys, value)) == (0, 200)
    with memcached(tmp_path / "s" / "memory") as client:
        assert client.hits(keys, value) == 200
        assert "dax=always" in mounted(tmp_path / "s")
    await pool.unstage("cache", tmp_path / "s")


@contextmanager
def memcached(file: Path) -> Iterator[MemcachedClient]:
    """One whose items are in a file. It ends as in the example, by the signal that lets the next one use them."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    time.sleep(1.1)  # a start in the second of the stop begins empty
    words = ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", "11212", "-U", "0", "-m", "64", "-e", str(file)]
    server = subprocess.Popen(words)
    try:
        with until_it_answers(server) as client:
            yield client
    finally:
        server.send_signal(signal.SIGUSR1)
        server.wait(60)


def until_it_answers(server: subprocess.Popen[bytes]) -> MemcachedClient:
    while True:
        try:
            return MemcachedClient(11212)
        except OSError:
            assert server.poll() is None, "it ended"
            time.sleep(0.1)


async def test_sectors_are_whole_and_not_mapped(pool: Pool, tmp_path: Path) -> None:
    await pool.create(VolumeRequest("a", 20 * MI, parameters={"nsmode": "sector"}))
    await pool.stage("a", tmp_path / "s")
    assert "dax" not in mounted(tmp_path / "s")
    assert synced_mapping(tmp_path / "s" / "file") == errno.EOPNOTSUPP
    number = os.stat(tmp_path / "s").st_dev
    assert (
        Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/queue/logical_block_size").read_text().strip()
        == "4096"
    )
    await pool.unstage("a", tmp_path / "s")


@pytest.mark.parametrize("mode", ["fsdax", "sector", "devdax"])
async def test_raw_block(pool: Pool, tmp_path: Path, mode: str) -> None:
    parameters = {"nsmode": mode}
    before = VolumeRequest("before", 24 * MI, block=True, parameters=parameters)
    for request in (before, VolumeRequest("a", 24 * MI, block=True, parameters=parameters)):
        volume = await pool.create(request)
        assert volume.size >= 24 * MI
        assert await pool.create(request) == volume
        node = await published(pool, request.name, tmp_path)
        assert node.is_char_device() if mode == "devdax" else node.is_block_device()
        assert content(node, volume.size) == bytes(volume.size), "what another owner left is shown"
        fill(node, 20 * MI)
        with pytest.raises(PreconditionError, match="in use"):
            await pool.delete(request.name)
        await hidden(pool, request.name, tmp_path)
        if request is before:
            await pool.delete("before")

    await pool.close()
    await pool.open()
    node = await published(pool, "a", tmp_path)
    assert content(node, 4 * MI) == SECRET * (4 * MI // len(SECRET))
    assert (await pool.stats("a", node)).total == volume.size
    readonly = tmp_path / "readonly"
    if mode == "devdax":
        with pytest.raises(UnsupportedError, match="read-only"):
            await pool.publish("a", tmp_path / "s-a", readonly, readonly=True)
    else:
        for _ in range(2):
            await pool.publish("a", tmp_path / "s-a", readonly, readonly=True)
        with pytest.raises(OSError, match=r"not permitted|Read-only|denied"):
            fill(readonly, MI)
        await pool.unpublish("a", readonly)
    await hidden(pool, "a", tmp_path)


async def test_what_devdax_is_not_for(pool: Pool) -> None:
    with pytest.raises(UnsupportedError, match="no file system"):
        await pool.create(VolumeRequest("a", 20 * MI, parameters={"nsmode": "devdax"}))
    with pytest.raises(UnsupportedError, match="no file system"):
        await pool.capacity_for({"nsmode": "devdax"})
    with pytest.raises(InvalidError, match="nsmode"):
        await pool.create(VolumeRequest("a", 20 * MI, parameters={"nsmode": "raw"}))
    with pytest.raises(InvalidError, match="hold them back"):
        await pool.create(VolumeRequest("a", 20 * MI, parameters={"iops": "100"}))
    with pytest.raises(OutOfRangeError, match="limit"):
        await pool.create(VolumeRequest("a", 20 * MI, limit=20 * MI, block=True))
    assert await pool.list() == []


async def test_the_largest_volume_fits_and_nothing_else(pool: Pool, tmp_path: Path) -> None:
    for mode in ("fsdax", "sector"):
        room = await pool.capacity_for({"nsmode": mode}, fstype="xfs")
        volume = await pool.create(VolumeRequest("a", room.largest, fstype="xfs", parameters={"nsmode": mode}))
        assert volume.size == room.largest
        assert (await pool.capacity()).largest < 20 * MI
        with pytest.raises(ExhaustedError):
            await pool.create(VolumeRequest("b", 20 * MI))
        await pool.stage("a", tmp_path / "s")
        assert (await pool.stats("a", tmp_path / "s")).available >= room.largest
        await pool.unstage("a", tmp_path / "s")
        await pool.delete("a")
    assert await pool.volume_limit() > 100


async def test_foreign_namespaces_are_left_alone(pool: Pool, tmp_path: Path) -> None:
    free = (await pool.capacity()).free
    tool = Ndctl()
    uuid = uuid4()
    foreign = tool.create("region0", mode="fsdax", size=64 * MI, uuid=uuid, label="a")
    try:
        assert (await pool.capacity()).free < free
        await pool.create(VolumeRequest("a", 20 * MI))
        await pool.delete("a")
        await pool.close()
        await pool.open()
        assert await pool.list() == []
        assert [found.uuid for found in ndctl.namespaces("region0") if found.label == "a"] == [uuid]
    finally:
        tool.destroy(foreign.name)


async def test_what_is_wrong_is_told_and_the_rest_served(pool: Pool, tmp_path: Path) -> None:
    for name in ("gone", "damaged", "well"):
        await pool.create(VolumeRequest(name, 20 * MI))
    [home] = [entry.target for entry in mount.mounts() if entry.target.startswith("/run/tonnage/pmem/")]
    kept = Path(home, "damaged.json").read_bytes()
    Path(home, "damaged.json").write_bytes(kept[:40])
    [lost] = [found for found in ndctl.namespaces("region0") if found.label == "gone"]
    Ndctl().destroy(lost.name)
    await pool.close()
    await pool.open()
    assert (await pool.condition("gone")).abnormal
    assert "content is lost" in (await pool.condition("gone")).message
    assert (await pool.condition("damaged")).abnormal
    with pytest.raises(HostError, match="damaged"):
        await pool.delete("damaged")
    with pytest.raises(HostError, match="content is lost"):
        await pool.stage("gone", tmp_path / "s")
    await pool.stage("well", tmp_path / "s")
    await pool.unstage("well", tmp_path / "s")
    await pool.delete("gone")
    Path(home, "damaged.json").write_bytes(kept)


async def test_one_pool_has_a_region(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tonnage.storage.pools.pmem.region._PAUSES", (0.0,))
    with pytest.raises(UnavailableError, match="in use by another pool"):
        await pool_of().open()
    with pytest.raises(UnavailableError, match="in use by another pool"):
        await pool_of("pmem:region0,mode=lvm").open()


async def test_regions_that_cannot_be_had() -> None:
    with pytest.raises(UnavailableError, match="init-labels"):
        await pool_of("pmem:region1").open()
    with pytest.raises(UnavailableError, match="no region region9"):
        await pool_of("pmem:region9").open()


async def test_a_region_is_known_by_its_cookie(pool: Pool) -> None:
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.close()
    again = pool_of(f"pmem:{ndctl.region('region0').cookie:#x}")
    await again.open()
    assert [volume.name for volume in await again.list()] == ["a"]
    await again.close()


async def test_content_and_options_of_a_class(pool: Pool, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "weights").write_text("42")
    parameters = {"source": f"dir://{folder}", "mkfsOptions": "-i 65536"}
    await pool.create(VolumeRequest("a", 20 * MI, parameters=parameters))
    await pool.stage("a", tmp_path / "s")
    assert (tmp_path / "s" / "weights").read_text() == "42"
    assert (await pool.stats("a", tmp_path / "s")).inodes < 500
    await pool.unstage("a", tmp_path / "s")


def left_in_memory(secret: bytes, size: int) -> bool:
    """Whether a secret is still in the memory that a new namespace gets, which is what a former one had."""
    free = ndctl.region("region0").largest
    said = subprocess.run(
        ["ndctl", "create-namespace", "-r", "region0", "-m", "raw", "-s", str(min(size, free))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    made = json.loads(said.stdout)
    try:
        return secret in content(Path("/dev", made["blockdev"]), made["size"])
    finally:
        Ndctl().destroy(made["dev"])


@pytest.mark.parametrize("mode", ["fsdax", "devdax"])
async def test_deleted_content_is_erased(pool: Pool, tmp_path: Path, mode: str) -> None:
    for method in ("none", "discard" if mode == "fsdax" else "zero"):
        parameters = {"nsmode": mode, "erase": method}
        volume = await pool.create(VolumeRequest("a", 30 * MI, block=True, parameters=parameters))
        secret = f"{mode} {method} {'s' * 32}"[:32].encode()
        fill(await published(pool, "a", tmp_path), 28 * MI, secret)
        await hidden(pool, "a", tmp_path)
        await pool.delete("a")
        if method != "none":
            await pool.close()  # a restart goes on
            await pool.open()
            assert await pool.list() == []
            for erasure in await pool.erasing():
                assert (erasure.name, erasure.method) == ("a", "zero")
        await erased(pool)
        assert (await pool.capacity()).used == 0
        assert left_in_memory(secret, volume.size + 2 * MI) == (method == "none")


async def names(pool: Pool) -> tuple[list[str], list[str]]:
    return [volume.name for volume in await pool.list()], [volume.name for volume in await pool.trash.list()]


async def discarded(pool: Pool, *volumes: str) -> None:
    for name in volumes:
        assert await pool.trash.discard(name)
        await asyncio.sleep(0.01)  # the next one is later


@pytest.mark.parametrize("mode", ["fsdax", "sector", "devdax"])
async def test_trash_makes_way_the_oldest_first_and_neighbors_are_one_piece(pool: Pool, mode: str) -> None:
    parameters = {"nsmode": mode}

    async def largest() -> int:
        return (await pool.capacity_for(parameters, block=True)).largest

    async def create(name: str, size: int) -> None:
        await pool.create(VolumeRequest(name, size, block=True, owner=DAY, parameters=parameters))

    whole = await largest()
    for name in ("a", "b", "c", "d"):
        await create(name, whole // 5)
    left = await pool.capacity()
    await discarded(pool, "c", "a")
    async with asyncio.timeout(60):
        for _ in range(2):
            assert (await pool.capacity()).free > left.free + 2 * (whole // 5)
            assert whole // 5 <= await largest() < whole // 4, "b is between them"
            await pool.close()
            await pool.open()
            assert (await pool.capacity()).used == sum(volume.size for volume in await pool.list())
        await discarded(pool, "b")
        published = await largest()
        assert published > 3 * (whole // 5), "three in one piece"
        await create("e", whole // 5 - 128 * MI)
        assert await names(pool) == (["d", "e"], ["c", "a", "b"]), "it fitted"
        await create("new", published)
        assert await names(pool) == (["d", "e", "new"], [])
        with pytest.raises(ExhaustedError):
            await create("more", whole // 5)


async def test_trash_of_a_pool_with_a_limit_counts_until_its_bytes_are_needed() -> None:
    pool = pool_of("pmem:region0,size=200Mi")
    await pool.open()
    for name, size in (("old", 120), ("a", 60)):
        await pool.create(VolumeRequest(name, size * MI, owner=DAY))
        if name == "old":
            await discarded(pool, name)
            assert (await pool.capacity()).free == 200 * MI
    assert await names(pool) == (["a"], ["old"])
    await pool.create(VolumeRequest("b", 100 * MI, owner=DAY))
    assert await names(pool) == (["a", "b"], [])
    await discarded(pool, "a")
    pool.rebound(PoolLimits(size=130 * MI))
    with pytest.raises(ExhaustedError, match="a cannot be restored"):
        await pool.trash.restore("a")
    await pool.create(VolumeRequest("c", 30 * MI))
    assert await names(pool) == (["b", "c"], [])
    for name in ("b", "c"):
        await pool.delete(name)
    await pool.close()


def make_labels(region: str) -> None:
    """Initialize the labels of a region's DIMMs, which removes all namespaces."""
    dimms = [entry.read_text().partition(",")[0] for entry in sorted((ndctl.DEVICES / region).glob("mapping[0-9]*"))]
    run(["ndctl", "disable-region", region])
    try:
        run(["ndctl", "init-labels", "--force", *dimms])
    finally:
        run(["ndctl", "enable-region", region])


@pytest.mark.parametrize("text", ["pmem:region0", "pmem:region1,mode=lvm"])
async def test_trash_is_restored_with_what_was_mapped(tmp_path: Path, text: str) -> None:
    if "lvm" in text:
        make_labels("region1")
    pool, staging = pool_of(text), tmp_path / "s"
    await pool.open()
    free = (await pool.capacity()).free
    await pool.create(VolumeRequest("v", 100 * MI, owner=DAY))
    await pool.stage("v", staging)
    assert synced_mapping(staging / "file") == 0
    with pytest.raises(PreconditionError, match="in use"):
        await pool.trash.discard("v")
    await pool.unstage("v", staging)
    taken = (await pool.capacity()).free
    await discarded(pool, "v")
    for _ in range(2):
        assert (await names(pool), (await pool.capacity()).free) == (([], ["v"]), free)
        with pytest.raises(NotFoundError, match="tonnage volumes restore"):
            await pool.stage("v", staging)
        await pool.close()
        await pool.open()
    await pool.trash.restore("v")
    assert (await names(pool), (await pool.capacity()).free) == ((["v"], []), taken)
    await pool.stage("v", staging)
    assert "dax=always" in mounted(staging)
    assert (staging / "file").read_bytes()[:5] == b"hello"
    await pool.unstage("v", staging)
    await discarded(pool, "v")
    await pool.create(VolumeRequest("all", (await pool.capacity()).largest))
    assert await names(pool) == (["all"], [])
    await emptied(pool, tmp_path)


async def test_lvm_in_between(tmp_path: Path) -> None:
    make_labels("region1")
    pool = pool_of("pmem:region1,mode=lvm")
    await pool.open()
    staging = tmp_path / "s"
    await pool.create(VolumeRequest("a", 20 * MI))
    await pool.stage("a", staging)
    assert "dax=always" in mounted(staging)
    assert synced_mapping(staging / "file") == 0
    await pool.growth.expand("a", 40 * MI)
    assert not (await pool.growth.grow("a", staging)).pending
    assert (await pool.stats("a", staging)).available >= 35 * MI
    await pool.unstage("a", staging)
    with pytest.raises(UnsupportedError, match="snapshots"):
        await pool.snapshots.create("s", "a")
    with pytest.raises(InvalidError, match="programs map"):
        await pool.create(VolumeRequest("b", 20 * MI, parameters={"thin": "true"}))
    await pool.close()

    pool = pool_of("pmem:region1,mode=lvm")
    await pool.open()
    assert labels("region1") == ["tonnage-lvm"]
    await pool.stage("a", staging)
    assert (staging / "file").read_bytes()[:5] == b"hello"
    await pool.unstage("a", staging)
    await emptied(pool, tmp_path)


async def _life(pool: Pool, folder: Path, say: Callable[[str], None]) -> None:
    await pool.open()
    say("opened")
    await pool.create(VolumeRequest("v", 20 * MI, parameters={"erase": "zero"}))
    say("created")
    await pool.stage("v", folder / "s")
    fd = os.open(folder / "s" / "file", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"content")
    os.fsync(fd)
    os.close(fd)
    say("written")
    await pool.unstage("v", folder / "s")
    say("unstaged")
    await pool.delete("v")
    say("deleted")
    await erased(pool)
    await pool.close()


def _lived(folder: Path, at: int, killer: Any) -> tuple[list[str], int]:
    """Live in a child that is killed at line `at`; what it was told, and its lines if it came to its end."""
    folder.mkdir()
    log = folder / "log"
    if (child := os.fork()) == 0:
        code = 1
        with suppress(BaseException):
            fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            counting = killer(at, ("pools", "host"))
            counting.start()
            asyncio.run(_life(pool_of(), folder, lambda word: (os.write(fd, f"{word}\n".encode()), None)[1]))
            sys.settrace(None)
            os.write(fd, f"lines {counting.count}\n".encode())
            code = 0
        os._exit(code)
    _, status = os.waitpid(child, 0)
    said = log.read_text().split("\n")[:-1] if log.exists() else []
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return said, 0
    assert status == 0, said
    return said[:-1], int(said[-1].split()[1])


@pytest.mark.timeout(900)
async def test_killed_at_any_line(tmp_path: Path, line_killer: Any, tell: Callable[[str], None]) -> None:
    said, lines = _lived(tmp_path / "whole", 0, line_killer)
    assert said[-1] == "deleted"
    assert lines > 1000
    chosen = random.Random(5)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        at = chosen.randrange(1, lines)
        said, _ = _lived(folder, at, line_killer)
        pool = pool_of()
        await pool.open()
        names = [volume.name for volume in await pool.list()]
        assert names in ([], ["v"]), (at, said)
        if "created" in said and "unstaged" not in said:
            assert names == ["v"], f"an answered volume is gone after {at}: {said}"
        if "deleted" in said:
            assert names == [], f"a deleted volume is back after {at}"
        if names:
            await pool.stage("v", folder / "s")
            if "written" in said:
                assert (folder / "s" / "file").read_bytes() == b"content", f"formatted twice after {at}"
            await pool.unstage("v", folder / "s")
        await emptied(pool, folder)
        assert labels() == ["tonnage-records"], f"left behind after {at}: {said}"
    tell(f"pmem: killed at {KILLS} of {lines} lines")
