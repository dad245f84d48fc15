"""Where the content of a claim comes from."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.json import encode

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, VOLUMES
from tonnage.kubernetes.api.origin import is_clone, is_copy, is_populated, origin_of


def claim(spec: dict[str, Any], **meta: Any) -> PersistentVolumeClaim:
    return CLAIMS.decode(encode({"metadata": {"name": "c", "namespace": "ns", **meta}, "spec": spec}))


def bound(volume: str = "v", **meta: Any) -> PersistentVolumeClaim:
    return claim({"volumeName": volume}, annotations={names.BIND_COMPLETED: "yes"}, **meta)


@pytest.mark.parametrize(
    ("spec", "clone"),
    [
        ({}, False),
        ({"dataSource": {"apiGroup": None, "kind": "PersistentVolumeClaim", "name": "a"}}, True),
        ({"dataSourceRef": {"apiGroup": "", "kind": "PersistentVolumeClaim", "name": "a", "namespace": "ns"}}, True),
        ({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "a", "namespace": "other"}}, False),
        ({"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "a"}}, False),
        ({"dataSourceRef": {"apiGroup": "x.org", "kind": "PersistentVolumeClaim", "name": "a"}}, False),
    ],
)
def test_what_is_a_copy(spec: dict[str, Any], clone: bool) -> None:
    found = claim(spec)
    restore = spec.get("dataSource", {}).get("kind") == "VolumeSnapshot"
    assert (is_clone(found), is_copy(found)) == (clone, clone or restore)
    assert (origin_of(found, lambda key: None, lambda name: None) is not None) == is_copy(found)


@pytest.mark.parametrize(
    ("spec", "populated"),
    [
        ({}, False),
        ({"dataSource": {"apiGroup": None, "kind": "PersistentVolumeClaim", "name": "a"}}, False),
        ({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "a", "namespace": "other"}}, False),
        ({"dataSourceRef": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "a"}}, False),
        ({"dataSourceRef": {"apiGroup": "x.org", "kind": "VolumeSnapshot", "name": "a"}}, True),
        ({"dataSourceRef": {"apiGroup": "x.org", "kind": "PersistentVolumeClaim", "name": "a"}}, True),
        ({"dataSource": {"apiGroup": "x.org", "kind": "Image", "name": "a"}}, True),
    ],
)
def test_what_a_populator_fills(spec: dict[str, Any], populated: bool) -> None:
    assert is_populated(claim(spec)) == populated


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        (None, "claim a does not exist"),
        (claim({}), "claim a is not bound yet"),
        (bound("gone"), "claim a is not bound yet"),
        (bound(deletionTimestamp="2026-01-01T00:00:00Z"), "claim a is being deleted"),
    ],
)
def test_what_is_missing(source: PersistentVolumeClaim | None, missing: str) -> None:
    copy = claim({"dataSource": {"apiGroup": None, "kind": "PersistentVolumeClaim", "name": "a"}})
    found = origin_of(copy, {"ns/a": source}.get, {"v": PersistentVolume()}.get)
    assert found is not None
    assert (found.missing, found.reach) == (missing, None)


def test_which_nodes_have_it() -> None:
    copy = claim({"dataSource": {"apiGroup": None, "kind": "PersistentVolumeClaim", "name": "a"}})
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}]
    local = VOLUMES.decode(encode({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}))
    found = origin_of(copy, {"ns/a": bound()}.get, {"v": local}.get)
    assert found is not None
    assert found.reach is not None
    assert [found.reach({"zone": zone}, "n") for zone in ("z", "y")] == [True, False]
    everywhere = origin_of(copy, {"ns/a": bound()}.get, {"v": PersistentVolume()}.get)
    assert everywhere is not None
    assert everywhere.reach is None
