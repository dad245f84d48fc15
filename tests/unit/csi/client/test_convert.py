"""Plain types and protobuf say the same."""

from __future__ import annotations

import pytest
from tests.unit.csi import full_client

from tonnage.csi._proto import csi_pb2
from tonnage.csi.client import convert
from tonnage.csi.client.types import AccessMode, ContentSource, CsiTopologyRequirement, GetCapacityResult
from tonnage.csi.client.types import VolumeCapability as Capability


@pytest.mark.parametrize("mode", AccessMode)
def test_each_access_mode_has_csis_name(mode: AccessMode) -> None:
    message = convert.volume_capability(Capability(mode=mode, fstype="xfs", mount_flags=["ro"]))
    assert csi_pb2.VolumeCapability.AccessMode.Mode.Name(message.access_mode.mode) == mode.name
    assert (message.mount.fs_type, list(message.mount.mount_flags)) == ("xfs", ["ro"])
    assert convert.volume_capability(Capability(mode=mode, block=True)).WhichOneof("access_type") == "block"


def test_sources_and_topologies_are_left_out_or_whole() -> None:
    assert convert.content_source(None) is None
    assert convert.topology_requirement(None) is None
    for source in (ContentSource(snapshot_id="s"), ContentSource(volume_id="v")):
        volume = csi_pb2.Volume(volume_id="x", capacity_bytes=7, content_source=convert.content_source(source))
        assert convert.created_volume(volume).content == source
    wanted = convert.topology_requirement(CsiTopologyRequirement(requisite=[{"zone": "a"}], preferred=[{"zone": "b"}]))
    assert wanted is not None
    assert [dict(place.segments) for place in (*wanted.requisite, *wanted.preferred)] == [{"zone": "a"}, {"zone": "b"}]


def test_what_a_driver_leaves_out_is_none_or_zero() -> None:
    assert convert.capacity(csi_pb2.GetCapacityResponse(available_capacity=5)) == GetCapacityResult(5, None, None)
    usage = csi_pb2.VolumeUsage(unit=csi_pb2.VolumeUsage.BYTES, total=9, used=4)
    found = full_client.usage(csi_pb2.NodeGetVolumeStatsResponse(usage=[usage]))
    assert (found.total, found.used, found.inodes, found.abnormal) == (9, 4, 0, False)
    told = csi_pb2.Snapshot(snapshot_id="p/s", source_volume_id="p/v", size_bytes=3)
    told.creation_time.FromNanoseconds(1_500_000_000)
    assert convert.snapshot(told).created == 1.5


def test_capabilities_of_a_newer_csi_have_no_name_here() -> None:
    kinds = csi_pb2.ControllerServiceCapability.RPC.Type
    assert convert.names_of(kinds, [kinds.CREATE_DELETE_VOLUME, 0, 99]) == {"CREATE_DELETE_VOLUME"}
