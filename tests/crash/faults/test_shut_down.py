"""Volumes whose file system no longer answers, or takes no more writes, while a pod has them: each call of the driver
ends with success or with an error that says what to do, the pod can go, and the next stage repairs what can be."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.crash.kills.fusedisk import Disk
from tests.programs import need
from tests.unit.csi.full_client import FullCsiClient

from tonnage.base.errors import HostError
from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.driver import filling as fillings
from tonnage.csi.errors import Code, CsiError
from tonnage.host import libc, loop, mount
from tonnage.host.run import run
from tonnage.node.config.driver import DriverConfig
from tonnage.node.plain_driver import StandaloneDriver
from tonnage.storage.pools.config import parse

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

MI = 1024**2
SIZE = 320 * MI
_SHUT_DOWN = 0x8004587D  # XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN
_LOG_FLUSHED, _LOG_LEFT = 1, 2  # of xfs: the log is written first, or nothing is
_MS_REMOUNT, _MS_RDONLY, _MS_NODEV, _MS_BIND = 32, 1, 4, 4096
EIO, ENOTCONN, EROFS = "Input/output error", "Transport endpoint is not connected", "read-only"


def shut_down(path: Path) -> str:
    """As the kernel does after an error that it cannot hide; skips where it has no ioctl for it."""
    os.sync()
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _SHUT_DOWN, struct.pack("=I", _LOG_LEFT))
    except OSError as failure:
        pytest.skip(f"the kernel cannot shut down the file system at {path}: {failure.strerror}")
    finally:
        os.close(fd)
    return EIO


def set_readonly(path: Path) -> str:
    """As the kernel does after an error of ext4 or btrfs."""
    os.sync()
    libc.mount(None, os.fsencode(path), None, _MS_REMOUNT | _MS_RDONLY, None)
    libc.mount(None, os.fsencode(path), None, _MS_REMOUNT | _MS_BIND | _MS_NODEV, None)  # of the mount: writable
    return EROFS


@dataclass
class Scene:
    """A driver with one pool "p", and the places of a pod. disk: what a static pool offers as a mounted folder."""

    folder: Path
    stack: ExitStack
    fstype: str = ""
    home: Path | None = None
    server: Disk | None = None
    driver: StandaloneDriver | None = None
    places: Mapping[str, Path] = field(default_factory=dict)

    @property
    def staging(self) -> Path:
        return self.folder / "globalmount"

    @property
    def target(self) -> Path:
        return self.folder / "pod" / "mount"

    @property
    def other(self) -> Path:
        """Of a second pod with the same volume."""
        return self.folder / "pod" / "other"

    @property
    def capability(self) -> VolumeCapability:
        return VolumeCapability(fstype=self.fstype)

    async def start(self, pool: str) -> FullCsiClient:
        config = DriverConfig(self.folder / "csi.sock", [parse(pool)], "n1", self.folder / "state")
        self.driver = StandaloneDriver(config)
        await self.driver.start()
        return FullCsiClient(self.folder / "csi.sock", timeout=60)

    def attach(self, name: str) -> str:
        """A loop device of a new file."""
        image = self.folder / name
        image.touch()
        os.truncate(image, 2 * SIZE)
        fd = os.open(image, os.O_RDWR)
        try:
            made = loop.attach(fd, str(image), autoclear=False)
        finally:
            os.close(fd)
        made.close()
        self.stack.callback(loop.detach, made.index)
        return made.path


def _image(scene: Scene) -> str:
    return f"image:{scene.folder / 'pool'},name=p,size=1Gi,sparse=yes,overcommit=yes"


def _image_on_disk(scene: Scene) -> str:
    """On an xfs of its own."""
    scene.home = scene.folder / "disk"
    scene.home.mkdir()
    device = scene.attach("disk.img")
    run(["mkfs.xfs", "-q", device])
    mount.mount(device, scene.home, "xfs", ())
    return f"image:{scene.home / 'pool'},name=p,size=900Mi,sparse=yes,overcommit=yes"


def _btrfs(scene: Scene) -> str:
    scene.home = scene.folder / "pool" / "mounted"
    return f"btrfs:{scene.home.parent},name=p,size=1Gi,sparse=yes,overcommit=yes"


def _static_device(scene: Scene) -> str:
    disks = scene.folder / "disks"
    disks.mkdir(mode=0o755)
    (disks / "a").symlink_to(scene.attach("a.img"))
    return f"static:{disks},name=p"


def _static_folder(scene: Scene) -> str:
    """A mounted xfs."""
    scene.home = scene.folder / "disks" / "a"
    scene.home.mkdir(mode=0o755, parents=True)
    device = scene.attach("a.img")
    run(["mkfs.xfs", "-q", device])
    mount.mount(device, scene.home, "xfs", ())
    return f"static:{scene.home.parent},name=p"


def _static_server(scene: Scene) -> str:
    """A FUSE file system."""
    scene.home = scene.folder / "disks" / "a"
    scene.home.mkdir(mode=0o755, parents=True)
    content = scene.folder / "content"
    content.touch()
    os.truncate(content, SIZE)
    scene.server = Disk(scene.home, known=0)
    scene.server.start(content)
    scene.stack.callback(scene.server.stop)
    return f"static:{scene.home.parent},name=p"


def _shut_staged(scene: Scene) -> str:
    return shut_down(scene.staging)


def _shut_home(scene: Scene) -> str:
    assert scene.home is not None
    return shut_down(scene.home)


def _readonly_staged(scene: Scene) -> str:
    return set_readonly(scene.staging)


def _end_server(scene: Scene) -> str:
    assert scene.server is not None
    scene.server.kill()
    return ENOTCONN


@dataclass(frozen=True)
class Row:
    """A kind of pool and what happens to its volume. writable: the pod can write to it before. repaired: the next stage
    brings the content back by itself; else a person does."""

    name: str
    pool: Callable[[Scene], str]
    fstype: str
    fault: Callable[[Scene], str]
    writable: bool = True
    repaired: bool = True


ROWS = [
    Row("image-ext4-shut", _image, "ext4", _shut_staged),
    Row("image-xfs-shut", _image, "xfs", _shut_staged),
    Row("image-btrfs-shut", _image, "btrfs", _shut_staged),
    Row("image-ext4-readonly", _image, "ext4", _readonly_staged),
    Row("image-xfs-readonly", _image, "xfs", _readonly_staged),
    Row("image-btrfs-readonly", _image, "btrfs", _readonly_staged),
    Row("image-disk-shut", _image_on_disk, "ext4", _shut_home, repaired=False),
    Row("static-ext4-shut", _static_device, "ext4", _shut_staged),
    Row("static-xfs-shut", _static_device, "xfs", _shut_staged),
    Row("static-ext4-readonly", _static_device, "ext4", _readonly_staged),
    Row("static-folder-shut", _static_folder, "", _shut_home, repaired=False),
    Row("static-server-gone", _static_server, "", _end_server, writable=False, repaired=False),
    Row("btrfs-readonly", _btrfs, "", _readonly_staged, repaired=False),
]
_SHUT = [row for row in ROWS if row.fault is _shut_staged]


@pytest.fixture(params=ROWS, ids=[row.name for row in ROWS])
def row(request: pytest.FixtureRequest) -> Row:
    found: Row = request.param
    for fstype in ("xfs", "btrfs"):
        if fstype in found.name or (fstype == "xfs" and found.pool is _static_folder):
            need(f"mkfs.{fstype}")
    return found


@pytest.fixture
def scene(real_folder: Path, row: Row) -> Iterator[Scene]:
    """The places of a pod, and disks that are let go at the end."""
    with ExitStack() as stack:
        made = Scene(real_folder, stack, row.fstype)
        made.target.parent.mkdir()
        made.staging.mkdir()
        yield made
        for path in (made.other, made.target, made.staging, *([made.home] if made.home else [])):
            while mount.umount(path, lazy=True):
                pass


@pytest.fixture
async def client(scene: Scene, row: Row) -> AsyncIterator[FullCsiClient]:
    """A client of the driver."""
    try:
        client = await scene.start(row.pool(scene))
    except HostError as failure:
        pytest.skip(str(failure))  # a file system that this kernel lacks
    async with client:
        yield client
    assert scene.driver is not None
    await scene.driver.stop()


async def _ends(call: Awaitable[Any]) -> CsiError | None:
    """A call ends; its error names the object, the cause, and what to do."""
    try:
        await call
    except CsiError as failure:
        _check_words(failure)
        return failure
    return None


def _check_words(failure: CsiError) -> None:
    text = failure.message
    if failure.code is not Code.INVALID_ARGUMENT:  # what that kind does not offer
        assert re.search(r"\bv\b|^pool ", text), text
        assert ": " in text, text
        assert failure.code not in (Code.UNKNOWN, Code.DEADLINE_EXCEEDED), text
    if any(cause in text for cause in (EIO, ENOTCONN, "Read-only file system")):
        assert "; " in text, text


async def test_a_pod_leaves_a_broken_volume(
    row: Row, scene: Scene, client: FullCsiClient, caplog: pytest.LogCaptureFixture
) -> None:
    volume = (await client.create_volume("v", SIZE, [scene.capability])).id
    await client.stage(volume, scene.staging, scene.capability)
    await client.publish(volume, scene.target, scene.capability, staging=scene.staging)
    if row.writable:
        (scene.target / "data").write_text("kept")
    cause = row.fault(scene)

    stats = await client.volume_stats(volume, scene.target)
    assert stats.abnormal
    assert cause in stats.message
    assert stats.total > 0, "the kubelet takes no answer without"
    listed = (await client.list_conditions())[volume]
    assert listed.abnormal
    assert cause in listed.message
    assert (await client.get_volume(volume))[1].abnormal

    staged = await _ends(client.stage(volume, scene.staging, scene.capability))
    published = await _ends(client.publish(volume, scene.other, scene.capability, staging=scene.staging))
    if cause != EROFS:
        assert staged is not None
        assert published is not None
        assert cause in staged.message
        assert cause in published.message, "a pod that starts on it would see nothing but errors"
    await _ends(client.publish(volume, scene.target, scene.capability, staging=scene.staging))
    await _ends(client.expand_volume(volume, SIZE + 64 * MI))
    await _ends(client.expand_on_node(volume, scene.target, size=SIZE))
    await _ends(client.create_snapshot("s", volume))
    assert await _ends(client.delete_volume(volume)) is not None, "a pod has it"

    for _ in range(2):
        await client.unpublish(volume, scene.other)
        await client.unpublish(volume, scene.target)
        await client.unstage(volume, scene.staging)
    assert not mount.is_mount(scene.staging)
    assert not scene.target.exists()
    if row.repaired:
        with caplog.at_level(logging.WARNING):
            await client.stage(volume, scene.staging, scene.capability)
        assert (scene.staging / "data").read_text() == "kept"
        assert not (await client.list_conditions())[volume].abnormal
        assert ("file system repaired by mounting it" in caplog.text) == (cause == EIO)
        await client.unstage(volume, scene.staging)
    else:
        await _mend(scene)
    await client.delete_snapshot("p/s")
    await _delete(client, volume)
    assert await client.list_conditions() == {}


async def _mend(scene: Scene) -> None:
    """As a person does: mount what is broken once more, empty for a server that is gone."""
    assert scene.home is not None
    assert scene.driver is not None
    if scene.server is not None:
        scene.server.stop()
        scene.server.start(scene.folder / "content")
        return
    entry = mount.at(scene.home)
    assert entry is not None
    if entry.fstype == "btrfs":
        libc.mount(None, os.fsencode(scene.home), None, _MS_REMOUNT, None)
        return
    await scene.driver.stop()  # it has the pool's directory open
    mount.umount(scene.home)
    mount.mount(entry.source, scene.home, entry.fstype, ())
    await scene.driver.start()


async def _delete(client: FullCsiClient, volume: str) -> None:
    """As a caller that repeats it: the kernel lets go of a loop device a moment after its last umount."""
    async with asyncio.timeout(60):
        while (failure := await _ends(client.delete_volume(volume))) is not None:
            assert failure.code is Code.FAILED_PRECONDITION, failure.message


@pytest.mark.parametrize("row", _SHUT, ids=[row.name for row in _SHUT], indirect=True)
async def test_the_next_pod_repairs_what_the_kubelet_does_not_stage_again(
    scene: Scene, client: FullCsiClient, row: Row
) -> None:
    volume = (await client.create_volume("v", SIZE, [scene.capability])).id
    flags = VolumeCapability(fstype=row.fstype, mount_flags=["noatime"])
    await client.stage(volume, scene.staging, flags)
    await client.publish(volume, scene.target, flags, staging=scene.staging)
    (scene.target / "data").write_text("kept")
    shut_down(scene.staging)

    await client.unpublish(volume, scene.target)
    await client.publish(volume, scene.other, flags, staging=scene.staging)
    assert (scene.other / "data").read_text() == "kept"
    entry = mount.at(scene.staging)
    assert entry is not None
    assert {"noatime", "nodev"} <= set(entry.options.split(","))
    await client.unpublish(volume, scene.other)
    await client.unstage(volume, scene.staging)
    await _delete(client, volume)


_SERVED = [row for row in ROWS if row.pool is _static_server]


@pytest.mark.parametrize("row", _SERVED, ids=["server"], indirect=True)
async def test_a_pod_leaves_a_file_system_that_hangs(scene: Scene, client: FullCsiClient) -> None:
    volume = (await client.create_volume("v", SIZE, [scene.capability])).id
    await client.stage(volume, scene.staging, scene.capability)
    await client.publish(volume, scene.target, scene.capability, staging=scene.staging)
    assert scene.server is not None
    with scene.server.hangs():
        await client.unpublish(volume, scene.target)
        await client.unstage(volume, scene.staging)
        assert not scene.target.exists()
        assert not mount.is_mount(scene.staging)
    await _delete(client, volume)


_ONE = pytest.mark.parametrize("row", [row for row in ROWS if row.name == "image-xfs-shut"], ids=["xfs"], indirect=True)


@_ONE
async def test_a_silent_mount_is_a_mount(scene: Scene, client: FullCsiClient, row: Row) -> None:
    """Also where only that is asked: one writer has one target, and what another pool's volume shows stays."""
    once = VolumeCapability(AccessMode.SINGLE_NODE_SINGLE_WRITER, fstype=row.fstype)
    volume = (await client.create_volume("v", SIZE, [once])).id
    await client.stage(volume, scene.staging, once)
    await client.publish(volume, scene.target, once, staging=scene.staging)
    shut_down(scene.staging)

    with pytest.raises(CsiError, match=f"is published at {scene.target}, and its access mode allows one target"):
        await client.publish(volume, scene.other, scene.capability, staging=scene.staging)
    for call in (client.unpublish("retired/w", scene.target), client.unstage("retired/w", scene.staging)):
        with pytest.raises(CsiError, match="configure that pool again"):
            await call
    assert mount.is_mount(scene.target)
    await client.unpublish(volume, scene.target)
    await client.unstage(volume, scene.staging)


@_ONE
async def test_a_volume_that_shut_down_while_it_was_filled_is_deleted(scene: Scene, client: FullCsiClient) -> None:
    volume = (await client.create_volume("v", SIZE, [scene.capability])).id
    place = scene.folder / "state" / fillings.FOLDER / "v"
    place.parent.mkdir(parents=True, exist_ok=True)
    await client.stage(volume, place, scene.capability)  # as its filling does
    shut_down(place)
    await _delete(client, volume)
    assert not place.exists()
