"""Bodies of a trace: what a client creates for an arrival."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage_box.simulate.cluster import bodies
from tonnage_box.simulate.workload.workload import SimulatedNodes, StreamSpec, VolumeSpec

STREAM = StreamSpec("s", "1/h", "1m", burst=3, cpu="2", volumes=[VolumeSpec("1Gi"), VolumeSpec("2Gi", "fast")])
SIZES = [10, 20]


def requested(volumes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    specs = [volume["ephemeral"]["volumeClaimTemplate"]["spec"] for volume in volumes]
    return [(spec["storageClassName"], spec["resources"]["requests"]["storage"]) for spec in specs]


def test_pod_with_ephemeral_volumes_or_claims() -> None:
    spec = bodies.pod("p", STREAM, SIZES)["spec"]
    assert requested(spec["volumes"]) == [("scratch", "10"), ("fast", "20")]
    assert spec["containers"][0]["resources"]["requests"]["cpu"] == "2"
    named = bodies.pod("p", STREAM, SIZES, ["a", "b"])["spec"]["volumes"]
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in named] == ["a", "b"]


@pytest.mark.parametrize(("make", "count"), [(bodies.deployment, "replicas"), (bodies.job, "parallelism")])
def test_a_controller_makes_as_many_as_the_burst_has(make: Any, count: str) -> None:
    spec = make("d", STREAM, SIZES)["spec"]
    assert spec[count] == 3
    assert spec["template"]["metadata"]["labels"] == {bodies.SET_LABEL: "d"}
    assert len(requested(spec["template"]["spec"]["volumes"])) == 2


def test_the_claims_of_a_stateful_set_are_deleted_with_it() -> None:
    spec = bodies.stateful_set("s", STREAM, SIZES)["spec"]
    assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["v0", "v1"]
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Delete"}


def test_node_is_ready_and_allocatable() -> None:
    status = bodies.node("n", SimulatedNodes({"scratch": "1Ti"}, cpu="8", pods=9))["status"]
    assert status["allocatable"] == status["capacity"] == {"cpu": "8", "memory": "128Gi", "pods": "9"}
    assert [(c["type"], c["status"]) for c in status["conditions"]] == [("Ready", "True")]
