"""What is told of pools and volumes, through a driver's socket and directly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tonnage.api import names
from tonnage.apps import inventory, sources
from tonnage.apps.driver import StandaloneDriver
from tonnage.apps.driver_config import DriverConfig
from tonnage.apps.inventory import GONE, NOT_MADE, Direct, Served
from tonnage.apps.sources import Wanted
from tonnage.csi.client import CsiClient
from tonnage.csi.words import AccessMode, VolumeCapability
from tonnage.errors import Invalid, NotFound, Precondition, Unavailable
from tonnage.pools import config as pool_config
from tonnage.pools.base import VolumeRequest
from tonnage.pools.config import PoolConfig, parse

GIB = 1 << 30
MOUNT = [VolumeCapability(AccessMode.SINGLE_NODE_WRITER)]
BLOCK = [VolumeCapability(AccessMode.SINGLE_NODE_WRITER, block=True)]
RECORD = {
    names.CSI_PVC_NAME: "data",
    names.CSI_PVC_NAMESPACE: "shop",
    names.CSI_PV_NAME: "pvc-1",
    names.PARAM_CLUSTER: "c1",
    names.PARAM_EPHEMERAL: "true",
    names.PARAM_RECLAIM: "Delete",
}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path."""
    return tmp_path_factory.mktemp("i")


@pytest.fixture
async def driver(folder: Path) -> AsyncIterator[DriverConfig]:
    """A running driver over two memory pools, with a volume that a claim asked for and a raw one."""
    pools = [parse("memory,name=a,size=10Gi"), parse("memory,name=b,size=5Gi")]
    config = DriverConfig(folder / "csi.sock", pools, "n1", folder / "state")
    running = StandaloneDriver(config)
    await running.start()
    async with CsiClient(config.endpoint) as client:
        await client.create_volume("pvc-1", GIB, MOUNT, parameters=RECORD)
        await client.create_volume("raw", 2 * GIB, BLOCK, parameters={"pool": "b"})
    yield config
    await running.stop()


async def test_pools_behind_a_socket(driver: DriverConfig) -> None:
    one, two = await Served([driver.endpoint], driver.pools, node="n1").pools()

    assert (one.pool, one.kind, one.node, one.size, one.free) == ("a", "memory", "n1", 10 * GIB, 9 * GIB)
    assert (two.promised, two.volumes, two.largest, two.readable) == (2 * GIB, 1, 3 * GIB, True)


async def test_a_socket_alone_tells_of_the_default_pool_and_of_those_with_volumes(driver: DriverConfig) -> None:
    found = await Served([driver.endpoint]).pools()

    assert [(pool.pool, pool.kind, pool.size) for pool in found] == [("a", "", None), ("b", "", None)]


async def test_a_pool_that_the_driver_does_not_have(driver: DriverConfig) -> None:
    found = (await Served([driver.endpoint], [parse("memory,name=c,size=1Gi")]).pools())[0]

    assert not found.readable
    assert "there is no pool 'c'" in found.state


async def test_volumes_behind_a_socket(driver: DriverConfig) -> None:
    source = Served([driver.endpoint], node="n1")
    made, raw = await source.volumes()

    assert (made.id, made.name, made.pool, made.size, made.driver) == ("a/pvc-1", "pvc-1", "a", GIB, names.DRIVER)
    assert (made.claim, made.persistent_volume, made.cluster) == ("shop/data", "pvc-1", "c1")
    assert (made.ephemeral, made.reclaim, made.used_by) == (True, "Delete", "claim shop/data")
    assert dict(made.topology) == {names.TOPOLOGY_NODE: "n1"}
    assert (await source.is_block(made), await source.is_block(raw)) == (False, True)

    await source.delete(raw)
    assert await source.volumes() == [made]


async def test_a_driver_that_has_gone(driver: DriverConfig, folder: Path) -> None:
    source = Served([driver.endpoint])
    (made, *_) = await source.volumes()
    other = type(made)(made.id, made.size, driver="other.example.com")

    with pytest.raises(NotFound, match=r"no driver other\.example\.com answers any more"):
        await source.delete(other)
    assert await inventory.answers(driver.endpoint)
    assert not await inventory.answers(folder / "none.sock")


async def test_what_was_never_made_is_not_made_by_looking(folder: Path) -> None:
    source = Direct([parse(f"image:{folder}/pool"), parse("memory,size=1Gi")])

    assert [(pool.state, pool.readable) for pool in await source.pools()] == [(NOT_MADE, True), (GONE, True)]
    assert await source.volumes() == []
    assert not (folder / "pool").exists()


@pytest.mark.real
async def test_pools_and_volumes_read_directly(real_folder: Path) -> None:
    config = parse(f"image:{real_folder}/pool,name=p,size=1Gi,sparse=yes")
    await _fill(config)
    source = Direct([config], node="n1")

    (pool,) = await source.pools()
    assert (pool.size, pool.free, pool.promised, pool.volumes) == (GIB, GIB - (96 << 20), 96 << 20, 2)
    inline, made = await source.volumes()
    assert (inline.inline, inline.used_by) == (True, "pod shop/p")
    assert (made.claim, made.fstype, made.block) == ("shop/data", "ext4", False)

    await source.delete(made)
    assert [volume.name for volume in await source.volumes()] == ["csi-1"]


async def _fill(config: PoolConfig) -> None:
    pool = pool_config.make(config)
    await pool.open()
    owner = {"inline": "true", names.CSI_POD_NAME: "p", names.CSI_POD_NAMESPACE: "shop"}
    await pool.create(VolumeRequest("csi-1", 32 << 20, fstype="ext4", owner=owner))
    await pool.create(VolumeRequest("pvc-1", 64 << 20, fstype="ext4", owner=RECORD))
    await pool.close()


@pytest.mark.real
async def test_a_pool_that_somebody_holds(real_folder: Path) -> None:
    config = parse(f"image:{real_folder}/pool,name=p,size=1Gi,sparse=yes")
    holder = pool_config.make(config)
    await holder.open()
    try:
        (pool,) = await Direct([config]).pools()
        assert pool.state.startswith("pool p is held by another process: read it through the socket")
        assert not pool.readable
        with pytest.raises(Unavailable, match="pool p is held by another process"):
            await Direct([config]).volumes()
    finally:
        await holder.close()


async def test_a_configuration_leads_to_the_running_driver(driver: DriverConfig, folder: Path) -> None:
    file = folder / "driver.yaml"
    file.write_text(f"endpoint: {driver.endpoint}\nnodeName: n7\npools: [{{kind: memory, name: a, size: 10Gi}}]\n")

    async with sources.opened(Wanted(config=file)) as found:
        pools = await found.pools()
        volumes = await found.volumes()

    assert [(pool.node, pool.pool, pool.volumes) for pool in pools] == [("n7", "a", 1), ("n7", "b", 1)]
    assert [volume.id for _, volume in volumes] == ["a/pvc-1", "b/raw"]


@pytest.mark.parametrize(
    ("wanted", "kind", "text"),
    [
        (Wanted(data=Path("/d"), pools=["memory"]), Invalid, "--data is a box; .* choose one"),
        (Wanted(endpoint="csi.sock"), Invalid, "want a unix socket with an absolute path"),
        (Wanted(endpoint="/nowhere/csi.sock"), Unavailable, "no driver answers at /nowhere/csi.sock: start it"),
        (Wanted(data=Path("/nowhere")), NotFound, "there is no cluster in /nowhere; name a box's folder"),
    ],
)
async def test_refused_sources(wanted: Wanted, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        async with sources.opened(wanted):
            pass


@pytest.mark.real
async def test_delete_of_a_volume_in_use_is_refused(real_folder: Path) -> None:
    config = parse(f"image:{real_folder}/pool,name=p,size=1Gi,sparse=yes")
    await _fill(config)
    pool = pool_config.make(config)
    await pool.open()
    await pool.stage("pvc-1", real_folder / "staged")
    await pool.close()

    source = Direct([config])
    (_, made) = await source.volumes()
    with pytest.raises(Precondition):
        await source.delete(made)
    assert len(await source.volumes()) == 2
