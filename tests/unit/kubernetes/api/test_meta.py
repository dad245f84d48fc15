"""Metadata of objects."""

from __future__ import annotations

import pytest

from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.meta import Condition, ObjectMeta, OwnerReference, condition, version_number


def test_keys_name_the_namespace_where_there_is_one() -> None:
    assert ObjectMeta(name="a", namespace="n").key == "n/a"
    assert ObjectMeta(name="a").key == Node(metadata=ObjectMeta(name="a")).key == "a"


def test_a_controller_is_the_owner_that_says_so() -> None:
    owners = [OwnerReference(uid="1"), OwnerReference(uid="2", controller=True)]
    assert ObjectMeta(owner_references=owners).controller_uid() == "2"
    assert ObjectMeta(owner_references=owners[:1]).controller_uid() == ""


def test_a_time_of_deletion_means_that_it_is_being_deleted() -> None:
    assert ObjectMeta(deletion_timestamp="2026-01-01T00:00:00Z").deleting
    assert not ObjectMeta().deleting


@pytest.mark.parametrize(("text", "number"), [("", 0), ("7", 7), ("10", 10), ("opaque", 0), ("-1", 0)])
def test_versions_are_numbers(text: str, number: int) -> None:
    assert version_number(text) == ObjectMeta(resource_version=text).version == number


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    old = [Condition(type="Ready", status="True", last_transition_time="then")]
    assert condition(old, "Ready", "True", "Well", now="now").last_transition_time == "then"
    assert condition(old, "Ready", "False", now="now").last_transition_time == "now"
    assert condition(old, "Other", "True", now="now").last_transition_time == "now"
