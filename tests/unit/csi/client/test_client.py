"""The client: connection, errors, metric, and what it makes of a driver that is not ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from tests.unit.csi.full_client import FullCsiClient, VolumeUsage

from tonnage.base.observe.metrics import REGISTRY
from tonnage.csi._proto import csi_pb2
from tonnage.csi.client.types import (
    AccessMode,
    ContentSource,
    CreatedVolume,
    GetCapacityResult,
    VolumeCapability,
)
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.server import CsiServer
from tonnage.csi.server.service import Service

MOUNT = [VolumeCapability()]

Rejected = Callable[..., Awaitable[CsiError]]


async def test_calls_are_counted_by_driver_method_and_code(client: FullCsiClient, rejected: Rejected) -> None:
    def count(method: str, code: str) -> float:
        labels = {"driver_name": "csi.tonnage.dev", "method_name": f"/csi.v1.{method}", "grpc_status_code": code}
        return REGISTRY.get_sample_value("csi_sidecar_operations_seconds_count", labels) or 0

    await client.plugin_info()
    before = count("Controller/CreateVolume", "OK"), count("Controller/CreateVolume", "InvalidArgument")
    await client.create_volume("a", 1 << 20, MOUNT)
    await rejected(client.create_volume("a", 1 << 20, []), Code.INVALID_ARGUMENT)
    after = count("Controller/CreateVolume", "OK"), count("Controller/CreateVolume", "InvalidArgument")
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)


class Foreign:
    """Answers as other drivers do: fields that ours does not set, and capabilities of a newer CSI."""

    asked: csi_pb2.CreateVolumeRequest

    async def GetPluginCapabilities(
        self, _request: csi_pb2.GetPluginCapabilitiesRequest
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        kinds = csi_pb2.PluginCapability
        return csi_pb2.GetPluginCapabilitiesResponse(
            capabilities=[
                kinds(service=kinds.Service(type=kinds.Service.CONTROLLER_SERVICE)),
                kinds(service=kinds.Service(type=99)),  # type: ignore[arg-type]
                kinds(volume_expansion=kinds.VolumeExpansion(type=kinds.VolumeExpansion.ONLINE)),
            ]
        )

    async def Probe(self, _request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:
        return csi_pb2.ProbeResponse()

    async def CreateVolume(self, request: csi_pb2.CreateVolumeRequest) -> csi_pb2.CreateVolumeResponse:
        self.asked = request
        source = csi_pb2.VolumeContentSource(snapshot=csi_pb2.VolumeContentSource.SnapshotSource(snapshot_id="s"))
        topologies = [csi_pb2.Topology(segments={"zone": "a"}), csi_pb2.Topology(segments={"zone": "b"})]
        volume = csi_pb2.Volume(volume_id="v", content_source=source, accessible_topology=topologies)
        return csi_pb2.CreateVolumeResponse(volume=volume)

    async def GetCapacity(self, _request: csi_pb2.GetCapacityRequest) -> csi_pb2.GetCapacityResponse:
        return csi_pb2.GetCapacityResponse(available_capacity=5, minimum_volume_size=Int64Value(value=0))

    async def NodeGetVolumeStats(
        self, _request: csi_pb2.NodeGetVolumeStatsRequest
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        kinds = csi_pb2.VolumeUsage
        return csi_pb2.NodeGetVolumeStatsResponse(
            usage=[
                kinds(unit=kinds.INODES, total=10, used=3, available=7),
                kinds(unit=kinds.BYTES, total=100, used=30, available=70),
            ],
            volume_condition=csi_pb2.VolumeCondition(abnormal=True, message="on fire"),
        )


@pytest.fixture
def foreign() -> Foreign:
    """Such a driver."""
    return Foreign()


async def test_a_driver_of_others(foreign: Foreign, folder: Path) -> None:
    services = [Service(d, foreign) for d in csi_pb2.DESCRIPTOR.services_by_name.values()]
    async with CsiServer(folder / "f.sock", services), FullCsiClient(folder / "f.sock") as client:
        assert await client.plugin_capabilities() == {"CONTROLLER_SERVICE", "EXPANSION_ONLINE"}
        assert await client.probe(), "a driver that does not say is ready"
        wanted = [VolumeCapability(AccessMode.MULTI_NODE_MULTI_WRITER, fstype="ext4", mount_flags=["hard"])]
        made = await client.create_volume(
            "n", 0, wanted, source=ContentSource(snapshot_id="s"), secrets={"a": "b"}, mutable_parameters={"c": "d"}
        )
        assert made == CreatedVolume("v", 0, {}, ({"zone": "a"}, {"zone": "b"}), ContentSource("s", ""))
        assert not foreign.asked.HasField("accessibility_requirements")
        assert dict(foreign.asked.secrets) == {"a": "b"}
        assert dict(foreign.asked.mutable_parameters) == {"c": "d"}
        mount = foreign.asked.volume_capabilities[0].mount
        assert (mount.fs_type, list(mount.mount_flags)) == ("ext4", ["hard"])
        assert await client.get_capacity() == GetCapacityResult(5, None, 0)
        assert await client.volume_stats("v", "/x") == VolumeUsage(
            100, 30, 70, 10, 3, 7, abnormal=True, message="on fire"
        )
