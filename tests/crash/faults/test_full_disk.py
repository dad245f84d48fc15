"""A box on a small disk of its own that its volumes fill: what ends, and what goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.errors import ApiError
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS, CONFIG_MAPS, EVENTS, NODES, PODS, VOLUMES
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage_box.api.wait import until, until_gone
from tonnage_box.cli.workloads import pod_with
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.kubelet.node_status import NodeObject
from tonnage_box.plan import plan

MI = 1 << 20


@pytest.fixture
def small_disk(real_folder: Path) -> Path:
    """An ext4 of 160 MiB."""
    image, place = real_folder / "disk", real_folder / "mnt"
    with open(image, "wb") as file:
        file.truncate(160 * MI)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    place.mkdir()
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    return place


def made(folder: Path, pool: str, nodes: int) -> Box:
    data = DataFolder(folder)
    return Box(data, plan(data, Settings(nodes=nodes, pools=[pool], runtime="none")))


def is_running(pod: Pod) -> bool:
    return pod.status.phase == "Running"


def has_pressure(node: Node) -> bool:
    return any(c.type == "DiskPressure" and c.status == "True" for c in node.status.conditions)


def fill(folder: Path) -> int:
    """Write until the disk rejects; how many bytes."""
    written = 0
    for size in (MI, 4096):
        with suppress(OSError), open(folder / "fill", "ab", buffering=0) as file:
            while True:
                written += file.write(b"x" * size)
                os.fsync(file.fileno())
    return written


async def objects(client: Client, count: int) -> None:
    """Make objects of 500 kB."""
    for n in range(count):
        body = {"metadata": {"name": f"large-{n}"}, "data": {"key": "x" * 500_000}}
        await client.create(CONFIG_MAPS, body, "default")


async def published(box: Box) -> list[int]:
    found = await box.client.list(CAPACITIES)
    return [to_bytes(c.capacity) for c in found.items if c.capacity]


@pytest.mark.real
async def test_nodes_on_one_disk_publish_no_more_than_it_has(small_disk: Path) -> None:
    box = made(small_disk / "d", "image,name=scratch,size=1Gi,sparse=yes", 3)
    await box.start()
    try:
        found = os.statvfs(small_disk)
        each = await published(box)
        assert len(each) >= 3
        classes = len(each) // 3
        assert 30 * MI < sum(each) // classes <= found.f_bavail * found.f_frsize
    finally:
        await box.stop()


@pytest.mark.real
async def test_volumes_that_fill_the_disk_of_the_database_can_be_deleted(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overcommitted: one volume is written until the disk is full."""
    monkeypatch.setattr(NodeObject, "disk_every", 0.1)
    box = made(small_disk / "d", "image,name=scratch,size=10Gi,sparse=yes,overcommit=yes", 1)
    await box.start()
    try:
        client = box.client
        assert sum(await published(box)) > 10 << 30
        for name in ("p", "q"):
            await client.create(PODS, pod_with(name, {"data": "200Mi"}), "default")
            await until(client, PODS, name, is_running, namespace="default")
        mounted = next((small_disk / "d/nodes/node-1/kubelet/pods").glob("*/volumes/*/*/mount"))
        await asyncio.to_thread(fill, mounted)
        await asyncio.to_thread(fill, small_disk)  # the volume's file system may leave some blocks
        assert os.statvfs(small_disk).f_bavail < 8

        node = await until(client, NODES, "node-1", has_pressure)
        with pytest.raises(ApiError, match="is full: nothing was written; free space on it"):
            await objects(client, 40)

        reasons: set[str] = set()

        async def told() -> None:
            while "NodeHasDiskPressure" not in reasons:
                reasons.update(e.reason for e in (await client.list(EVENTS)).items)
                await asyncio.sleep(0.05)

        await asyncio.wait_for(told(), 120)
        status = {"status": {"conditions": [{"type": "Checked", "status": "True", "reason": "Test", "message": "m"}]}}
        await client.patch(NODES, node.metadata.name, status, subresource="status")
        for name in ("p", "q"):
            await client.delete(PODS, name, "default", grace_seconds=0)
        await until_gone(client, PODS)
        await until_gone(client, CLAIMS)
        await until_gone(client, VOLUMES)
        (small_disk / "fill").unlink()

        await until(client, NODES, "node-1", lambda n: not has_pressure(n))
        await client.create(PODS, pod_with("r", {"data": "32Mi"}), "default")
        await until(client, PODS, "r", is_running, namespace="default")
        store: Any = box._server.store if box._server is not None else None
        assert store._file._pieces == 32
    finally:
        await box.stop()
