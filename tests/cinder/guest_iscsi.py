"""A volume's life over iSCSI, by the CSI calls of `tonnage cinder`. Run in user-mode Linux."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.unit.cinder.kubelet import MOUNT, Kubelet

from tonnage.cinder import library
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import ContentSource
from tonnage.csi.errors import Code, CsiError
from tonnage_box.testing.wait import eventually

GI = 1 << 30
BACKENDS = """
backends:
- name: lvm
  volume_driver: cinder.volume.drivers.lvm.LVMVolumeDriver
  volume_group: storage
  lvm_type: {kind}
  target_protocol: iscsi
  target_helper: lioadm
  target_ip_address: 127.0.0.1
  volume_clear_size: 1
"""
TRIES = 5
pytestmark = pytest.mark.timeout(1400)


def start(folder: Path) -> subprocess.Popen[bytes]:
    options = ["--endpoint", f"{folder}/csi.sock", "--config", f"{folder}/cinder.yaml", "--state", f"{folder}/state"]
    options += [
        "--kubelet-root",
        str(folder),
        "--interpreter",
        os.environ["TONNAGE_CINDER_PYTHON"],
        "--time-limit",
        "120",
    ]
    return subprocess.Popen([sys.executable, "-m", "tonnage", "cinder", *options])


@pytest.fixture(params=["thin", "default"])
async def client(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[CsiClient]:
    """A client of the driver over logical volumes of each kind; default: not thin."""
    (tmp_path / "cinder.yaml").write_text(BACKENDS.format(kind=request.param))
    process = start(tmp_path)

    async def is_there() -> bool:
        return (tmp_path / "csi.sock").exists()

    await eventually(is_there, 120)
    async with CsiClient(tmp_path / "csi.sock", timeout=600, node_timeout=600) as found:
        yield found
    process.terminate()
    process.wait()
    remove_logical_volumes()


def logical_volumes() -> set[str]:
    command = ["lvm", "lvs", "--noheadings", "-o", "lv_name", "storage"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return set(found) - {"storage-pool"}  # of which Cinder makes thin ones


def remove_logical_volumes() -> None:
    subprocess.run(["lvm", "lvremove", "--yes", "--quiet", "storage"], check=True)


def targets() -> list[str]:
    folder = Path("/sys/kernel/config/target/iscsi")
    return [path.name for path in folder.glob("iqn*")] if folder.exists() else []


def forget_growth(database: Path) -> None:
    """As if the storage had grown the volume and the child was killed before it recorded that."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("update volumes set size = 1, previous_status = 'extending'")


def check_nothing_is_left() -> None:
    sessions = list(Path("/sys/class/iscsi_session").glob("session*"))
    assert (logical_volumes(), targets(), sessions) == (set(), [], [])


async def test_a_life(client: CsiClient, tmp_path: Path) -> None:
    kubelet = Kubelet(client, tmp_path)
    free = (await client.get_capacity()).available
    assert 8 * GI <= free <= 10 * GI
    assert (await client.create_volume("v", GI // 2, [MOUNT])).size == GI
    path = await kubelet.start("v")
    number = path.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/device")
    assert (device / "vendor").read_text().strip() == "LIO-ORG"
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
    os.sync()  # what a snapshot has is what the storage has
    await client.create_snapshot("s", "v")
    (path / "data").write_text("two")

    await client.create_volume("copy", 2 * GI, [MOUNT], source=ContentSource(snapshot_id="s"))
    copy = await kubelet.start("copy")
    assert ((copy / "data").read_text(), (path / "data").read_text()) == ("one", "two")
    assert len(targets()) == 2
    for name in ("copy", "v"):
        await kubelet.stop(name)
    await client.delete_volume("copy")
    await client.delete_snapshot("s")
    forget_growth(tmp_path / "state" / "controller" / "cinder.sqlite")
    assert 2 * GI <= (await client.expand_volume("v", 2 * GI)).size <= 3 * GI
    await client.delete_volume("v")
    assert await client.list_volumes() == []
    check_nothing_is_left()
    assert (await client.get_capacity()).available == free


async def test_killed_in_the_middle_of_each_call(client: CsiClient, tmp_path: Path) -> None:
    kubelet, moments = Kubelet(client, tmp_path), random.Random(1)
    source = ContentSource(snapshot_id="s")
    await client.get_capacity()
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: client.create_volume("v", GI, [MOUNT]),
        lambda: kubelet.start("v"),
        lambda: client.expand_volume("v", 2 * GI),
        lambda: client.create_snapshot("s", "v"),
        lambda: kubelet.stop("v"),
        lambda: client.create_volume("copy", 2 * GI, [MOUNT], source=source),
        lambda: kubelet.start("copy"),
        lambda: kubelet.stop("copy"),
        lambda: client.delete_volume("copy"),
        lambda: client.delete_snapshot("s"),
        lambda: client.delete_volume("v"),
    ]
    for step in steps:
        await killed(step, moments.uniform(0.1, 3.0))
        await repeated(step)
    check_nothing_is_left()


async def killed(step: Callable[[], Awaitable[object]], seconds: float) -> None:
    """Kill the children some time after a call began."""
    running = asyncio.ensure_future(step())
    await asyncio.sleep(seconds)
    mark = os.fsencode(library.__file__)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
    with suppress(CsiError):
        await running


async def repeated(step: Callable[[], Awaitable[object]]) -> None:
    for _ in range(TRIES - 1):
        with suppress(CsiError):
            await step()
            return
    await step()
