"""A volume's life over iSCSI, through the CSI calls of `tonnage cinder`. Run in user-mode Linux by tests/cinder/test_iscsi.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.cinder.kubelet import MOUNT, Kubelet

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import ContentSource
from tonnage.csi.errors import Code, CsiError
from tonnage.testing.wait import eventually

GI = 1 << 30
BACKENDS = """
backends:
- name: lvm
  volume_driver: cinder.volume.drivers.lvm.LVMVolumeDriver
  volume_group: storage
  target_protocol: iscsi
  target_helper: lioadm
  target_ip_address: 127.0.0.1
  volume_clear: none
"""
pytestmark = pytest.mark.timeout(1400)


def start(folder: Path) -> subprocess.Popen[bytes]:
    words = [
        "cinder",
        "--endpoint",
        f"{folder}/csi.sock",
        "--config",
        f"{folder}/cinder.yaml",
        "--state",
        f"{folder}/state",
    ]
    words += ["--kubelet-root", str(folder), "--interpreter", os.environ["TONNAGE_CINDER_PYTHON"]]
    return subprocess.Popen([sys.executable, "-m", "tonnage.cli", *words])


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[CsiClient]:
    (tmp_path / "cinder.yaml").write_text(BACKENDS)
    process = start(tmp_path)

    async def is_there() -> bool:
        return (tmp_path / "csi.sock").exists()

    await eventually(is_there, 120)
    async with CsiClient(tmp_path / "csi.sock", timeout=600, node_timeout=600) as found:
        yield found
    process.terminate()
    process.wait()


def lvs() -> str:
    return subprocess.run(["lvm", "lvs", "--noheadings", "storage"], capture_output=True, text=True, check=True).stdout


def targets() -> list[str]:
    folder = Path("/sys/kernel/config/target/iscsi")
    return [path.name for path in folder.glob("iqn*")] if folder.exists() else []


async def test_a_life(client: CsiClient, tmp_path: Path) -> None:
    kubelet = Kubelet(client, tmp_path)
    free = (await client.get_capacity()).available
    assert 8 * GI <= free <= 10 * GI
    assert (await client.create_volume("v", GI // 2, [MOUNT])).size == GI
    path = await kubelet.start("v")
    device = Path(os.path.realpath(f"/sys/dev/block/{os.major(path.stat().st_dev)}:{os.minor(path.stat().st_dev)}"))
    assert (device / "device" / "vendor").read_text().strip() == "LIO-ORG"
    (path / "data").write_text("one")
    with pytest.raises(CsiError) as failure:
        await client.delete_volume("v")
    assert failure.value.code is Code.FAILED_PRECONDITION
    await kubelet.stop("v")
    assert targets() == []

    path = await kubelet.start("v")
    assert (path / "data").read_text() == "one"
    await client.expand_volume("v", 2 * GI)
    await client.expand("v", path, 2 * GI, MOUNT)
    assert os.statvfs(path).f_blocks * os.statvfs(path).f_frsize > 1.8 * GI
    await client.create_snapshot("s", "v")
    (path / "data").write_text("two")

    await client.create_volume("copy", 2 * GI, [MOUNT], source=ContentSource(snapshot_id="s"))
    copy = await kubelet.start("copy")
    assert ((copy / "data").read_text(), (path / "data").read_text()) == ("one", "two")
    assert len(targets()) == 2
    await kubelet.stop("copy")
    await kubelet.stop("v")
    await client.delete_volume("copy")
    await client.delete_snapshot("s")
    await client.delete_volume("v")
    assert (await client.list_volumes(), lvs().strip(), targets()) == ([], "", [])
    assert (await client.get_capacity()).available == free
    assert not list(Path("/sys/class/iscsi_session").glob("session*"))
