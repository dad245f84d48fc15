"""The configuration of a driver, and what its services share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30
MOUNT = [VolumeCapability()]
Rejected = Callable[..., Awaitable[CsiError]]


def test_a_driver_that_does_not_hold_together(folder: Path, pool: FakePool) -> None:
    pools = {"default": pool}
    for wrong, text in (
        ({"pools": {}}, "at least one pool"),
        ({"name": "not a name"}, "DNS name"),
        ({"default_pool": "slow"}, "'slow' is not among default"),
        ({"node_id": ""}, "node id"),
        ({"node_id": "n" * 257}, "node id"),
        ({"pools": {"a/b": pool}}, "'a/b'"),
        ({"pools": {"p" * 64: pool}}, "at most 63"),
    ):
        with pytest.raises(InvalidError, match=text):
            Driver(**{"node_id": "n", "pools": pools, "state": folder, **wrong})  # type: ignore[arg-type]


def test_a_long_node_name_becomes_a_label_value(folder: Path, pool: FakePool) -> None:
    (value,) = Driver("n" * 200, {"default": pool}, folder).topology.values()
    assert len(value) <= 63


async def test_a_volume_of_a_pool_that_is_not_served_is_never_gone(rejected: Rejected, client: CsiClient) -> None:
    kept = await rejected(client.delete_volume("retired/pvc-1"), Code.UNAVAILABLE, "pool 'retired' is not served")
    assert not kept.final
    await client.delete_volume("no form of ours")
    await rejected(client.delete_volume(""), Code.INVALID_ARGUMENT, "volume_id is missing")


async def test_several_names_over_the_same_pools(
    rejected: Rejected, driver: Driver, endpoint: DriverEndpoint, client: CsiClient
) -> None:
    pmem = Driver(driver.node_id, driver.pools, driver.state, name="pmem-csi.intel.com", in_flight=driver.in_flight)
    socket = endpoint.socket.with_name("pmem.sock")
    async with DriverEndpoint(pmem, socket), CsiClient(socket) as other:
        assert (await other.plugin_info()).name == "pmem-csi.intel.com"
        words_of_pmem = {"eraseafter": "false", "kataContainers": "true", "nsmode": "fsdax", "usage": "AppDirect"}
        made = await other.create_volume("theirs", GIB, MOUNT, parameters=words_of_pmem)
        assert dict((await driver.pools["default"].get("theirs")).parameters) == {"erase": "none"}
        bad = other.create_volume("b", GIB, MOUNT, parameters={"eraseafter": "perhaps"})
        await rejected(bad, Code.INVALID_ARGUMENT, "eraseafter='perhaps'", "true")
        await client.create_volume("ours", GIB, MOUNT)
        assert [volume.id for volume in await other.list_volumes()] == [made.id]
        assert [volume.id for volume in await client.list_volumes()] == ["default/ours"]
        assert (await other.get_capacity()).available == 98 * GIB
