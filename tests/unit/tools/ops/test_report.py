"""Reports of pools and volumes, from a pool and from what CSI lists."""

from __future__ import annotations

from pathlib import Path

from tonnage.base.aio.clock import RealClock
from tonnage.csi.client.types import CreatedVolume
from tonnage.csi.inline.base import Tree, WritableLayer
from tonnage.csi.inline.memory import InlineRecord, RecordedVolume
from tonnage.csi.inline.volume import InlinePhase
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.core import status
from tonnage.storage.pools.fake.backend import FakePool
from tonnage.tools.ops.report import NOT_MADE, PoolReport, contents_of, listed, of_inline_driver

GIB = 1 << 30
RECORD = {names.CSI_PVC_NAME: "data", names.CSI_PVC_NAMESPACE: "shop", names.PARAM_CLUSTER: "c1"}


async def test_a_pool_and_its_volumes() -> None:
    pool = FakePool("a", 4 * GIB, directories=False, clock=RealClock())
    await pool.open()
    await pool.create(VolumeRequest("pvc-1", GIB, owner=RECORD))
    found = await status.read(pool)

    report = PoolReport("a", node="n1").with_status(found)
    assert (report.size, report.free, report.allocated, report.volumes) == (4 * GIB, 3 * GIB, GIB, 1)
    assert report.readable
    (volume,) = contents_of([found], node="n1", driver=names.DRIVER).volumes
    assert (volume.id, volume.pool, volume.name, volume.node) == ("a/pvc-1", "a", "pvc-1", "n1")
    assert (volume.claim, volume.cluster, volume.what) == ("shop/data", "c1", "volume")
    assert volume.used_by == "claim shop/data"


def test_a_volume_that_csi_lists() -> None:
    made = CreatedVolume("p/v", GIB, context=RECORD, topologies=({"zone": "z"},))
    report = listed(made, "disks.example.com", "n1")
    assert (report.id, report.size, report.driver) == ("p/v", GIB, "disks.example.com")
    assert (report.claim, report.topology) == ("shop/data", {"zone": "z"})


def test_numbers_that_are_not_to_be_expected() -> None:
    assert PoolReport("a", state=NOT_MADE).readable
    assert not PoolReport("a", state="its disk is gone").readable
    assert Path(PoolReport("a", where="/x").where) == Path("/x")


def test_a_volume_of_an_inline_driver() -> None:
    record = InlineRecord("csi-1", "/t", "shop", "web", "uid", InlinePhase.SHOWN, error="away")
    report = of_inline_driver(RecordedVolume("d.test", record, 3), "n1")
    assert (report.id, report.size, report.node, report.used_by) == ("d.test/csi-1", 3, "n1", "pod shop/web")
    assert (report.inline, report.condition) == (True, "away")
    written = record.with_filled(Tree((Path("/layer"),), writable=WritableLayer(GIB)))
    assert of_inline_driver(RecordedVolume("d.test", written, 0), "n1").size == GIB
