"""Capacity objects: names, fields, differences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.provisioning.capacity import object as capacity_object


def published(*, notes: dict[str, str] | None = None, labels: dict[str, str] | None = None, **more: Any) -> Any:
    head = {"name": "c", "resourceVersion": "7", "annotations": notes or {}, "labels": labels or {}}
    return CAPACITIES.decode(msgspec.json.encode({"metadata": head, "storageClassName": "fast", **more}))


def test_the_same_name_for_the_same_object_only() -> None:
    found = {capacity_object.object_name(*each) for each in (("d", "c", "n"), ("d", "c", "m"), ("d", "cn", ""))}
    assert len(found) == 3
    assert capacity_object.object_name("d", "c", "n") in found
    assert capacity_object.managed_by("n1") == "tonnage-n1"
    assert len(capacity_object.managed_by("n" * 200)) <= 63


def test_fields() -> None:
    notes = {names.OBSERVED_CLAIM_VERSION: "5", names.REASON: "no pool", names.INLINE_CAPACITY: "1Gi"}
    found = published(notes=notes, capacity="2Ki", maximumVolumeSize="1Ki")
    assert capacity_object.numbers(found) == (2048, 1024)
    assert (capacity_object.counted(found), capacity_object.reason(found)) == (5, "no pool")
    assert capacity_object.inline(found) == 1 << 30
    empty = published()
    assert capacity_object.numbers(empty) == (0, None)
    assert (capacity_object.counted(empty), capacity_object.reason(empty), capacity_object.inline(empty)) == (
        0,
        "",
        None,
    )
    assert capacity_object.inline(published(notes={names.INLINE_CAPACITY: "much"})) == -1


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (published(capacity="1Ki"), ""),
        (published(capacity="2Ki"), "capacity 2Ki, was 1Ki"),
        (published(capacity="1Ki", notes={names.REASON: "no pool"}), "reason no pool, was none"),
        (published(capacity="1Ki", labels={"a": "b"}), ""),
    ],
)
def test_difference(after: CSIStorageCapacity, text: str) -> None:
    assert capacity_object.difference(published(capacity="1Ki"), after) == text
    assert capacity_object.difference(published(labels={"a": "b"}), published()) == "labels"


def test_a_maximum_that_is_missing_has_no_limit() -> None:
    assert capacity_object.less(1, None)
    assert not capacity_object.less(None, 1)
    assert not capacity_object.less(2, 2)
    assert [capacity_object.least(*pair) for pair in ((1, None), (None, 2), (3, 2), (None, None))] == [1, 2, 2, None]
