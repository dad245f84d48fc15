"""The wire: numbers that other implementations rely on, and generated files that fit their source."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.layers import needs_layer

from tonnage.csi._proto import csi_pb2, registration_pb2

ROOT = Path(__file__).resolve().parents[3]
SECRET_FIELDS = 19


def test_bytes_of_a_request_as_any_implementation_writes_them() -> None:
    mode = csi_pb2.VolumeCapability.AccessMode(mode=csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_MULTI_WRITER)
    request = csi_pb2.CreateVolumeRequest(
        name="v",
        capacity_range=csi_pb2.CapacityRange(required_bytes=1, limit_bytes=2),
        volume_capabilities=[csi_pb2.VolumeCapability(access_mode=mode, block=csi_pb2.VolumeCapability.BlockVolume())],
        parameters={"a": "b"},
        accessibility_requirements=csi_pb2.TopologyRequirement(preferred=[csi_pb2.Topology(segments={"k": "n"})]),
    )
    assert request.SerializeToString(deterministic=True) == bytes.fromhex(
        "0a0176"  # 1: name
        "120408011002"  # 2: {1: 1, 2: 2}
        "1a060a001a020807"  # 3: {1: {}, 3: {1: 7}}
        "22060a0161120162"  # 4: {"a": "b"}
        "3a0a12080a060a016b12016e"  # 7: {2: {1: {"k": "n"}}}
    )


def test_names_on_the_wire() -> None:
    services = csi_pb2.DESCRIPTOR.services_by_name
    assert services["Controller"].full_name == "csi.v1.Controller"
    calls = {name: len(service.methods) for name, service in services.items()}
    assert calls == {"Identity": 3, "Controller": 15, "Node": 8, "GroupController": 4, "SnapshotMetadata": 2}
    registration = registration_pb2.DESCRIPTOR.services_by_name["Registration"]
    assert registration.full_name == "pluginregistration.Registration"


def test_every_secret_is_marked() -> None:
    fields = [field for message in csi_pb2.DESCRIPTOR.message_types_by_name.values() for field in message.fields]
    marked = [field for field in fields if field.GetOptions().Extensions[csi_pb2.csi_secret]]
    assert marked == [field for field in fields if field.name == "secrets"]
    assert len(marked) == SECRET_FIELDS


@needs_layer("proto", "grpc_tools")
def test_generated_files_fit_their_source(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("gen_proto", ROOT / "scripts" / "gen_proto.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.generate(tmp_path) == 0
    committed = ROOT / "src" / "tonnage" / "csi" / "_proto"
    made = sorted((tmp_path / "tonnage" / "csi" / "_proto").iterdir())
    assert len(made) == 9
    for path in made:
        assert path.read_text() == (committed / path.name).read_text(), f"{path.name} is stale: run `make proto`"
