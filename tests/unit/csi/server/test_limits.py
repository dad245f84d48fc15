"""The edge: sizes of fields, ids and paths."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from tests.checks import raises_nothing

from tonnage.base.errors import InvalidError
from tonnage.csi._proto import csi_pb2
from tonnage.csi.server.limits import check_request

MOUNT = csi_pb2.VolumeCapability.MountVolume


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (csi_pb2.CreateVolumeRequest(), "^name is missing"),
        (csi_pb2.NodeStageVolumeRequest(staging_target_path="/s"), "^volume_id is missing"),
        (csi_pb2.DeleteSnapshotRequest(), "^snapshot_id is missing"),
        (csi_pb2.CreateVolumeRequest(name="x" * 129), "name has 129 bytes, at most 128"),
        (csi_pb2.CreateVolumeRequest(name="ü" * 65), "name has 130 bytes"),
        (csi_pb2.CreateVolumeRequest(name="a\0b"), "name 'a\\\\x00b' contains control"),
        (csi_pb2.CreateVolumeRequest(name="v", parameters={"k": "v" * 5000}), "parameters has 5001 bytes in all"),
        (csi_pb2.CreateVolumeRequest(name="v", secrets={"k": "v" * 5000}), "secrets has 5001 bytes"),
        (csi_pb2.DeleteVolumeRequest(volume_id="x" * 10_000), "volume_id has 10000 bytes"),
        (csi_pb2.DeleteVolumeRequest(volume_id="default/../etc"), "volume_id 'default/../etc' must not"),
        (csi_pb2.DeleteVolumeRequest(volume_id="a\0"), "volume_id 'a\\\\x00' contains"),
        (csi_pb2.NodeUnpublishVolumeRequest(volume_id="p/v", target_path="/a/../b"), "target_path '/a/../b' must not"),
        (csi_pb2.NodeUnpublishVolumeRequest(volume_id="p/v", target_path="a/b"), "target_path 'a/b': want an absolute"),
        (
            csi_pb2.NodeUnpublishVolumeRequest(volume_id="p/v", target_path="/a\0b"),
            "target_path '/a\\\\x00b' contains NUL",
        ),
        (
            csi_pb2.NodeUnpublishVolumeRequest(volume_id="p/v", target_path="/" + "a" * 10_000),
            "target_path has 10001 bytes",
        ),
        (
            csi_pb2.NodeStageVolumeRequest(volume_id="p/v", staging_target_path="/x/.."),
            "staging_target_path '/x/..' must",
        ),
        (csi_pb2.NodeGetVolumeStatsRequest(volume_id="p/v", volume_path="../x"), "volume_path '../x' must not"),
        (
            csi_pb2.NodeStageVolumeRequest(
                volume_id="p/v", volume_capability=csi_pb2.VolumeCapability(mount=MOUNT(fs_type="x" * 129))
            ),
            "fs_type has 129",
        ),
        (
            csi_pb2.CreateVolumeRequest(
                name="v", volume_capabilities=[csi_pb2.VolumeCapability(mount=MOUNT(mount_flags=["x" * 2000] * 3))]
            ),
            "mount_flags has 6000",
        ),
        (
            csi_pb2.ControllerPublishVolumeRequest(volume_id="p/v", node_id="n" * 257),
            "node_id has 257 bytes, at most 256",
        ),
    ],
)
def test_what_is_too_large_or_dangerous_is_rejected_by_name(request_: Message, named: str) -> None:
    with pytest.raises(InvalidError, match=named.replace("(", r"\(")):
        check_request(request_)


@pytest.mark.parametrize(
    "allowed",
    [
        csi_pb2.CreateVolumeRequest(name="ü" * 64, parameters={"k": "v" * 4000}),
        csi_pb2.NodePublishVolumeRequest(volume_id="default/pvc-1..2", target_path="/a" * 1000),
        csi_pb2.ControllerPublishVolumeRequest(volume_id="p/v", node_id="n" * 256),
        csi_pb2.NodeGetVolumeStatsRequest(volume_id="p/v", volume_path="some/path"),
        csi_pb2.ListSnapshotsRequest(),
        # the service names what a source lacks
        csi_pb2.CreateVolumeRequest(
            name="v",
            volume_content_source=csi_pb2.VolumeContentSource(volume=csi_pb2.VolumeContentSource.VolumeSource()),
        ),
    ],
    ids=lambda request: type(request).__name__,
)
def test_what_is_allowed_passes(allowed: Message) -> None:
    with raises_nothing():
        check_request(allowed)


def test_lists_of_ids_are_checked_one_by_one() -> None:
    ids = [f"default/{number:0>120}" for number in range(100)]
    check_request(csi_pb2.CreateVolumeGroupSnapshotRequest(name="g", source_volume_ids=ids))
    check_request(csi_pb2.DeleteVolumeGroupSnapshotRequest(group_snapshot_id="g", snapshot_ids=ids))
    for bad in ("", "p/" + "x" * 127, "p/../q"):
        with pytest.raises(InvalidError, match="source_volume_ids"):
            check_request(csi_pb2.CreateVolumeGroupSnapshotRequest(name="g", source_volume_ids=[*ids, bad]))
    with pytest.raises(InvalidError, match="group_snapshot_id is missing"):
        check_request(csi_pb2.GetVolumeGroupSnapshotRequest())
