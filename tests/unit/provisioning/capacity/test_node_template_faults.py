"""Whose fault it is that a class has no capacity: the class's where every node publishes a fault of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.provisioning.capacity.node_template import MANAGED_BY, published_faults

TEMPLATE = {"matchLabels": {names.TEMPLATE_NODE: "true", "group": "a"}}


def published(reason: str, topology: object = None, **labels: str) -> CSIStorageCapacity:
    notes = {names.REASON: reason} if reason else {}
    head = {"annotations": notes, "labels": labels}
    return msgspec.convert({"metadata": head, "storageClassName": "c", "nodeTopology": topology}, CSIStorageCapacity)


@pytest.mark.parametrize(
    ("reasons", "faults"),
    [
        ((), []),
        (("",), []),
        (("a", ""), []),
        (("a", "b", "a"), ["a", "b"]),
        ((names.AHEAD,), []),
        (("a", names.AHEAD), []),
    ],
)
def test_every_node_publishes_one(reasons: Sequence[str], faults: list[str]) -> None:
    assert published_faults([published(reason, {}) for reason in reasons]) == faults


def test_objects_that_select_no_node_that_exists_are_ignored() -> None:
    """A template of nodes to come, and the notice of a class that is published by tiers."""
    template = published("", TEMPLATE, **{names.CAPACITY_MANAGED_BY: MANAGED_BY})
    notice = published("", **{names.TIER: names.TIER_NOTICE})
    assert published_faults([template, notice]) == []
    assert published_faults([template, published("a", {}), notice]) == ["a"]
