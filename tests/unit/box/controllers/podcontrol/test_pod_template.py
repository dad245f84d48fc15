"""Pods from a template; hashes in names and labels."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import ConfigMap
from tonnage.kubernetes.api.kinds import CONFIG_MAPS
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage_box.controllers.podcontrol.pod_template import (
    digest,
    hashed_name,
    owner_reference,
    pod_of,
    scaled,
    with_labels,
    without_hash,
)

OWNER = owner_reference(CONFIG_MAPS, ConfigMap(metadata=ObjectMeta(name="c", uid="u")))
TEMPLATE: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main"}]}}


def test_the_owner_controls() -> None:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}
    assert {**reference, "controller": True, "blockOwnerDeletion": True} == OWNER


def test_a_pod_is_a_copy_of_the_template() -> None:
    pod = pod_of(TEMPLATE, OWNER, prefix="web-")
    metadata = {"generateName": "web-", "labels": {"a": "b"}, "ownerReferences": [OWNER]}
    assert pod == {"metadata": metadata, "spec": TEMPLATE["spec"]}
    pod["metadata"]["labels"]["c"] = "d"
    pod["spec"]["containers"][0]["name"] = "other"
    assert TEMPLATE == {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main"}]}}
    assert pod_of(TEMPLATE, OWNER, name="web-0")["metadata"]["name"] == "web-0"


@given(st.dictionaries(st.text(), st.integers()), st.none() | st.integers(0, 9))
def test_a_digest_does_not_depend_on_the_order_of_keys(value: dict[str, int], collisions: int | None) -> None:
    found = digest(value, collisions)
    assert digest(dict(reversed(value.items())), collisions) == found
    assert found != digest(value, (collisions or 0) + 1)
    assert 0 < len(found) <= 10
    assert not set(found) & set("aeiou01")


@given(st.from_regex(r"[a-z][a-z0-9.-]{0,300}", fullmatch=True))
def test_a_hashed_name_fits_a_label(name: str) -> None:
    made = hashed_name(name, "5dccf7b9cf")
    assert len(made) <= 63
    assert made.endswith("-5dccf7b9cf")


def test_the_hash_is_no_part_of_a_template() -> None:
    assert without_hash(with_labels(TEMPLATE, {names.POD_TEMPLATE_HASH: "x"})) == TEMPLATE
    assert without_hash(TEMPLATE) is TEMPLATE


@pytest.mark.parametrize(
    ("value", "up", "down"), [(3, 3, 3), ("25%", 3, 2), ("100%", 10, 10), ("0%", 0, 0), (None, 0, 0), ("x%", 0, 0)]
)
def test_percentages_are_rounded_as_asked(value: int | str | None, up: int, down: int) -> None:
    assert scaled(value, 10, up=True) == up
    assert scaled(value, 10, up=False) == down
