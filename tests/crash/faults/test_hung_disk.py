"""A disk that answers nothing, neither data nor an error, under a driver and a box: threads in D state."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.crash.kills.fusedisk import Disk
from tests.crash.kills.power import POWERED, powered
from tests.programs import found
from tests.unit.csi.full_client import FullCsiClient

from tonnage.base.errors import UnavailableError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.errors import Code, CsiError
from tonnage.host import loop
from tonnage.host.run import run
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import NODES
from tonnage.node.config.driver import DriverConfig
from tonnage.node.plain_driver import StandaloneDriver
from tonnage.storage.pools.config import parse
from tonnage.storage.pools.core import probe, work
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan
from tonnage_box.testing.wait import eventually, wait_until_served

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
MI = 1024**2
MOUNT = VolumeCapability()


@pytest.fixture
def disk(real_folder: Path) -> Iterator[Disk]:
    """A disk with an ext4, mounted at `<real_folder>/disk`."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse: a disk that hangs")
    kind, blank = POWERED["image on ext4"], real_folder / "blank"
    blank.touch()
    os.truncate(blank, 256 * MI)
    run([*kind.disk, str(blank)])
    for name in "disk", "fuse":
        (real_folder / name).mkdir()
    with powered(kind, real_folder, blank) as made:
        yield made


@asynccontextmanager
async def _driver(socket: Path, *pools: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = [sys.executable, "-m", "tonnage", "driver", "--endpoint", str(socket), "--state", str(socket.parent)]
    process = await asyncio.create_subprocess_exec(*command, *(f"--pool={pool}" for pool in pools))
    try:
        await wait_until_served(socket, timeout=60)
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()


def _states(process: int) -> dict[int, str]:
    """State of each thread, as ps shows it."""
    found = {}
    with suppress(FileNotFoundError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):
                text = Path(f"/proc/{process}/task/{thread}/stat").read_text()
                found[int(thread)] = text.rpartition(")")[2].split()[0]
    return found


async def _create(socket: Path, name: str, pool: str) -> None:
    async with CsiClient(socket, timeout=60) as client:
        await client.create_volume(name, 16 * MI, [MOUNT], parameters={"pool": pool})


async def test_a_driver_with_a_thread_in_d_state_ends_and_the_next_one_serves(real_folder: Path, disk: Disk) -> None:
    socket, well = real_folder / "csi.sock", f"image:{real_folder}/well,name=well,size=64Mi,sparse=yes"
    async with _driver(socket, well, f"image:{real_folder}/disk/pool,name=hung,size=64Mi,sparse=yes") as process:
        with disk.hangs():
            call = asyncio.ensure_future(_create(socket, "v", "hung"))

            async def is_stuck() -> bool:
                return "D" in _states(process.pid).values()

            await eventually(is_stuck)
            await _create(socket, "w", "well")
            process.send_signal(signal.SIGTERM)

            async def has_ended() -> bool:
                """The kernel keeps a process with such a thread; its main thread is gone."""
                return _states(process.pid).get(process.pid, "Z") == "Z"

            await eventually(has_ended)
            assert not socket.exists()
            with pytest.raises((CsiError, UnavailableError)):
                await call
            async with _driver(socket, well) as second:
                await _create(socket, "x", "well")
                second.send_signal(signal.SIGTERM)
                assert await second.wait() == 0
        assert await process.wait() == 0


async def test_every_call_gives_up_few_threads_are_stuck_and_the_other_pool_goes_on(
    real_folder: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, rejected: Callable[..., Awaitable[CsiError]]
) -> None:
    monkeypatch.setattr(probe, "PATIENCE", 1.0)
    monkeypatch.setattr(work, "SLOW", 0.5)
    socket, pools = real_folder / "csi.sock", [f"image:{real_folder}/disk/pool,name=hung,size=200Mi,sparse=yes"]
    pools.append(f"image:{real_folder}/well,name=well,size=64Mi,sparse=yes")
    driver = StandaloneDriver(DriverConfig(socket, [parse(pool) for pool in pools], "n1", real_folder / "state"))
    await driver.start()
    names_ = [f"v{number}" for number in range(6)]
    async with FullCsiClient(socket, timeout=60) as client:

        async def create(name: str, pool: str) -> str:
            return (await client.create_volume(name, 16 * MI, [MOUNT], parameters={"pool": pool})).id

        volumes = [await create(name, "hung") for name in names_]
        with disk.hangs():
            for _ in range(3):  # as the kubelet and the agent repeat them
                deleted = (
                    rejected(client.delete_volume(vid), Code.UNAVAILABLE, "does not answer") for vid in volumes[:2]
                )
                staged = (
                    rejected(client.stage(vid, real_folder / vid[-2:], MOUNT), Code.UNAVAILABLE, "does not answer")
                    for vid in volumes[2:4]
                )
                made = rejected(create("new", "hung"), Code.RESOURCE_EXHAUSTED, "it cannot write")
                both = client.create_group_snapshot("g", volumes[4:])
                grouped = rejected(both, Code.UNAVAILABLE, "does not answer")
                await asyncio.gather(*deleted, *staged, made, grouped)
                stuck = [one.name for one in threading.enumerate() if one.name.startswith("pool-hung")]
                assert len(stuck) <= 7, stuck
                assert len([one for one in threading.enumerate() if one.name.startswith("pool-group")]) <= 1
                other = await create("other", "well")
                await client.stage(other, real_folder / "other", MOUNT)
                await client.unstage(other, real_folder / "other")
                await client.delete_volume(other)
        await _until_done(lambda: client.delete_group_snapshot("g"))
        assert await client.list_snapshots() == []
        for vid in volumes:
            await _until_done(partial(client.unstage, vid, real_folder / vid[-2:]))
            await _until_done(partial(client.delete_volume, vid))
        await _until_done(lambda: create("new", "hung"))
        assert {found.id for found in await client.list_volumes()} == {"hung/new"}
    await driver.stop()


@pytest.fixture
def links(real_folder: Path, disk: Disk) -> Iterator[Path]:
    """A discovery directory with loop devices: `bad` on the disk, `good` on another one."""
    folder, loops = real_folder / "links", list[loop.LoopDevice]()
    folder.mkdir(mode=0o755)
    for name, image, size in ("bad", real_folder / "disk/img", 64 * MI), ("good", real_folder / "img", 96 * MI):
        image.touch()
        os.truncate(image, size)
        with image.open("r+b") as file:
            loops.append(loop.attach(file.fileno(), str(image), autoclear=False))
        (folder / name).symlink_to(loop.device(loops[-1].index))
    yield folder
    for made in loops:
        loop.detach(made.index)
        made.close()


async def test_a_static_pool_gives_up_on_one_disk_and_serves_the_others(
    real_folder: Path,
    disk: Disk,
    links: Path,
    monkeypatch: pytest.MonkeyPatch,
    rejected: Callable[..., Awaitable[CsiError]],
) -> None:
    monkeypatch.setattr(probe, "PATIENCE", 1.0)
    monkeypatch.setattr(work, "SLOW", 0.5)
    socket, ext4 = real_folder / "csi.sock", VolumeCapability(fstype="ext4")
    driver = StandaloneDriver(DriverConfig(socket, [parse(f"static:{links},name=disks")], "n1", real_folder / "state"))
    await driver.start()
    async with FullCsiClient(socket, timeout=60) as client:
        bad, good = [(await client.create_volume(name, size * MI, [ext4])).id for name, size in (("b", 32), ("g", 80))]
        with disk.hangs():
            for _ in range(3):
                await rejected(
                    client.stage(bad, real_folder / "b", ext4), Code.UNAVAILABLE, "/dev/loop", "has not answered"
                )
                stuck = [one.name for one in threading.enumerate() if one.name.startswith("pool-disks")]
                assert len(stuck) <= 6, stuck  # four of its calls and tries, and one for each disk
            await _until_done(lambda: client.stage(good, real_folder / "g", ext4))
        for vid, path in (bad, real_folder / "b"), (good, real_folder / "g"):
            await _until_done(partial(client.stage, vid, path, ext4))
            await client.unstage(vid, path)
            await client.delete_volume(vid)
    await driver.stop()


async def _until_done(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call, as its caller does."""

    async def done() -> bool:
        with suppress(CsiError):
            await call()
            return True
        return False

    await eventually(done)


async def test_the_box_shows_it_as_a_condition_of_the_node(
    real_folder: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = found("kubectl")
    monkeypatch.setattr(probe, "PATIENCE", 1.0)
    data = DataFolder(real_folder / "box")
    pool = f"image:{real_folder}/disk/pool,name=scratch,size=64Mi,sparse=yes"
    box = Box(data, plan(data, Settings(nodes=1, pools=[pool], runtime="none")))
    await box.start()
    try:

        async def status() -> str:
            node = await box.client.get(NODES, "node-1")
            assert node.is_ready
            return next((one.status for one in node.status.conditions if one.type == names.POOL_UNAVAILABLE), "")

        async def becomes(wanted: str) -> bool:
            return await status() == wanted

        (scratch,) = box.nodes["node-1"].driver.pools
        assert await status() == ""
        with disk.hangs():
            await scratch.probe.run()
            await eventually(lambda: becomes("True"))
            shown = await _described(kubectl, box.kubeconfig)
            assert "a write has not ended for 1 s" in shown
            assert names.POOL_UNAVAILABLE in shown
        await eventually(lambda: becomes("False"))
    finally:
        await box.stop()


async def _described(kubectl: Path, kubeconfig: Path) -> str:
    pipe = asyncio.subprocess.PIPE
    command = (kubectl, "--kubeconfig", str(kubeconfig), "describe", "node", "node-1")
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe)
    shown, _ = await process.communicate()
    return shown.decode()
