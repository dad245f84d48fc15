"""What is told of pools and volumes, through a driver's socket and directly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError, UnavailableError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import services
from tonnage.csi.server.server import CsiServer
from tonnage.kubernetes.api import names
from tonnage.node.config.driver import DriverConfig
from tonnage.node.plain_driver import StandaloneDriver
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.config import parse
from tonnage.storage.pools.core.status import PoolStatus
from tonnage.storage.pools.kind import PoolConfig
from tonnage.tools.ops import inventory, sources
from tonnage.tools.ops.inventory import Direct, Served
from tonnage.tools.ops.report import GONE, NOT_MADE, Contents, VolumeReport, contents_of
from tonnage.tools.ops.sources import Wanted

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
    """A running driver over two fake pools, with a volume that a claim asked for and a raw one."""
    pools = [parse("fake,name=a,size=10Gi"), parse("fake,name=b,size=5Gi")]
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

    assert (one.pool, one.kind, one.node, one.size, one.free) == ("a", "fake", "n1", 10 * GIB, 9 * GIB)
    assert (two.allocated, two.volumes, two.largest, two.readable) == (2 * GIB, 1, 3 * GIB, True)


async def test_a_socket_alone_tells_of_all_pools(driver: DriverConfig) -> None:
    found = await Served([driver.endpoint]).pools()

    assert [(pool.pool, pool.kind, pool.size) for pool in found] == [
        ("a", "fake", 10 * GIB),
        ("b", "fake", 5 * GIB),
    ]


@pytest.fixture
async def theirs(folder: Path) -> AsyncIterator[Path]:
    """A driver that speaks CSI and nothing else, over a pool with a volume and a snapshot."""
    pool = pool_config.make(parse("fake,name=a,size=10Gi"))
    await pool.open()
    await pool.create(VolumeRequest("v", GIB))
    await pool.snapshots.create("s", "v")
    offered = [
        one for one in services(Driver("n1", {"a": pool}, folder / "state")) if "csi.v1" in one.descriptor.full_name
    ]
    async with CsiServer(folder / "theirs.sock", offered):
        yield folder / "theirs.sock"


async def test_of_drivers_of_others_there_is_what_csi_tells(theirs: Path) -> None:
    source = Served([theirs], [parse("fake,name=a,size=10Gi"), parse("fake,name=none,size=1Gi")])
    known, unknown = await source.pools()
    held = await source.contents()

    assert (known.pool, known.free, known.volumes, known.size, known.erasing) == ("a", 8 * GIB, 1, 10 * GIB, None)
    assert not unknown.readable
    assert [(volume.id, volume.block) for volume in held.volumes] == [("a/v", None)]
    assert [(s.id, s.snapshot_of, s.size, s.what) for s in held.snapshots] == [("a/s", "a/v", GIB, "snapshot")]
    assert not await source.is_block(held.volumes[0])
    await source.delete(held.snapshots[0])
    await source.delete(held.volumes[0])
    assert await source.contents() == Contents([], [])


async def test_a_pool_that_the_driver_does_not_have(driver: DriverConfig) -> None:
    found = (await Served([driver.endpoint], [parse("fake,name=c,size=1Gi")]).pools())[-1]

    assert not found.readable
    assert "there is no pool 'c'" in found.state


async def test_volumes_behind_a_socket(driver: DriverConfig) -> None:
    source = Served([driver.endpoint], node="n1")
    made, raw = (await source.contents()).volumes

    assert (made.id, made.name, made.pool, made.size, made.driver) == ("a/pvc-1", "pvc-1", "a", GIB, names.DRIVER)
    assert (made.claim, made.persistent_volume, made.cluster) == ("shop/data", "pvc-1", "c1")
    assert (made.ephemeral, made.reclaim, made.used_by) == (True, "Delete", "claim shop/data")
    assert dict(made.topology) == {names.TOPOLOGY_NODE: "n1"}
    assert (await source.is_block(made), await source.is_block(raw)) == (False, True)

    await source.delete(raw)
    assert (await source.contents()).volumes == [made]


async def test_a_driver_that_has_gone(driver: DriverConfig, folder: Path) -> None:
    source = Served([driver.endpoint])
    (made, *_) = (await source.contents()).volumes
    other = type(made)(made.id, made.size, driver="other.example.com")

    with pytest.raises(NotFoundError, match=r"no driver other\.example\.com answers any more"):
        await source.delete(other)
    assert await inventory.answers(driver.endpoint)
    assert not await inventory.answers(folder / "none.sock")


async def test_what_was_never_made_is_not_made_by_looking(folder: Path) -> None:
    source = Direct([parse(f"image:{folder}/pool"), parse("fake,size=1Gi")])

    assert [(pool.state, pool.readable) for pool in await source.pools()] == [(NOT_MADE, True), (GONE, True)]
    assert (await source.contents()).volumes == []
    assert not (folder / "pool").exists()


@pytest.mark.real
async def test_pools_and_volumes_read_directly(real_folder: Path) -> None:
    config = parse(f"image:{real_folder}/pool,name=p,size=1Gi,sparse=yes")
    await _fill(config)
    source = Direct([config], node="n1")

    (pool,) = await source.pools()
    assert (pool.size, pool.free, pool.allocated, pool.volumes) == (GIB, GIB - (96 << 20), 96 << 20, 2)
    inline, made = (await source.contents()).volumes
    assert (inline.inline, inline.used_by) == (True, "pod shop/p")
    assert (made.claim, made.fstype, made.block) == ("shop/data", "ext4", False)

    await source.delete(made)
    assert [volume.name for volume in (await source.contents()).volumes] == ["csi-1"]


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
        with pytest.raises(UnavailableError, match="pool p is held by another process"):
            await Direct([config]).contents()
    finally:
        await holder.close()


async def test_a_configuration_leads_to_the_running_driver(driver: DriverConfig, folder: Path) -> None:
    file = folder / "driver.yaml"
    file.write_text(f"endpoint: {driver.endpoint}\nnodeName: n7\npools: [{{kind: fake, name: a, size: 10Gi}}]\n")

    async with sources.opened(Wanted(config=file)) as found:
        pools = await found.pools()
        volumes = (await found.contents()).volumes

    assert [(pool.node, pool.pool, pool.volumes) for pool in pools] == [("n7", "a", 1), ("n7", "b", 1)]
    assert [volume.id for volume in volumes] == ["a/pvc-1", "b/raw"]


@pytest.mark.parametrize(
    ("wanted", "kind", "text"),
    [
        (Wanted(data=Path("/d"), pools=["fake"]), InvalidError, "--data is a box; .* choose one"),
        (Wanted(endpoint="csi.sock"), InvalidError, "want a unix socket with an absolute path"),
        (Wanted(endpoint="/nowhere/csi.sock"), UnavailableError, "no driver answers at /nowhere/csi.sock: start it"),
        (Wanted(data=Path("/nowhere")), NotFoundError, "there is no cluster in /nowhere; name a box's folder"),
    ],
)
async def test_rejected_sources(wanted: Wanted, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        async with sources.opened(wanted):
            pass


@pytest.mark.real
async def test_delete_of_a_volume_in_use_is_rejected(real_folder: Path) -> None:
    config = parse(f"image:{real_folder}/pool,name=p,size=1Gi,sparse=yes")
    await _fill(config)
    pool = pool_config.make(config)
    await pool.open()
    await pool.stage("pvc-1", real_folder / "staged")
    await pool.close()

    source = Direct([config])
    (_, made) = (await source.contents()).volumes
    with pytest.raises(PreconditionError):
        await source.delete(made)
    assert len((await source.contents()).volumes) == 2


async def _made(folder: Path, options: str) -> DriverConfig:
    return DriverConfig(folder / "e.sock", [parse(f"fake,name=a,size=10Gi{options}")], "n1", folder / "state")


async def test_snapshots_erasures_limits_and_inline_volumes_behind_a_socket(folder: Path) -> None:
    running = StandaloneDriver(config := await _made(folder, ",eraserate=1"))
    await running.start()
    try:
        (pool,) = running.pools
        await pool.create(VolumeRequest("gone", GIB, parameters={"erase": "shred"}))
        await pool.create(VolumeRequest("v", GIB, parameters={"erase": "zero"}))
        await pool.create(VolumeRequest("csi-1", GIB, owner={"inline": "true", names.CSI_POD_NAME: "p"}))
        await pool.snapshots.create("s", "v")
        await pool.delete("gone")
        source = Served([config.endpoint], node="n1")
        held = await source.contents()
        (report,) = await source.pools()
    finally:
        await running.stop()

    assert [(v.id, v.inline, v.erase, v.fstype) for v in held.volumes] == [
        ("a/csi-1", True, "", "ext4"),
        ("a/v", False, "zero", "ext4"),
    ]
    assert [(s.id, s.snapshot_of, s.node) for s in held.snapshots] == [("a/s", "a/v", "n1")]
    (erasure,) = held.erasing
    assert (erasure.id, erasure.size, erasure.method, erasure.total, erasure.percent) == (
        "a/gone",
        GIB,
        "shred",
        4 * GIB,
        0,
    )
    assert (report.volumes, report.snapshots, report.allocated, report.erasing) == (2, 1, 3 * GIB, GIB)
    assert (report.free, report.abnormal, report.lacks) == (6 * GIB, 0, ())


@pytest.mark.real
async def test_snapshots_and_erasures_read_directly(real_folder: Path) -> None:
    config = parse(f"image:{real_folder}/pool,name=p,size=1Gi,sparse=yes,eraserate=1")
    pool = pool_config.make(config)
    await pool.open()
    await pool.create(VolumeRequest("v", 32 << 20, block=True, parameters={"erase": "zero"}, mutable={"iops": "100"}))
    await pool.create(VolumeRequest("gone", 32 << 20, block=True, parameters={"erase": "zero"}))
    (real_folder / "pool" / "gone.img").write_bytes(bytes(32 << 20))
    await pool.snapshots.create("s", "v")
    await pool.delete("gone")
    await pool.close()
    (real_folder / "pool" / "v.img").unlink()

    source = Direct([config])
    held = await source.contents()
    (report,) = await source.pools()
    assert [(v.id, v.iops, bool(v.condition)) for v in held.volumes] == [("p/v", 100, True)]
    assert "is gone, and its content with it" in held.volumes[0].condition
    assert [e.id for e in held.erasing] == ["p/gone"]
    assert (report.abnormal, report.erasing, report.snapshots) == (1, 32 << 20, 1)
    (snapshot,) = held.snapshots
    await source.delete(snapshot)
    assert not (await source.contents()).snapshots


def test_what_a_report_is_called() -> None:
    assert VolumeReport("p/v", 1).what == "volume"
    assert VolumeReport("p/s", 1, snapshot_of="p/v").what == "snapshot"


def test_volumes_with_damaged_records_are_listed_with_what_to_do() -> None:
    pool = PoolStatus("p", "image", abnormal={"v": "its record is damaged: its checksum is wrong; put a copy back"})
    [found] = contents_of([pool], node="n1").volumes
    assert (found.id, found.node, found.size) == ("p/v", "n1", 0)
    assert found.condition.endswith("put a copy back")
