"""Volumes of each kind of pool on a node whose SELinux enforces. Run by test_qemu.py inside QEMU: region0 is for pmem.

What a kubelet does is done here in its steps (KEP-1710): where the CSIDriver has seLinuxMount, it passes the context of a
pod's files to the driver, and believes that they have it; elsewhere, it lets the container runtime label them.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.vm.selinux import enforce, files_of, in_pod, is_relabeled, label_of, option, relabel

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.local import local_client
from tonnage.csi.client.types import AccessMode, ContentSource, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.errors import Code, CsiError
from tonnage.host import loop, lvm, mount
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse

MI = 1024**2
ONE, TWO = "s0:c1,c2", "s0:c1,c3"
"""Levels of two pods."""
READ, WRITE = "cat $1/file", "echo hello >$1/file && cat $1/file"
PODS_OWN = VolumeCapability()
OWN = ("image", "lvm", "pmem", "static")
"""Kinds whose volumes are file systems of their own; static: a whole disk."""
SHARED = ("quota xfs", "quota ext4", "btrfs", "static folder")
SNAPSHOTS = ("image", "lvm", "btrfs")
_SHUT_DOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN


@pytest.fixture(autouse=True, scope="session")
def _enforcing() -> None:
    enforce()


def once(level: str) -> VolumeCapability:
    """A ReadWriteOncePod volume with the context of a pod's files."""
    return VolumeCapability(AccessMode.SINGLE_NODE_SINGLE_WRITER, mount_flags=(option(level),))


@dataclass
class Node:
    """A driver with a pool, and the kubelet's places."""

    folder: Path
    client: CsiClient
    snapshots: bool

    async def volume(self, name: str, *, size: int = 16 * MI, **more: str) -> str:
        """A new volume."""
        source = ContentSource(snapshot_id=more["snapshot"]) if "snapshot" in more else None
        made = await self.client.create_volume(name, size, [PODS_OWN], source=source)
        return made.id

    def places(self, name: str) -> tuple[Path, Path]:
        """Of staging and publishing."""
        place = self.folder / name.replace("/", "-")
        place.mkdir(exist_ok=True)
        (place / "staging").mkdir(exist_ok=True)
        return place / "staging", place / "target"

    async def start(self, volume: str, capability: VolumeCapability = PODS_OWN) -> Path:
        """Stage and publish, where a pod then sees it."""
        staging, target = self.places(volume)
        await self.client.stage(volume, staging, capability)
        await self.client.publish(volume, target, capability, staging=staging)
        return target

    async def end(self, volume: str) -> None:
        """Undo it."""
        staging, target = self.places(volume)
        await self.client.unpublish(volume, target)
        await self.client.unstage(volume, staging)


def _disk(folder: Path, size: int, stack: ExitStack) -> str:
    """A loop device over a sparse file in memory."""
    path = folder / f"disk-{size}"
    with path.open("wb") as file:
        file.truncate(size)
    fd = os.open(path, os.O_RDWR)
    attached = loop.attach(fd, str(path))
    os.close(fd)
    stack.enter_context(closing(attached))
    return attached.path


def _mounted(folder: Path, device: str, fstype: str, stack: ExitStack) -> Path:
    words = {"xfs": ["-q", "-f"], "btrfs": ["-q"], "ext4": ["-q", "-F", "-O", "quota,project"]}[fstype]
    subprocess.run([f"mkfs.{fstype}", *words, device], check=True)
    folder.mkdir(mode=0o755)
    mount.mount(device, folder, fstype, [] if fstype == "btrfs" else ["prjquota"])
    stack.callback(mount.umount, folder, lazy=True)
    return folder


def _described(kind: str, folder: Path, stack: ExitStack) -> str:
    """A pool of that kind, ready to be opened."""
    name, _, variant = kind.partition(" ")
    if name == "lvm":
        device = _disk(folder, 512 * MI, stack)
        lvm.lvm("vgcreate", "vg0", device)
        stack.callback(lvm.lvm, "vgremove", "--yes", "--force", "vg0")
        return "lvm:vg0,name=p"
    if name == "pmem":
        return "pmem:region0,name=p"
    if name == "image":
        return f"image:{folder / 'pool'},name=p,size=256Mi"
    if name == "static":
        (folder / "disks").mkdir(mode=0o755)
        for size in (40 * MI, 48 * MI):
            device, entry = _disk(folder, size, stack), folder / "disks" / f"d{size}"
            _mounted(entry, device, "ext4", stack) if variant else entry.symlink_to(device)
        return f"static:{folder / 'disks'},name=p"
    fstype = variant or name
    return f"{name}:{_mounted(folder / 'disk', _disk(folder, 400 * MI, stack), fstype, stack) / 'pool'},name=p"


@pytest.fixture
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Node]:
    with ExitStack() as stack:
        pool = make(parse(_described(request.param, tmp_path, stack)), disks=Disks())
        await pool.open()
        client = local_client(Driver("node", {"p": pool}, tmp_path / "state"))
        yield Node(tmp_path, client, pool.features.snapshots)
        for entry in reversed(list(mount.mounts())):
            if entry.target.startswith(f"{tmp_path}/") and "disk" not in entry.target.removeprefix(str(tmp_path)):
                mount.umount(entry.target, lazy=True)
        for snapshot in await pool.list_snapshots() if pool.features.snapshots else ():
            await pool.delete_snapshot(snapshot.name)
        for volume in await pool.list():
            await pool.delete(volume.name)
        await pool.close()


async def rejected(code: Code, call: object, text: str) -> None:
    with pytest.raises(CsiError, match=text) as failure:
        await call  # type: ignore[misc]
    assert failure.value.code is code


def test_the_policy_is_enforced(tmp_path: Path) -> None:
    """A process with a pod's label runs, and writes what is labeled for it, and nothing else."""
    for name, level in (("mine", ONE), ("theirs", TWO), ("nobodys", "")):
        (tmp_path / name).mkdir()
        if level:
            relabel(tmp_path / name, level)
    assert in_pod(ONE, WRITE, tmp_path / "mine") == "hello"
    assert in_pod(ONE, WRITE, tmp_path / "theirs") == "denied"
    assert in_pod(ONE, WRITE, tmp_path / "nobodys") == "denied"
    assert in_pod(TWO, READ, tmp_path / "mine") == "denied"


@pytest.mark.parametrize("node", OWN, indirect=True)
async def test_a_mount_has_the_label_of_its_pod(node: Node) -> None:
    """ReadWriteOncePod, or any volume with the feature gate SELinuxMount: no file is labeled, and all have it."""
    volume = await node.volume("v")
    target = await node.start(volume, once(ONE))
    assert await node.start(volume, once(ONE)) == target
    assert await node.start(volume, once("s0:c2,c1")) == target, "the kernel shows categories in its order"
    assert not is_relabeled(target)
    assert in_pod(ONE, WRITE, target) == "hello"
    assert label_of(target / "file") == label_of(target) == files_of(ONE)
    assert in_pod(TWO, READ, target) == "denied"
    await node.end(volume)

    target = await node.start(volume, once(TWO))
    assert in_pod(TWO, READ, target) == "hello"
    assert in_pod(ONE, READ, target) == "denied"
    await node.end(volume)


@pytest.mark.parametrize("node", OWN, indirect=True)
async def test_a_mounted_volume_does_not_get_another_label(node: Node) -> None:
    volume = await node.volume("v")
    staging, target = node.places(volume)
    await node.start(volume, once(ONE))
    shown = f"mounted at {staging} with SELinux context {files_of(ONE)}"
    for capability in (once(TWO), PODS_OWN):
        await rejected(Code.ALREADY_EXISTS, node.client.stage(volume, staging, capability), shown)
        elsewhere = node.folder / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        with pytest.raises(CsiError) as failure:
            await node.client.stage(volume, elsewhere, capability)
        assert failure.value.code in (Code.FAILED_PRECONDITION, Code.ABORTED), failure.value
    publish = node.client.publish(volume, target, once(TWO), staging=staging)
    await rejected(Code.ALREADY_EXISTS, publish, shown)
    assert in_pod(ONE, WRITE, target) == "hello"
    await node.end(volume)

    await node.start(volume)
    stage = node.client.stage(volume, staging, once(ONE))
    await rejected(Code.ALREADY_EXISTS, stage, f"mounted at {staging} with no SELinux context")
    await node.end(volume)


@pytest.mark.parametrize("node", [*OWN, *SHARED], indirect=True)
async def test_the_container_runtime_labels_files(node: Node) -> None:
    """Two pods with different labels, each with a volume of one pool, which is one file system for shared kinds."""
    volumes = [await node.volume("a"), await node.volume("b")]
    targets = [await node.start(volume) for volume in volumes]
    for target, level in zip(targets, (ONE, TWO), strict=True):
        assert is_relabeled(target)
        assert in_pod(level, WRITE, target) == "denied", "it has no label yet"
        relabel(target, level)
        assert in_pod(level, WRITE, target) == "hello"
    assert in_pod(ONE, READ, targets[0]) == in_pod(TWO, READ, targets[1]) == "hello"
    assert in_pod(ONE, READ, targets[1]) == in_pod(TWO, READ, targets[0]) == "denied"
    for volume in volumes:
        await node.end(volume)
    assert in_pod(ONE, READ, await node.start(volumes[0])) == "hello", "labels stay with the files"


@pytest.mark.parametrize("node", SHARED, indirect=True)
async def test_a_folder_has_no_context_of_its_own(node: Node) -> None:
    volume = await node.volume("v")
    staging, _ = node.places(volume)
    text = "cannot have the mount option context=.*set seLinuxMount: false in the CSIDriver"
    await rejected(Code.INVALID_ARGUMENT, node.client.stage(volume, staging, once(ONE)), text)
    assert not mount.is_mount(staging)


@pytest.mark.parametrize("node", SNAPSHOTS, indirect=True)
async def test_a_restored_snapshot_gets_the_label_of_its_own_pod(node: Node) -> None:
    """Taken while the first pod runs. Labels in a file system are those of its source until they are written anew."""
    assert node.snapshots
    volume = await node.volume("v")
    target = await node.start(volume)
    relabel(target, ONE)
    assert in_pod(ONE, WRITE, target) == "hello"
    snapshot = await node.client.create_snapshot("snap", volume)
    restored = await node.volume("r", snapshot=snapshot.id)
    copy = await node.start(restored)
    assert in_pod(TWO, READ, copy) == "denied"
    relabel(copy, TWO)
    assert in_pod(TWO, READ, copy) == "hello"
    assert in_pod(ONE, READ, copy) == "denied"
    assert in_pod(ONE, READ, target) == "hello"


@pytest.mark.parametrize("node", ["image", "lvm"], indirect=True)
async def test_a_snapshot_of_a_mount_with_a_label(node: Node) -> None:
    volume = await node.volume("v")
    target = await node.start(volume, once(ONE))
    assert in_pod(ONE, WRITE, target) == "hello"
    snapshot = await node.client.create_snapshot("snap", volume)
    copy = await node.start(await node.volume("r", snapshot=snapshot.id), once(TWO))
    assert in_pod(TWO, READ, copy) == "hello"
    assert in_pod(ONE, READ, copy) == "denied"
    assert in_pod(ONE, READ, target) == "hello"


@pytest.mark.parametrize("node", ["image", "lvm", "pmem"], indirect=True)
async def test_a_mount_with_a_label_grows(node: Node) -> None:
    volume = await node.volume("v")
    target = await node.start(volume, once(ONE))
    before = os.statvfs(target).f_blocks
    await node.client.expand_volume(volume, 48 * MI, capability=once(ONE))
    await node.client.expand(volume, target, 48 * MI, once(ONE), staging=node.places(volume)[0])
    assert os.statvfs(target).f_blocks > before
    assert in_pod(ONE, WRITE, target) == "hello"
    await node.end(volume)


@pytest.mark.parametrize("node", ["image"], indirect=True)
async def test_a_repaired_file_system_has_its_label_again(node: Node) -> None:
    volume = await node.volume("v")
    target = await node.start(volume, once(ONE))
    assert in_pod(ONE, f"{WRITE} && sync", target) == "hello"
    await node.client.unpublish(volume, target)
    staging, _ = node.places(volume)
    fd = os.open(staging, os.O_RDONLY)
    fcntl.ioctl(fd, _SHUT_DOWN, struct.pack("=I", 2))
    os.close(fd)
    await node.client.publish(volume, target, PODS_OWN, staging=staging)
    assert label_of(target / "file") == files_of(ONE)
    assert in_pod(ONE, READ, target) == "hello"
    await node.end(volume)


@pytest.mark.parametrize("node", ["image", "lvm", "pmem", "quota xfs", "btrfs"], indirect=True)
async def test_an_inline_volume(node: Node) -> None:
    """The kubelet passes no context for these: VolumeSupportsSELinuxMount wants a PersistentVolume."""
    handle = names.inline_handle("uid-1", "scratch")
    pod = {
        names.CSI_EPHEMERAL: "true",
        names.CSI_POD_NAME: "pod",
        names.CSI_POD_NAMESPACE: "ns",
        names.CSI_POD_UID: "uid-1",
        names.CSI_SERVICE_ACCOUNT: "default",
    }
    _, target = node.places(handle)
    await node.client.publish(handle, target, PODS_OWN, context={**pod, "size": "16Mi"})
    assert is_relabeled(target)
    relabel(target, ONE)
    assert in_pod(ONE, WRITE, target) == "hello"
    assert in_pod(TWO, READ, target) == "denied"
    await node.client.unpublish(handle, target)
