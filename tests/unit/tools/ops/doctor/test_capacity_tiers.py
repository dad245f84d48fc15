"""Capacity in tiers: without alarm when it is as it should be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tonnage.controller.tier_objects import body
from tonnage.kubernetes.api import names
from tonnage.provisioning.capacity import tier
from tonnage.tools.ops.cluster_snapshot import Published
from tonnage.tools.ops.doctor import capacity
from tonnage.tools.ops.doctor.finding import Level

LABEL = names.tier_label("fast")


def put(ward: Any, value: str, **more: Any) -> None:
    made = body(ward.view.ours[0], value)
    made["metadata"] |= {"name": tier.object_name("fast", value), "namespace": ward.view.namespace}
    ward.view.capacities = [*ward.view.capacities, msgspec.convert({**made, **more}, Published)]


@pytest.fixture
def tiered(ward: Any) -> Any:
    """n1 is in a tier and publishes nothing of its own; n2 publishes exactly."""
    ward.node("n1", labels={names.TOPOLOGY_NODE: "n1", LABEL: "16Gi"})
    ward.view.capacities = [c for c in ward.view.capacities if c.metadata.labels[names.NODE_LABEL] != "n1"]
    put(ward, names.TIER_NOTICE)
    put(ward, "16Gi")
    return ward


def test_tiers_are_told_and_nothing_is_missing(tiered: Any) -> None:
    found = [*capacity.check(tiered.view), *capacity.check_tiers(tiered.view)]
    assert {f.level for f in found} == {Level.OK}
    assert [f.text for f in found] == [
        "1 objects on 1 nodes are as their agents write them",
        "nodes in capacity tiers (fast: 1 at least 16Gi)",
    ]


def test_a_tier_without_an_object_is_missing(tiered: Any) -> None:
    tiered.view.capacities = [c for c in tiered.view.capacities if c.metadata.labels.get(names.TIER) != "16Gi"]
    (found,) = [f for f in capacity.check(tiered.view) if f.level is Level.FAIL]
    assert found.about == "n1"
    assert "no capacity is published for fast" in found.text


def test_an_object_that_promises_more_than_its_tier_is_a_fault(tiered: Any) -> None:
    put(tiered, "32Gi", capacity="1Ti")
    (found,) = [f for f in capacity.check_tiers(tiered.view) if f.level is Level.FAIL]
    assert "tier 32Gi has 1Ti" in found.text
    assert "delete csistoragecapacity" in found.todo


def test_a_label_of_a_node_without_a_driver_is_told(tiered: Any) -> None:
    tiered.node("n1", labels={LABEL: "16Gi"}, listed=False)
    (found,) = [f for f in capacity.check_tiers(tiered.view) if f.level is Level.WARN]
    assert found.about == "n1"
    assert f"kubectl label node n1 {LABEL}-" in found.todo


def test_a_tier_in_another_namespace_is_a_stranger(tiered: Any) -> None:
    stranger = msgspec.structs.replace(tiered.view.capacities[-1], metadata=msgspec.structs.replace(
        tiered.view.capacities[-1].metadata, namespace="elsewhere"))  # fmt: skip
    tiered.view.capacities = [*tiered.view.capacities, stranger]
    (found,) = [f for f in capacity.check(tiered.view) if f.level is Level.FAIL]
    assert "no agent of namespace" in found.text
