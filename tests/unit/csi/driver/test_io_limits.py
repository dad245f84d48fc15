"""Limits of IO: whose cgroup gets them, when they are changed and taken away, and what cannot be held."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.csi.full_client import FullCsiClient

from tonnage.base.errors import HostError, UnsupportedError
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.io_limits import Throttle, pod_of
from tonnage.csi.errors import Code, CsiError
from tonnage.host.iolimits import Cgroups
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.contract import PoolVolume
from tonnage.storage.pools.base.parameters import LIMITS
from tonnage.storage.pools.fake.backend import FEATURES, FakePool

GIB = 1 << 30
MOUNT = VolumeCapability()
SLOW = {"iops": "100", "bandwidth": "1Mi"}
UIDS = ("0f1e2d3c-1111-2222-3333-444455556666", "0f1e2d3c-1111-2222-3333-444455556667")
HELD = "7:99 riops=100 wiops=100 rbps=1048576 wbps=1048576"
FREE = "7:99 riops=max wiops=max rbps=max wbps=max"

Rejected = Callable[..., Awaitable[CsiError]]


class DevicePool(FakePool):
    """Says that its volumes are a device."""

    def __init__(self, name: str, size: int) -> None:
        limited = FEATURES.parameters | LIMITS
        super().__init__(name, size, features=replace(FEATURES, parameters=limited, modifiable=limited))

    async def device(self, name: str) -> tuple[int, int] | None:
        """See Pool."""
        await self.get(name)
        return (7, 99) if self.fake.staged.get(name) else None


@pytest.fixture
def pool() -> FakePool:
    """Instead of the plain one."""
    return DevicePool("default", 100 * GIB)


@pytest.fixture
def top(folder: Path) -> Path:
    """A cgroup v2 hierarchy as a kubelet fills it, with the groups of two pods."""
    top = folder / "cgroup"
    for uid in UIDS:
        (top / "kubepods" / f"pod{uid}").mkdir(parents=True)
        (top / "kubepods" / f"pod{uid}" / "io.max").touch()
    (top / "cgroup.controllers").write_text("io\n")
    return top


@pytest.fixture
def driver(folder: Path, pool: FakePool, fast: FakePool, top: Path) -> Driver:
    """With that hierarchy."""
    throttle = Throttle(Cgroups(top))
    return Driver("node-1", {"default": pool, "fast": fast}, folder / "state", throttle=throttle)


@pytest.fixture
def show(client: FullCsiClient, folder: Path) -> Callable[..., Awaitable[Path]]:
    """Stages a volume and publishes it for a pod; the target."""

    async def publish(volume_id: str, uid: str, *, path: str = "pods/{}/volumes/kubernetes.io~csi/pv/mount") -> Path:
        staging, target = folder / "globalmount", folder / path.format(uid)
        staging.mkdir(exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        await client.stage(volume_id, staging, MOUNT)
        await client.publish(volume_id, target, MOUNT, staging=staging)
        return target

    return publish


Show = Callable[..., Awaitable[Path]]


def limits(top: Path, uid: str) -> str:
    """What the pod's group was told last."""
    return (top / "kubepods" / f"pod{uid}" / "io.max").read_text()


def forget(top: Path) -> None:
    """Empty the files, which unlike the kernel's keep the tail of longer lines."""
    for uid in UIDS:
        (top / "kubepods" / f"pod{uid}" / "io.max").write_text("")


async def test_limits_come_with_publish_and_go_with_unpublish(client: FullCsiClient, show: Show, top: Path) -> None:
    volume = await client.create_volume("a", GIB, [MOUNT], parameters=SLOW)
    target = await show(volume.id, UIDS[0])
    assert (limits(top, UIDS[0]), limits(top, UIDS[1])) == (HELD, "")
    await show(volume.id, UIDS[0])
    other = await show(volume.id, UIDS[1])
    assert limits(top, UIDS[1]) == HELD
    forget(top)
    await client.unpublish(volume.id, target)
    assert (limits(top, UIDS[0]), limits(top, UIDS[1])) == (FREE, "")
    await client.unpublish(volume.id, other)
    assert limits(top, UIDS[1]) == FREE


async def test_a_change_holds_at_once_for_all_pods(client: FullCsiClient, show: Show, top: Path) -> None:
    volume = await client.create_volume("a", GIB, [MOUNT])
    for uid in UIDS:
        await show(volume.id, uid)
    assert limits(top, UIDS[0]) == ""
    await client.modify_volume(volume.id, SLOW)
    assert limits(top, UIDS[0]) == "", "no mount is there, and it was published without limits"
    for uid in UIDS:
        await show(volume.id, uid)  # as the kubelet repeats it
    await client.modify_volume(volume.id, {"iops": "500"})
    for uid in UIDS:
        assert limits(top, uid).startswith("7:99 riops=500 wiops=500 rbps=1048576")
    forget(top)
    await client.modify_volume(volume.id, {"iops": "", "bandwidth": ""})
    assert [limits(top, uid) for uid in UIDS] == [FREE, FREE]


async def test_a_pod_without_a_cgroup_gets_no_volume_with_limits(
    client: FullCsiClient, rejected: Rejected, show: Show, folder: Path
) -> None:
    volume = await client.create_volume("a", GIB, [MOUNT], parameters=SLOW)
    stranger = UIDS[0].replace("0f", "ff")
    await rejected(show(volume.id, stranger), Code.FAILED_PRECONDITION, "limits of IO", f"pod {stranger} has no cgroup")
    await rejected(show(volume.id, "x", path="alloc/{}"), Code.FAILED_PRECONDITION, "tells of no pod", "ioCgroup")
    assert not (folder / "alloc" / "x").exists()
    plain = await client.create_volume("b", GIB, [MOUNT])
    await show(plain.id, stranger)


async def test_a_limit_that_the_kernel_rejects_leaves_nothing_published(
    client: FullCsiClient, rejected: Rejected, show: Show, top: Path, folder: Path
) -> None:
    volume = await client.create_volume("a", GIB, [MOUNT], parameters=SLOW)
    (top / "kubepods" / f"pod{UIDS[0]}" / "io.max").unlink()
    await rejected(show(volume.id, UIDS[0]), Code.INTERNAL, "io.max", "the io controller is not on")
    assert not (folder / "pods" / UIDS[0] / "volumes" / "kubernetes.io~csi" / "pv" / "mount").exists()


async def test_a_failed_unpublish_leaves_the_limits(
    client: FullCsiClient, show: Show, top: Path, driver: Driver
) -> None:
    volume = await client.create_volume("a", GIB, [MOUNT], parameters=SLOW)
    target = await show(volume.id, UIDS[0])

    async def unpublish() -> None:
        async with driver.throttle.released(target):
            assert limits(top, UIDS[0]).startswith(FREE)
            forget(top)
            raise HostError("busy")

    with pytest.raises(HostError, match="busy"):
        await unpublish()
    assert limits(top, UIDS[0]) == HELD


async def test_an_inline_volume_has_limits_too(
    client: FullCsiClient, rejected: Rejected, folder: Path, top: Path
) -> None:
    context = {names.CSI_EPHEMERAL: "true", "size": "1Gi", names.CSI_POD_UID: UIDS[0], **SLOW}
    target = folder / "pods" / UIDS[0] / "volumes" / "kubernetes.io~csi" / "v" / "mount"
    target.parent.mkdir(parents=True)
    await client.publish("csi-1", target, MOUNT, context=context)
    assert limits(top, UIDS[0]) == HELD
    forget(top)
    await client.unpublish("csi-1", target)
    assert limits(top, UIDS[0]) == FREE
    (top / "kubepods" / f"pod{UIDS[0]}" / "io.max").unlink()
    await rejected(client.publish("csi-1", target, MOUNT, context=context), Code.INTERNAL, "io.max")
    assert not target.exists()


async def test_where_io_cannot_be_limited_it_is_rejected_at_once(
    client: FullCsiClient, rejected: Rejected, top: Path, pool: FakePool
) -> None:
    volume = await client.create_volume("b", GIB, [MOUNT])
    (top / "cgroup.controllers").write_text("memory")
    bad = Code.INVALID_ARGUMENT
    await rejected(client.create_volume("a", GIB, [MOUNT], parameters=SLOW), bad, "cannot be limited on this node")
    await rejected(client.get_capacity(SLOW), bad, "cannot be limited on this node")
    await rejected(client.create_volume("a", GIB, [MOUNT], mutable_parameters=SLOW), bad, "cannot be limited")
    await rejected(client.modify_volume(volume.id, SLOW), bad, "cannot be limited")
    assert [found.name for found in await pool.list()] == ["b"]


async def test_a_change_that_is_recorded_but_cannot_be_held_is_no_invalid_argument(
    client: FullCsiClient, rejected: Rejected, driver: Driver, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INVALID_ARGUMENT says that nothing was changed, so the caller would keep the former class."""
    volume = await client.create_volume("a", GIB, [MOUNT])

    async def gone(*_: object) -> None:
        raise UnsupportedError("the controller io is gone")

    monkeypatch.setattr(driver.throttle, "reapply", gone)
    await rejected(client.modify_volume(volume.id, SLOW), Code.FAILED_PRECONDITION, "the controller io is gone")
    assert (await pool.get("a")).effective["iops"] == "100"


async def test_a_group_of_the_orchestrator(folder: Path, pool: FakePool, top: Path) -> None:
    group = top / "nomad.slice"
    group.mkdir()
    (group / "io.max").touch()
    async with _served(folder, pool, Throttle(Cgroups(top), group="nomad.slice")) as client:
        volume = await client.create_volume("a", GIB, [MOUNT], parameters=SLOW)
        staging, target = folder / "staging", folder / "alloc"
        staging.mkdir()
        await client.stage(volume.id, staging, MOUNT)
        await client.publish(volume.id, target, MOUNT, staging=staging)
        assert (group / "io.max").read_text() == HELD
        second = folder / "alloc2"
        await client.publish(volume.id, second, MOUNT, staging=staging)
        (group / "io.max").write_text("")
        await client.unpublish(volume.id, target)
        assert (group / "io.max").read_text() == "", "the other one is still held by it"
        await client.unpublish(volume.id, second)
        assert (group / "io.max").read_text() == FREE


@asynccontextmanager
async def _served(folder: Path, pool: FakePool, throttle: Throttle) -> AsyncIterator[FullCsiClient]:
    driver = Driver("n", {pool.name: pool}, folder / "state", throttle=throttle)
    async with DriverEndpoint(driver, folder / "own.sock") as endpoint, FullCsiClient(endpoint.socket) as client:
        yield client


async def test_v1_containers_that_come_later_are_limited_too(
    folder: Path, pool: FakePool, until: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    pod = folder / "cgroup" / "blkio" / "kubepods" / f"pod{UIDS[0]}"
    files = [f"blkio.throttle.{key}_device" for key in ("read_iops", "write_iops", "read_bps", "write_bps")]
    pod.mkdir(parents=True)
    for path in (folder / "cgroup" / "blkio" / "cgroup.procs", *(pod / file for file in files)):
        path.touch()
    async with _served(folder, pool, Throttle(Cgroups(folder / "cgroup"))) as client:
        volume = await client.create_volume("a", GIB, [MOUNT], parameters=SLOW)
        staging, target = (
            folder / "staging",
            folder / "pods" / UIDS[0] / "volumes" / "kubernetes.io~csi" / "pv" / "mount",
        )
        staging.mkdir()
        target.parent.mkdir(parents=True)
        await client.stage(volume.id, staging, MOUNT)
        await client.publish(volume.id, target, MOUNT, staging=staging)
        assert [(pod / file).read_text() for file in files] == ["7:99 100", "7:99 100", "7:99 1048576", "7:99 1048576"]
        made = folder / "container"
        made.mkdir()
        for file in files:
            (made / file).touch()
        os.rename(made, pod / "container")  # the kernel's groups have their files from the start
        await until(lambda: (pod / "container" / files[3]).read_text() == "7:99 1048576")
        await client.unpublish(volume.id, target)
        assert (pod / "container" / files[0]).read_text().startswith("7:99 0")


def test_a_pod_is_read_from_a_kubelets_paths() -> None:
    assert pod_of(Path("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pv/mount")) == "u-1"
    assert pod_of(Path("/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv/u-1")) == "u-1"
    for other in ("/var/lib/kubelet/plugins/kubernetes.io/csi/d/x/globalmount", "/alloc/u-1", "/pods/u-1/etc"):
        assert pod_of(Path(other)) == ""


def test_a_record_with_limits_is_read_as_the_class_and_what_was_changed() -> None:
    volume = PoolVolume("a", 1, parameters=SLOW, mutable={"iops": "7"})
    assert dict(volume.effective) == {"iops": "7", "bandwidth": "1Mi"}
