"""Node through a real socket: stage and publish, their repeats, their rejections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.csi.full_client import FullCsiClient

from tonnage.base.errors import UnavailableError
from tonnage.csi.client.types import AccessMode, CreatedVolume, NodeInfo, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fake.backend import FEATURES, FakePool

GIB = 1 << 30
MOUNT = VolumeCapability()
BLOCK = VolumeCapability(block=True)

Rejected = Callable[..., Awaitable[CsiError]]


@pytest.fixture
async def volume(client: FullCsiClient) -> CreatedVolume:
    """A volume of 1 GiB."""
    return await client.create_volume("pvc-1", GIB, [MOUNT])


@pytest.fixture
def staging(folder: Path) -> Path:
    """A staging folder, as the kubelet makes it."""
    path = folder / "globalmount"
    path.mkdir()
    return path


@pytest.fixture
def target(folder: Path) -> Path:
    """A target whose folder exists, as the kubelet makes it."""
    (folder / "pod").mkdir()
    return folder / "pod" / "mount"


async def test_node_info(client: FullCsiClient) -> None:
    assert await client.node_info() == NodeInfo("node-1", 0, {names.TOPOLOGY_NODE: "node-1"})
    assert await client.node_capabilities() == {
        "STAGE_UNSTAGE_VOLUME",
        "GET_VOLUME_STATS",
        "SINGLE_NODE_MULTI_WRITER",
        "VOLUME_CONDITION",
        "EXPAND_VOLUME",
    }


class BoundedPool(FakePool):
    """Can have so many volumes; or none can say."""

    def __init__(self, name: str, kind: str, most: int) -> None:
        super().__init__(name, GIB, features=replace(FEATURES, kind=kind, shares_limit=kind == "image"))
        self._most = most

    async def volume_limit(self) -> int:
        """See Pool."""
        if self._most < 0:
            raise UnavailableError("its disk is gone")
        return self._most


@pytest.mark.parametrize(
    ("pools", "configured", "told"),
    [
        ([("a", "lvm", 100)], 0, 100),
        ([("a", "lvm", 100)], 40, 40),
        ([("a", "lvm", 100)], 400, 100),
        ([("a", "lvm", 100), ("b", "lvm", 50)], 0, 150),
        ([("a", "image", 256), ("b", "image", 256)], 0, 256),
        ([("a", "image", 256), ("b", "image", 256), ("c", "lvm", 10)], 0, 266),
        ([("a", "lvm", 100), ("b", "btrfs", 0)], 0, 0),
        ([("a", "lvm", 100), ("b", "btrfs", 0)], 7, 7),
        ([("a", "lvm", 100), ("b", "lvm", -1)], 0, 0),
    ],
)
async def test_how_many_volumes_a_node_can_have(
    folder: Path, pools: list[tuple[str, str, int]], configured: int, told: int
) -> None:
    made: dict[str, Pool] = {name: BoundedPool(name, kind, most) for name, kind, most in pools}
    driver = Driver("n", made, folder / "state", max_volumes=configured)
    async with DriverEndpoint(driver, folder / "s") as endpoint, FullCsiClient(endpoint.socket) as client:
        assert (await client.node_info()).max_volumes == told


async def test_the_life_of_a_volume_each_step_twice(
    client: FullCsiClient, volume: CreatedVolume, staging: Path, target: Path
) -> None:
    for _ in range(2):
        await client.stage(volume.id, staging, MOUNT, context=volume.context)
    for _ in range(2):
        await client.publish(volume.id, target, MOUNT, staging=staging, context=volume.context)
    assert target.is_dir()
    usage = await client.volume_stats(volume.id, target)
    assert (usage.total, usage.used, usage.available) == (GIB, 0, GIB)
    for _ in range(2):
        await client.unpublish(volume.id, target)
    assert not target.exists()
    for _ in range(2):
        await client.unstage(volume.id, staging)
    await client.delete_volume(volume.id)


async def test_raw_block(client: FullCsiClient, rejected: Rejected, staging: Path, target: Path) -> None:
    volume = await client.create_volume("b", GIB, [BLOCK])
    await rejected(client.stage(volume.id, staging, MOUNT), Code.INVALID_ARGUMENT, "is raw block, requested mount")
    await client.stage(volume.id, staging, BLOCK)
    await client.publish(volume.id, target, BLOCK, staging=staging)
    assert target.exists()
    assert not target.is_dir()
    await client.unpublish(volume.id, target)
    await client.unstage(volume.id, staging)


async def test_publish_that_cannot_be(
    client: FullCsiClient, rejected: Rejected, volume: CreatedVolume, staging: Path, target: Path
) -> None:
    publish = client.publish
    missing = publish(volume.id, target, MOUNT)
    await rejected(missing, Code.FAILED_PRECONDITION, "staging_target_path is missing")
    await rejected(publish(volume.id, target, MOUNT, staging=staging), Code.FAILED_PRECONDITION, "not staged")
    await client.stage(volume.id, staging, MOUNT)
    no_parent = publish(volume.id, target / "deeper" / "mount", MOUNT, staging=staging)
    await rejected(no_parent, Code.FAILED_PRECONDITION, "does not exist")
    await publish(volume.id, target, MOUNT, staging=staging)
    await rejected(publish(volume.id, target, MOUNT, staging=staging, readonly=True), Code.ALREADY_EXISTS)
    reader = VolumeCapability(AccessMode.SINGLE_NODE_READER_ONLY)
    await rejected(publish(volume.id, target, reader, staging=staging), Code.ALREADY_EXISTS)
    await rejected(
        publish(volume.id, target, VolumeCapability(mount_flags=["ro"]), staging=staging), Code.ALREADY_EXISTS
    )


async def test_requests_that_are_wrong(
    client: FullCsiClient, rejected: Rejected, volume: CreatedVolume, staging: Path, target: Path
) -> None:
    bad = Code.INVALID_ARGUMENT
    await rejected(client.stage("", staging, MOUNT), bad, "volume_id is missing")
    await rejected(client.stage(volume.id, "", MOUNT), bad, "staging_target_path is missing")
    await rejected(client.stage(volume.id, "relative", MOUNT), bad, "absolute")
    await rejected(client.stage(volume.id, f"{staging}/../x", MOUNT), bad, "'..'")
    await rejected(client.stage(volume.id, f"{staging}/\0", MOUNT), bad, "NUL")
    await rejected(client.stage(volume.id, "/" + "x" * 10_000, MOUNT), bad, "4095")
    await rejected(client.stage(volume.id, staging, BLOCK), bad, "is a file system, requested block")
    await rejected(client.stage(volume.id, staging, VolumeCapability(fstype="xfs")), bad, "ext4, requested 'xfs'")
    await rejected(client.stage(volume.id, staging, VolumeCapability(mount_flags=["loop"])), bad, "'loop'")
    await rejected(client.stage(volume.id, staging, VolumeCapability(AccessMode(5))), bad, "one node")
    await rejected(client.publish("", target, MOUNT), bad, "volume_id is missing")
    await rejected(client.publish(volume.id, "", MOUNT), bad, "target_path is missing")
    await rejected(client.unpublish("", target), bad, "volume_id is missing")
    await rejected(client.unpublish(volume.id, ""), bad, "target_path is missing")
    await rejected(client.unstage("", staging), bad, "volume_id is missing")
    await rejected(client.unstage(volume.id, ""), bad, "staging_target_path is missing")
    await rejected(client.volume_stats("", target), bad, "volume_id is missing")
    await rejected(client.volume_stats(volume.id, ""), bad, "volume_path is missing")


async def test_a_volume_that_is_not_there(
    client: FullCsiClient, rejected: Rejected, staging: Path, target: Path
) -> None:
    for missing in ("default/nothing", "foreign"):
        await rejected(client.stage(missing, staging, MOUNT), Code.NOT_FOUND)
        await rejected(client.publish(missing, target, MOUNT, staging=staging), Code.NOT_FOUND)
        await rejected(client.volume_stats(missing, staging), Code.NOT_FOUND)
        await client.unpublish(missing, target)
        await client.unstage(missing, staging)


async def test_stats_of_a_path_that_is_not_there(
    client: FullCsiClient, rejected: Rejected, volume: CreatedVolume
) -> None:
    for path in ("/nothing/here", "relative/path"):
        await rejected(client.volume_stats(volume.id, path), Code.NOT_FOUND, path)


async def test_a_pool_that_is_no_longer_served(client: FullCsiClient, rejected: Rejected, staging: Path) -> None:
    gone = "retired/pvc-1"
    await rejected(client.stage(gone, staging, MOUNT), Code.UNAVAILABLE, "'retired' is not served")
    await client.unstage(gone, staging)
    await client.unpublish(gone, staging / "nothing")
    mounted = "/proc"
    await rejected(client.unpublish(gone, mounted), Code.UNAVAILABLE, "configure that pool again")
    await rejected(client.unstage(gone, mounted), Code.UNAVAILABLE, "configure that pool again")


async def test_one_writer_means_one_target(
    client: FullCsiClient, rejected: Rejected, volume: CreatedVolume, staging: Path, target: Path
) -> None:
    once = VolumeCapability(AccessMode.SINGLE_NODE_SINGLE_WRITER)
    await client.stage(volume.id, staging, MOUNT)
    other = target.with_name("other")
    for first, second in ((once, MOUNT), (MOUNT, once)):
        await client.publish(volume.id, target, first, staging=staging)
        await client.publish(volume.id, target, first, staging=staging)
        again = client.publish(volume.id, other, second, staging=staging)
        await rejected(again, Code.FAILED_PRECONDITION, str(target), "one target")
        await client.unpublish(volume.id, target)
    await client.publish(volume.id, target, MOUNT, staging=staging)
    await client.publish(volume.id, other, MOUNT, staging=staging)
