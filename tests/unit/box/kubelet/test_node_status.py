"""The Node object: registered once, its status written again where it differs, disk pressure reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.fixture_types import Told

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import NODES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage_box.kubelet import node_status
from tonnage_box.kubelet.node_status import NodeObject, machine
from tonnage_box.kubelet.pods.eviction import DiskSpace
from tonnage_box.kubelet.volumes.sources import NodeFields
from tonnage_box.testing.clock import ManualClock

FIELDS = NodeFields("n1", "10.0.0.1", {"cpu": "2", "pods": "7"})


@pytest.fixture
def node(kube: Client, events: EventRecorder, manual_clock: ManualClock, tmp_path: Path) -> NodeObject:
    return NodeObject(kube, events, manual_clock, FIELDS, runtime="none", root=str(tmp_path))


async def test_a_node_is_registered_and_put_right_again(kube: Client, node: NodeObject) -> None:
    first = await node.register()
    assert first.metadata.labels.items() >= {"kubernetes.io/os": "linux", names.HOSTNAME_LABEL: "n1"}.items()
    assert first.status.allocatable == FIELDS.allocatable
    assert {c.type for c in first.status.conditions if c.status == "True"} == {"Ready"}
    assert (await node.register()).metadata.resource_version == first.metadata.resource_version
    body: dict[str, Any] = {"status": {"conditions": [{"type": "Mine", "status": "True"}]}}
    await kube.patch(NODES, "n1", body, subresource="status")
    await kube.patch(NODES, "n1", {"metadata": {"labels": {"kubernetes.io/os": "plan9"}}})
    again = await node.register()
    assert again.metadata.labels["kubernetes.io/os"] == "linux"
    assert {c.type for c in again.status.conditions if c.status == "True"} == {"Ready", "Mine"}, "others' stay"


async def test_disk_pressure_is_reported_with_its_end(
    kube: Client, node: NodeObject, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.register()
    seen = []
    for available in (50, 9, 11, 13):  # of 100, with a threshold of 10: 11 is not yet enough
        monkeypatch.setattr(
            node_status, "disk_space", lambda root, free=available: DiskSpace(free << 20, 100 << 20, 10 << 20)
        )
        await node._check_disk()
        live = await kube.get(NODES, "n1")
        seen.append(next(c.status for c in live.status.conditions if c.type == "DiskPressure"))
    assert seen == ["False", "True", "True", "False"]
    assert {reason for _, _, reason, _ in await told()} == {"NodeHasDiskPressure", "NodeHasNoDiskPressure"}


def test_the_machine_says_what_it_has(tmp_path: Path) -> None:
    found = machine(tmp_path / "not" / "there", pods=5)
    assert found.keys() == {"cpu", "memory", "ephemeral-storage", "pods"}
    assert found["pods"] == "5"
    assert int(found["cpu"]) > 0
