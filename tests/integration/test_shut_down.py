"""A volume whose kernel shuts its file system down under a running pod of the box: it is named, its pod ends, and the
next pod has its data."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import Cluster, verb
from tests.programs import need

from tonnage.host import mount
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Event
from tonnage.kubernetes.api.kinds import CLAIMS, EVENTS, PODS, STORAGE_CLASSES
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

pytestmark = pytest.mark.real
_SHUT_DOWN = 0x8004587D  # XFS_IOC_GOINGDOWN
_LOG_LEFT = 2
EIO = "Input/output error"
CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "xfs"},
    "provisioner": names.DRIVER,
    "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
    "parameters": {names.CSI_FSTYPE: "xfs"},
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "xfs",
        "resources": {"requests": {"storage": "320Mi"}},
    },
}


def pod(name: str) -> dict[str, Any]:
    """A pod with the claim, and a part of it by subPath."""
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/part", "subPath": "part"}]
    main = {"name": "main", "image": "x", "command": ["sleep", "infinity"], "volumeMounts": mounts}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    spec = {"terminationGracePeriodSeconds": 0, "containers": [main], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _volume_mounts(folder: Path) -> list[mount.Mount]:
    return [entry for entry in mount.mounts() if entry.target.startswith(f"{folder}/") and entry.fstype == "xfs"]


def shut_down(folder: Path) -> None:
    """What the kernel does after an error of the disk; skips where its xfs has no such ioctl."""
    os.sync()
    fd = os.open(_volume_mounts(folder)[0].target, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _SHUT_DOWN, struct.pack("=I", _LOG_LEFT))
    finally:
        os.close(fd)


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """One node."""
    made = make_cluster("--nodes", "1", "--pool", "image,name=scratch,size=2Gi,sparse=yes")
    made.up()
    yield made
    made.down("--purge")


def test_the_pod_ends_and_the_next_one_has_the_data(cluster: Cluster) -> None:
    def run(*objects: dict[str, Any]) -> None:
        body = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
        cluster.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")

    run(CLASS, CLAIM, pod("first"))
    cluster.kubectl("exec", "first", "--", "sh", "-c", "echo kept > /data/file; echo too > /part/file; sync")
    shut_down(cluster.data)

    assert "abnormal" in verb("doctor", "--data", str(cluster.data)).stdout
    assert EIO in verb("volumes", "list", "--data", str(cluster.data)).stderr
    cluster.kubectl("delete", "pod/first", "--timeout=120s")
    run(pod("second"))
    assert cluster.kubectl("exec", "second", "--", "cat", "/data/file", "/part/file").split() == ["kept", "too"]
    cluster.kubectl("delete", "pod/second", "pvc/data", "--timeout=120s")
    cluster.until("the volume is gone", lambda: not cluster.images())


async def test_an_event_of_the_claim_says_so(tmp_path: Path) -> None:
    need("mkfs.xfs")
    data = DataFolder(tmp_path / "d")
    box = Box(data, plan(data, Settings(nodes=1, pools=["image,size=2Gi,sparse=yes"], runtime="none")))
    await box.start()
    try:
        await box.client.create(STORAGE_CLASSES, CLASS)
        await box.client.create(CLAIMS, CLAIM, "default")
        await box.client.create(PODS, pod("first"), "default")
        await _until(lambda: _is_running(box, "first"))
        shut_down(tmp_path)
        agent = box.nodes["node-1"].agent
        (driver,) = agent.context.drivers
        await agent.health.look(driver)  # as it does each minute or two
        (event,) = await _until(lambda: _events(box, "VolumeConditionAbnormal"))
        assert EIO in event.message

        await box.client.delete(PODS, "first", "default")
        await _until(lambda: _is_gone(tmp_path))
        await box.client.create(PODS, pod("second"), "default")
        await _until(lambda: _is_running(box, "second"))
        await agent.health.look(driver)
        await _until(lambda: _events(box, "VolumeConditionNormal"))
    finally:
        await box.stop()
        for entry in _volume_mounts(tmp_path):
            mount.umount(entry.target, lazy=True)


async def _until(ask: Callable[[], Any]) -> Any:
    async with asyncio.timeout(120):
        while not (found := await ask()):
            await asyncio.sleep(0.05)
        return found


async def _is_running(box: Box, name: str) -> bool:
    return (await box.client.get(PODS, name, "default")).status.phase == "Running"


async def _is_gone(folder: Path) -> bool:
    return not _volume_mounts(folder)


async def _events(box: Box, reason: str) -> list[Event]:
    return [event for event in (await box.client.list(EVENTS)).items if event.reason == reason]
