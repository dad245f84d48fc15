"""The Node service on real devices: loop devices over the files of the storage in the child."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cinder.child import Fault
from tests.unit.cinder.kubelet import BLOCK, MOUNT, Kubelet
from tests.unit.cinder.storage_child import SECRET

from tonnage.cinder.driver import CinderConfig
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import ContentSource, VolumeCapability
from tonnage.csi.errors import Code, CsiError
from tonnage.host import filesystem, mount
from tonnage_box.testing.wait import eventually

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and loop devices"),
]
GI = 1 << 30


@pytest.fixture
def kubelet(client: CsiClient, config: CinderConfig, storage: Path) -> Iterator[Kubelet]:
    config.kubelet_root.mkdir()
    yield Kubelet(client, config.kubelet_root)
    for path in sorted(config.kubelet_root.iterdir()):
        while mount.umount(path):
            pass
    for disk in storage.iterdir():
        found = subprocess.run(["losetup", "-nO", "NAME", "-j", disk], capture_output=True, text=True, check=True)
        for name in found.stdout.split():
            subprocess.run(["losetup", "-d", name], check=True)


Devices = Callable[[], list[str]]


@pytest.fixture
def devices(storage: Path) -> Devices:
    """The devices of volumes that are connected."""

    def read() -> list[str]:
        listed = subprocess.run(["losetup", "-nO", "BACK-FILE"], capture_output=True, text=True, check=True).stdout
        return [line.strip() for line in listed.splitlines() if line.strip().startswith(str(storage))]

    return read


async def all_are_gone(devices: Devices) -> None:
    """A device goes with its last user: another process of the machine may look at all of them at that moment."""

    async def none() -> bool:
        return devices() == []

    await eventually(none)


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
async def test_data_stays_and_grows(kubelet: Kubelet, client: CsiClient, devices: Devices, fstype: str) -> None:
    use = VolumeCapability(fstype=fstype)
    await client.create_volume("v", GI, [use])
    path = await kubelet.start("v", use)
    (path / "data").write_text("one")
    await kubelet.start("v", use)  # repeated
    await kubelet.stop("v")
    assert not path.exists()
    await all_are_gone(devices)
    path = await kubelet.start("v", use)
    assert (path / "data").read_text() == "one"
    before = os.statvfs(path).f_blocks
    await client.expand_volume("v", 2 * GI)
    grows = fstype == "xfs" or filesystem.may_grow_ext4()
    if grows:
        await client.expand("v", path, 2 * GI, use)
        await client.expand("v", path, 2 * GI, use)
        assert os.statvfs(path).f_blocks > before * 1.8
    else:
        with pytest.raises(CsiError, match="only for CAP_SYS_RESOURCE"):
            await client.expand("v", path, 2 * GI, use)
    await client.create_snapshot("s", "v")
    await client.create_volume("copy", 3 * GI, [use], source=ContentSource(snapshot_id="s"))
    copy = await kubelet.start("copy", use)  # beside its source, with the same UUID
    assert (copy / "data").read_text() == "one"
    assert os.statvfs(copy).f_blocks > before * 2.7 or not grows
    await kubelet.stop("copy")
    await kubelet.stop("v")
    await kubelet.stop("v")
    await all_are_gone(devices)


async def test_read_only(kubelet: Kubelet, client: CsiClient) -> None:
    await client.create_volume("v", GI, [MOUNT])
    path = await kubelet.start("v", readonly=True)
    with pytest.raises(OSError, match="Read-only file system"):
        (path / "data").write_text("")
    await kubelet.stop("v")


async def test_raw_block(kubelet: Kubelet, client: CsiClient, devices: Devices) -> None:
    await client.create_volume("v", GI, [BLOCK])
    path = await kubelet.start("v", BLOCK)
    assert stat.S_ISBLK(path.stat().st_mode)
    path.write_bytes(b"raw")
    await client.unpublish("v", path)
    await client.publish("v", path, BLOCK, readonly=True, context=kubelet.used["v"])
    await client.publish("v", path, BLOCK, readonly=True, context=kubelet.used["v"])
    with path.open("rb") as file:
        assert file.read(3) == b"raw"
    with pytest.raises(OSError, match="Operation not permitted"):
        path.write_bytes(b"no")
    await kubelet.stop("v")
    await all_are_gone(devices)


@pytest.mark.parametrize("when", ["before", "half", "after"])
async def test_killed_in_attach_and_detach(
    kubelet: Kubelet, client: CsiClient, devices: Devices, fault: Fault, when: str
) -> None:
    await client.create_volume("v", GI, [MOUNT])
    fault("attach", when, "kill")
    with pytest.raises(CsiError) as failure:
        await kubelet.stage("v")
    assert failure.value.code is Code.UNAVAILABLE
    await client.unstage("v", kubelet.staging("v"))  # the pod was deleted meanwhile: nothing stays
    await all_are_gone(devices)
    (await kubelet.start("v") / "data").write_text("one")
    await client.unpublish("v", kubelet.target("v"))
    fault("detach", when, "kill")
    with pytest.raises(CsiError):
        await client.unstage("v", kubelet.staging("v"))
    assert (await kubelet.start("v") / "data").read_text() == "one"
    await kubelet.stop("v")
    await all_are_gone(devices)


def make_ext4(path: Path) -> None:
    subprocess.run(["mkfs.ext4", "-q", "-F", path], check=True)


async def test_foreign_content_is_not_formatted(kubelet: Kubelet, client: CsiClient, storage: Path) -> None:
    await client.create_volume("v", GI, [MOUNT])
    make_ext4(storage / "v")
    before = (storage / "v").read_bytes()[1024:2048]
    with pytest.raises(CsiError, match="holds ext4 that we did not make") as failure:
        await kubelet.start("v")
    assert failure.value.code is Code.FAILED_PRECONDITION
    assert (storage / "v").read_bytes()[1024:2048] == before
    await kubelet.stop("v")


async def test_what_is_rejected(kubelet: Kubelet, client: CsiClient, tmp_path: Path) -> None:
    await client.create_volume("v", GI, [MOUNT])
    calls: list[tuple[Any, Code]] = [
        (client.stage("v", kubelet.staging("v"), MOUNT), Code.INVALID_ARGUMENT),  # it was not attached
        (client.publish("v", kubelet.target("v"), MOUNT, staging=kubelet.staging("v")), Code.FAILED_PRECONDITION),
        (client.publish("v", kubelet.target("v"), BLOCK), Code.NOT_FOUND),
        (client.publish("v", tmp_path / "x", MOUNT, staging=kubelet.staging("v")), Code.INVALID_ARGUMENT),
        (client.expand("v", kubelet.root, GI, MOUNT), Code.NOT_FOUND),
    ]
    for call, code in calls:
        with pytest.raises(CsiError) as failure:
            await call
        assert failure.value.code is code


async def test_only_its_owner_reads_a_connection(kubelet: Kubelet, client: CsiClient, config: CinderConfig) -> None:
    await client.create_volume("v", GI, [MOUNT])
    await kubelet.start("v")
    record = config.state / "connections/v.json"
    assert SECRET in record.read_text()
    assert (stat.S_IMODE(record.stat().st_mode), stat.S_IMODE(record.parent.stat().st_mode)) == (0o600, 0o700)
    await kubelet.stop("v")
    assert list(record.parent.iterdir()) == []
