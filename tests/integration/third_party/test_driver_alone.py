"""Upstream's csi-snapshotter and external-resizer with our driver alone: no agent, no kubelet, no node of the box.

Upstream's snapshot-controller makes the contents. Claims and volumes are written by hand, pods are played by calls of the
driver's node service.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peer import peer
from tests.integration.third_party.programs import SNAPSHOTS as CONTROLLER
from tests.programs import found
from tests.unit.controller.snapshots.world import World

from tonnage.base.aio.clock import RealClock
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import AccessMode, ContentSource, CreatedVolume, VolumeCapability
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, SNAPSHOTS, STORAGE_CLASSES, VOLUMES
from tonnage_box.apiserver.server.auth import ensure, write_kubeconfig
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.testing import apiserver

pytestmark = [pytest.mark.real, pytest.mark.programs, pytest.mark.timeout(600)]
MI = 1 << 20
ACCESS = VolumeCapability(AccessMode.SINGLE_NODE_WRITER, fstype="ext4")
CLASS = {
    "metadata": {"name": "grows"},
    "provisioner": names.DRIVER,
    "allowVolumeExpansion": True,
}


@dataclass
class DriverAlone:
    """The driver and the API server that upstream's programs work with. folder: for mounts."""

    world: World
    driver: CsiClient
    folder: Path

    async def bound(self, volume: CreatedVolume) -> None:
        """A bound claim `data` of the volume, as a provisioner and the controllers of volumes leave it."""
        spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": "grows"}
        kube, asked = self.world.kube, {"requests": {"storage": f"{volume.size}"}}
        await kube.create(STORAGE_CLASSES, CLASS)
        claim = await kube.create(
            CLAIMS, {"metadata": {"name": "data"}, "spec": spec | {"resources": asked}}, "default"
        )
        ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": claim.metadata.uid}
        source = {"csi": {"driver": names.DRIVER, "volumeHandle": volume.id}}
        spec |= {"capacity": {"storage": f"{volume.size}"}, "claimRef": ref, **source}
        await kube.create(VOLUMES, {"metadata": {"name": "v-data"}, "spec": spec})
        await kube.patch(VOLUMES, "v-data", {"status": {"phase": "Bound"}}, subresource="status")
        marks = {"annotations": {names.BIND_COMPLETED: "yes"}}
        await kube.patch(CLAIMS, "data", {"metadata": marks, "spec": {"volumeName": "v-data"}}, "default")
        status = {"phase": "Bound", "capacity": {"storage": f"{volume.size}"}, "accessModes": ["ReadWriteOnce"]}
        await kube.patch(CLAIMS, "data", {"status": status}, "default", subresource="status")

    @asynccontextmanager
    async def mounted(self, volume: str) -> AsyncIterator[Path]:
        """The volume as a pod sees it."""
        staging, target = self.folder / "staging", self.folder / "pod" / "target"
        for path in (staging, target.parent):
            path.mkdir(exist_ok=True)
        await self.driver.stage(volume, staging, ACCESS)
        await self.driver.publish(volume, target, ACCESS, staging=staging)
        try:
            yield target
        finally:
            await self.driver.unpublish(volume, target)
            await self.driver.unstage(volume, staging)


def _size(path: Path) -> int:
    """Bytes of the file system at a path."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


@pytest.fixture
async def alone(real_folder: Path) -> AsyncIterator[DriverAlone]:
    """All programs, each a process."""
    programs = {name: found(name) for name in (CONTROLLER, peer.SNAPSHOTTER, "csi-resizer")}
    credentials = ensure(real_folder / "credentials", RealClock())
    server = ApiServer(Store(extractor()), credentials=credentials)
    await server.start()
    kubeconfig, socket = real_folder / "kubeconfig", real_folder / "csi.sock"
    write_kubeconfig(kubeconfig, await server.listen(), credentials)
    pool = f"image:{real_folder}/pool,name=scratch,size=4Gi,sparse=yes,overcommit=yes"
    ours = [sys.executable, "-m", "tonnage", "driver", f"--endpoint=unix://{socket}", f"--pool={pool}"]
    sidecar = [f"--csi-address={socket}", f"--kubeconfig={kubeconfig}", "-v=4"]
    started = [
        await _start(real_folder, "driver", *ours, "--node-name=alone", f"--state={real_folder}/state"),
        await _start(real_folder, CONTROLLER, str(programs[CONTROLLER]), f"--kubeconfig={kubeconfig}"),
    ]
    await _until("the driver listens", lambda: asyncio.to_thread(socket.exists))
    sidecars = (peer.SNAPSHOTTER, "csi-resizer")
    started += [await _start(real_folder, name, str(programs[name]), *sidecar) for name in sidecars]
    async with CsiClient(socket) as driver:
        yield DriverAlone(World(apiserver.client(server)), driver, real_folder)
    for process in reversed(started):
        assert process.returncode is None, "it has ended by itself"
        process.terminate()
        await process.wait()
    await server.stop()
    for name in (CONTROLLER, peer.SNAPSHOTTER, "csi-resizer"):
        said = (real_folder / f"{name}.log").read_text()
        assert not re.findall(r"^E.*(?:Unsupported|not acceptable|cannot be handled|panic).*", said, re.MULTILINE)


async def _start(folder: Path, name: str, *command: str) -> asyncio.subprocess.Process:
    with (folder / f"{name}.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)


async def _until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(1200):
        if await holds():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not so after 120 s: {what}")


async def test_a_snapshot_is_made_restored_by_its_id_and_deleted(alone: DriverAlone) -> None:
    world, driver = alone.world, alone.driver
    volume = await driver.create_volume("original", 64 * MI, [ACCESS])
    async with alone.mounted(volume.id) as target:
        (target / "file").write_text("monday")
    await alone.bound(volume)
    await world.classed()

    await world.snapshot(of_class="tonnage")

    async def ready() -> bool:
        found = await world.get()
        return found is not None and bool(found.status.ready_to_use)

    await _until("ready", ready)
    async with alone.mounted(volume.id) as target:
        (target / "file").write_text("tuesday")
    (content,) = await world.contents()
    (snapshot,) = await driver.list_snapshots()
    assert content.handle == snapshot.id
    assert content.status.restore_size == snapshot.size == volume.size

    restored = await driver.create_volume("copy", volume.size, [ACCESS], source=ContentSource(content.handle))
    async with alone.mounted(restored.id) as target:
        assert (target / "file").read_text() == "monday"

    await world.kube.delete(SNAPSHOTS, "monday", "default")

    async def gone() -> bool:
        return not await world.contents() and await world.get() is None

    await _until("gone", gone)
    assert await driver.list_snapshots() == []
    for made in (restored, volume):
        await driver.delete_volume(made.id)


async def test_a_volume_grows(alone: DriverAlone) -> None:
    kube, driver = alone.world.kube, alone.driver
    volume = await driver.create_volume("growing", 64 * MI, [ACCESS])
    await alone.bound(volume)
    async with alone.mounted(volume.id) as target:
        before = _size(target)

    more = {"spec": {"resources": {"requests": {"storage": "128Mi"}}}}
    await kube.patch(CLAIMS, "data", more, "default")

    async def grown() -> bool:
        return (await kube.get(VOLUMES, "v-data")).spec.capacity.get("storage") == "128Mi"

    await _until("the volume has the size", grown)
    (listed,) = await driver.list_volumes()
    assert listed.size == 128 * MI
    async with alone.mounted(volume.id) as target:
        await driver.expand(volume.id, target, 128 * MI, ACCESS)
        assert _size(target) - before > 56 * MI
    await driver.delete_volume(volume.id)
