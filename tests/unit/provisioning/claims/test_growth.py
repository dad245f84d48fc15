"""What a claim's status says of its growth, and what is written into it."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import (
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    ResourceRequirements,
)
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.provisioning.claims import growth
from tonnage.provisioning.claims.growth import Growth, growth_of

GI = 1 << 30
NOW = "2026-01-01T00:00:00Z"
OTHER = {"type": "Other", "status": "True"}


def claim(asked: str = "2Gi", **status: Any) -> PersistentVolumeClaim:
    given = {"phase": "Bound", "capacity": {"storage": "1Gi"}, **status}
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name="a", annotations={names.BIND_COMPLETED: "yes"}),
        spec=PersistentVolumeClaimSpec(
            volume_name="v", resources=ResourceRequirements(requests={"storage": asked} if asked else {})
        ),
        status=PersistentVolumeClaimStatus(**given),
    )


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (claim(), Growth(GI, 2 * GI)),
        (claim("1Gi"), None),
        (claim("512Mi"), None),
        (claim("much"), None),
        (claim(""), None),
        (claim(phase="Lost"), None),
        (claim(capacity={}), None),
        (claim(capacity={"storage": "?"}), None),
    ],
)
def test_a_bound_claim_asks_for_more_than_it_has(found: PersistentVolumeClaim, wanted: Growth | None) -> None:
    assert growth_of(found) == wanted


@pytest.mark.parametrize(
    ("status", "awaits"),
    [
        ({}, False),
        ({"allocated_resource_statuses": {"storage": growth.NODE_PENDING}}, True),
        ({"allocated_resource_statuses": {"storage": growth.NODE_IN_PROGRESS}}, True),
        ({"allocated_resource_statuses": {"storage": growth.NODE_INFEASIBLE}}, False),
        ({"conditions": [{"type": growth.AWAITS_NODE}]}, True),
        ({"conditions": [{"type": growth.AWAITS_NODE}], "allocated_resources": {"storage": "2Gi"}}, False),
    ],
)
def test_the_kubelet_is_awaited(status: dict[str, Any], awaits: bool) -> None:
    assert growth.awaits_node(claim(**status)) is awaits


def test_what_is_written_leaves_other_conditions() -> None:
    found = claim(conditions=[OTHER, {"type": growth.CONTROLLER_ERROR, "message": "old"}])
    assert growth.finished(found, 2 * GI)["status"]["conditions"] == [OTHER]
    waits = growth.pending(found, 2 * GI, "it is busy", now=NOW)["status"]
    assert [one["type"] for one in waits["conditions"]] == ["Other", growth.RESIZING, growth.AWAITS_NODE]
    assert waits["allocatedResourceStatuses"] == {"storage": growth.NODE_PENDING}
    failed = growth.failed(found, "no", infeasible=True, now=NOW)
    assert failed is not None
    assert [one["type"] for one in failed["status"]["conditions"]] == ["Other", growth.CONTROLLER_ERROR]


def test_the_same_failure_is_written_once() -> None:
    known = claim(
        conditions=[{"type": growth.CONTROLLER_ERROR, "message": "no"}],
        allocated_resource_statuses={"storage": growth.CONTROLLER_INFEASIBLE},
    )
    assert growth.problem_of(known) == "no"
    assert growth.failed(known, "no", infeasible=True, now=NOW) is None
    assert growth.failed(known, "no", infeasible=False, now=NOW) is not None
    assert growth.failed(known, "other", infeasible=True, now=NOW) is not None
