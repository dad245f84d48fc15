"""Limits of IO on a real image pool, held by this machine's cgroups: the kernel's own files and counters are looked at."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.programs import need
from tests.unit.csi.full_client import FullCsiClient

from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.host.iolimits import Cgroup
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

pytestmark = pytest.mark.real
MI = 1 << 20
MOUNT = VolumeCapability()
BLOCK = VolumeCapability(AccessMode.SINGLE_NODE_WRITER, block=True)
SLOW = {"iops": "20", "bandwidth": "100Mi"}


@dataclass
class Rig:
    """A driver that can be started anew, and the group of one pod."""

    folder: Path
    group: Cgroup

    @property
    def uid(self) -> str:
        return self.group.path.name.removeprefix("pod")

    def pool(self) -> Pool:
        return make(parse(f"image:{self.folder / 'pool'},name=p,size=1Gi,sparse=yes,overcommit=yes"))

    def driver(self, pool: Pool) -> Driver:
        return Driver("n", {"p": pool}, self.folder / "state")

    def target(self, name: str = "pv", *, block: bool = False) -> Path:
        """As the kubelet names it."""
        path = f"plugins/kubernetes.io/csi/volumeDevices/publish/{name}/{self.uid}"
        if not block:
            path = f"pods/{self.uid}/volumes/kubernetes.io~csi/{name}/mount"
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        return self.folder / path

    def staging(self, name: str = "pv") -> Path:
        (self.folder / f"staging-{name}").mkdir(exist_ok=True)
        return self.folder / f"staging-{name}"

    def told(self, group: Path | None = None) -> dict[str, tuple[int, int]]:
        """Operations and bytes in a second that the kernel lets through, of devices with limits: of writes, which are
        as those of reads."""
        group = group or self.group.path
        if self.group.v2:
            found = {}
            for line in (group / "io.max").read_text().splitlines():
                device, *pairs = line.split()
                most = {key: 0 if value == "max" else int(value) for key, _, value in (p.partition("=") for p in pairs)}
                assert (most["riops"], most["rbps"]) == (most["wiops"], most["wbps"])
                found[device] = most["wiops"], most["wbps"]
            return found
        reads, writes = (self._v1(group, which) for which in ("read", "write"))
        assert reads == writes
        return writes

    def _v1(self, group: Path, which: str) -> dict[str, tuple[int, int]]:
        values = []
        for unit in ("iops", "bps"):
            lines = (group / f"blkio.throttle.{which}_{unit}_device").read_text().splitlines()
            values.append({device: int(value) for device, value in map(str.split, lines)})
        return {device: (values[0].get(device, 0), values[1].get(device, 0)) for device in {**values[0], **values[1]}}

    def write(self, path: Path, count: int, *, group: Path | None = None) -> float:
        """Seconds for so many direct writes of 4 KiB by a process of the pod."""
        procs = (group or self.group.path) / "cgroup.procs"
        script = (
            f'echo $$ > {procs} && exec dd if=/dev/zero of="{path}" bs=4096 count={count} oflag=direct conv=notrunc'
        )
        began = time.monotonic()
        subprocess.run(["sh", "-c", script], check=True, capture_output=True, timeout=300)
        return time.monotonic() - began


def device_of(path: Path) -> str:
    """Major and minor number of what path is on, or is."""
    found = os.stat(path)
    number = found.st_rdev or found.st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@pytest.fixture
def rig(real_folder: Path, own_group: Cgroup) -> Rig:
    return Rig(real_folder, own_group)


async def _publish(rig: Rig, client: FullCsiClient, vid: str, use: VolumeCapability, *, name: str = "pv") -> Path:
    target = rig.target(name, block=use.block)
    await client.stage(vid, rig.staging(name), use)
    await client.publish(vid, target, use, staging=rig.staging(name))
    return target


async def test_a_pod_writes_no_faster_than_its_volume_allows(rig: Rig, tell: Callable[[str], None]) -> None:
    pool = rig.pool()
    await pool.open()
    async with DriverEndpoint(rig.driver(pool), rig.folder / "s") as endpoint, FullCsiClient(endpoint.socket) as client:
        volume = await client.create_volume("a", 64 * MI, [MOUNT], parameters=SLOW)
        target = await _publish(rig, client, volume.id, MOUNT)
        device = device_of(target)
        assert rig.told() == {device: (20, 100 * MI)}
        slow = rig.write(target / "file", 60)
        await client.modify_volume(volume.id, {"iops": "100000"})
        assert rig.told() == {device: (100000, 100 * MI)}
        fast = rig.write(target / "file", 60)
        tell(f"io limits: 60 writes took {slow:.2f} s at 20 a second, {fast:.2f} s at 100000")
        assert slow > 1.5, "60 writes at 20 a second"
        await client.modify_volume(volume.id, {"iops": "", "bandwidth": "1Mi"})
        assert rig.told() == {device: (20, MI)}, "back to the class's"
        await client.unpublish(volume.id, target)
        assert rig.told() == {}
        await client.unstage(volume.id, rig.staging())
        await client.delete_volume(volume.id)
    await pool.close()


@pytest.mark.parametrize("use", [MOUNT, BLOCK, VolumeCapability(fstype="btrfs")], ids=["ext4", "block", "btrfs"])
async def test_limits_are_set_anew_by_a_fresh_driver(rig: Rig, use: VolumeCapability) -> None:
    if use.fstype:
        need(f"mkfs.{use.fstype}")
    pool = rig.pool()
    await pool.open()
    async with DriverEndpoint(rig.driver(pool), rig.folder / "s") as endpoint, FullCsiClient(endpoint.socket) as client:
        volume = await client.create_volume("a", 256 * MI, [use], parameters=SLOW)
        free = await client.create_volume("b", 256 * MI, [use])
        target = await _publish(rig, client, volume.id, use)
        await _publish(rig, client, free.id, use, name="free")
        held = rig.told()
        assert list(held.values()) == [(20, 100 * MI)]
    await pool.close()

    number = next(iter(held)).split(":")
    rig.group.limit((int(number[0]), int(number[1])))
    assert rig.told() == {}
    pool = rig.pool()
    await pool.open()
    async with DriverEndpoint(rig.driver(pool), rig.folder / "s") as endpoint, FullCsiClient(endpoint.socket) as client:
        assert rig.told() == held
        await client.modify_volume(volume.id, {"iops": "30"})
        assert list(rig.told().values()) == [(30, 100 * MI)]
        await client.unpublish(volume.id, target)
        assert rig.told() == {}
        await client.unpublish(free.id, rig.target("free", block=use.block))
        for vid, name in ((volume.id, "pv"), (free.id, "free")):
            await client.unstage(vid, rig.staging(name))
            await client.delete_volume(vid)
    await pool.close()


async def test_a_read_only_device_is_limited_as_well(rig: Rig) -> None:
    pool = rig.pool()
    await pool.open()
    async with DriverEndpoint(rig.driver(pool), rig.folder / "s") as endpoint, FullCsiClient(endpoint.socket) as client:
        volume = await client.create_volume("a", 64 * MI, [BLOCK], parameters=SLOW)
        target = rig.target(block=True)
        await client.stage(volume.id, rig.staging(), BLOCK)
        await client.publish(volume.id, target, BLOCK, staging=rig.staging(), readonly=True)
        assert rig.told() == {device_of(target): (20, 100 * MI)}
        await client.modify_volume(volume.id, {"iops": "5"})
        assert rig.told() == {device_of(target): (5, 100 * MI)}
        await client.unpublish(volume.id, target)
        assert rig.told() == {}
        await client.unstage(volume.id, rig.staging())
        await client.delete_volume(volume.id)
    await pool.close()


async def test_a_container_that_starts_later_is_limited(
    rig: Rig, until: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    pool = rig.pool()
    await pool.open()
    async with DriverEndpoint(rig.driver(pool), rig.folder / "s") as endpoint, FullCsiClient(endpoint.socket) as client:
        volume = await client.create_volume("a", 64 * MI, [MOUNT], parameters=SLOW)
        target = await _publish(rig, client, volume.id, MOUNT)
        container = rig.group.path / "container"
        container.mkdir()
        try:
            if not rig.group.v2:  # which holds the groups below by itself
                await until(lambda: rig.told(container) == {device_of(target): (20, 100 * MI)})
            assert rig.write(target / "file", 60, group=container) > 1.5
            await client.unpublish(volume.id, target)
            assert rig.told(rig.group.path if rig.group.v2 else container) == {}
        finally:
            container.rmdir()
        await client.unstage(volume.id, rig.staging())
        await client.delete_volume(volume.id)
    await pool.close()
