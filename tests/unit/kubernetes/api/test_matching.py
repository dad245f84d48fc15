"""Which volume fits which claim."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.matching import (
    capacity,
    default_class,
    driver_volume,
    is_bound,
    is_claimed_by,
    is_delayed,
    is_free_for,
    is_provisionable,
    mismatch,
    requested,
)
from tonnage.kubernetes.api.storage import StorageClass


def claim(metadata: dict[str, Any] | None = None, **spec: Any) -> PersistentVolumeClaim:
    meta = {"name": "c", "namespace": "ns", "uid": "u1", **(metadata or {})}
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}, **spec}
    return msgspec.convert({"metadata": meta, "spec": wanted}, PersistentVolumeClaim)


def volume(metadata: dict[str, Any] | None = None, phase: str = "Available", **spec: Any) -> PersistentVolume:
    given = {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "capacity": {"storage": "2Gi"}, **spec}
    body = {"metadata": {"name": "v", **(metadata or {})}, "spec": given, "status": {"phase": phase}}
    return msgspec.convert(body, PersistentVolume)


def storage_class(name: str = "c", *, created: str = "", default: str = "", **more: Any) -> StorageClass:
    notes = {default: "true"} if default else {}
    meta = {"name": name, "annotations": notes, "creationTimestamp": created or None}
    return msgspec.convert({"metadata": meta, "provisioner": "driver", **more}, StorageClass)


@pytest.mark.parametrize(
    ("pv", "pvc", "why"),
    [
        pytest.param({}, {}, "", id="fits"),
        pytest.param({"capacity": {"storage": "3Gi"}}, {}, "", id="larger"),
        pytest.param({"capacity": {"storage": "2147483647"}}, {}, "requested PV is too small", id="one byte short"),
        pytest.param({"capacity": {}}, {}, "requested PV is too small", id="no capacity"),
        pytest.param({"storageClassName": "a"}, {}, "storageClassName does not match", id="class"),
        pytest.param({"storageClassName": "a"}, {"storageClassName": "a"}, "", id="same class"),
        pytest.param({}, {"storageClassName": ""}, "", id="no class wanted"),
        pytest.param({"volumeMode": "Block"}, {}, "incompatible volumeMode", id="mode"),
        pytest.param({"volumeMode": "Filesystem"}, {}, "", id="mode by default"),
        pytest.param({}, {"accessModes": ["ReadWriteMany"]}, "incompatible accessMode", id="access mode"),
        pytest.param({}, {"accessModes": ["ReadOnlyMany", "ReadWriteOnce"]}, "", id="all its access modes"),
        pytest.param(
            {"volumeAttributesClassName": "gold"}, {}, "volumeAttributesClassName does not match", id="attributes"
        ),
        pytest.param({}, {"selector": {"matchLabels": {"a": "b"}}}, "", id="a selector is not looked at"),
    ],
)
def test_mismatch(pv: dict[str, Any], pvc: dict[str, Any], why: str) -> None:
    assert mismatch(volume(**pv), claim(**pvc)) == why


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"csi": {"driver": "d", "volumeHandle": "h"}}, ("d", "h")),
        ({"flexVolume": {"driver": "tonnage.dev/local", "options": {"volumeHandle": "h"}}}, (names.DRIVER, "h")),
        ({"flexVolume": {"driver": "tonnage.dev/local", "options": {"size": "1Gi"}}}, None),
        ({"flexVolume": {"driver": "example.com/other", "options": {"volumeHandle": "h"}}}, None),
        ({"local": {"path": "/x"}}, None),
    ],
)
def test_the_volume_that_a_pv_stands_for(spec: dict[str, Any], found: tuple[str, str] | None) -> None:
    assert driver_volume(volume(**spec)) == found


def test_volume_that_goes_fits_nobody() -> None:
    going = volume({"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert mismatch(going, claim()) == 'the volume is marked for deletion "v"'


@pytest.mark.parametrize(
    ("ref", "claimed"),
    [
        (None, False),
        ({"namespace": "ns", "name": "c"}, True),
        ({"namespace": "ns", "name": "c", "uid": "u1"}, True),
        ({"namespace": "ns", "name": "c", "uid": "u2"}, False),
        ({"namespace": "other", "name": "c"}, False),
        ({"namespace": "ns", "name": "d"}, False),
    ],
)
def test_claimed_by(ref: dict[str, str] | None, claimed: bool) -> None:
    assert is_claimed_by(volume(claimRef=ref), claim()) is claimed


@pytest.mark.parametrize(
    ("pv", "pvc", "free"),
    [
        pytest.param({}, {}, True, id="free"),
        pytest.param({"phase": "Released"}, {}, False, id="released"),
        pytest.param({"phase": "Pending"}, {}, False, id="not looked at yet"),
        pytest.param({"claimRef": {"namespace": "ns", "name": "c"}}, {}, False, id="set aside needs no search"),
        pytest.param(
            {"metadata": {"labels": {"a": "b"}}}, {"selector": {"matchLabels": {"a": "b"}}}, True, id="picked"
        ),
        pytest.param({}, {"selector": {"matchLabels": {"a": "b"}}}, False, id="not picked"),
        pytest.param({"capacity": {"storage": "1Gi"}}, {}, False, id="too small"),
    ],
)
def test_free_for(pv: dict[str, Any], pvc: dict[str, Any], free: bool) -> None:
    assert is_free_for(volume(**pv), claim(**pvc)) is free


def test_sizes_are_bytes() -> None:
    assert (requested(claim()), capacity(volume())) == (2 << 30, 2 << 30)
    assert requested(claim(resources={})) == 0


@pytest.mark.parametrize(
    ("name", "notes", "bound"),
    [
        ("", {}, False),
        ("v", {}, False),
        ("", {names.BIND_COMPLETED: "yes"}, False),
        ("v", {names.BIND_COMPLETED: "yes"}, True),
    ],
)
def test_bound(name: str, notes: dict[str, str], bound: bool) -> None:
    assert is_bound(claim({"annotations": notes}, volumeName=name)) is bound


def test_delayed_needs_a_late_class_and_no_volume() -> None:
    late = storage_class(volumeBindingMode="WaitForFirstConsumer")
    assert is_delayed(claim(), late)
    assert not is_delayed(claim(volumeName="v"), late)
    assert not is_delayed(claim(), storage_class(volumeBindingMode="Immediate"))
    assert not is_delayed(claim(), None)


def test_who_makes_volumes() -> None:
    assert is_provisionable(storage_class())
    assert not is_provisionable(storage_class(provisioner=names.NO_PROVISIONER))
    assert not is_provisionable(None)


def test_youngest_default_class_wins_then_the_first_name() -> None:
    old = storage_class("a", created="2026-01-01T00:00:00Z", default=names.DEFAULT_CLASS)
    young = storage_class("c", created="2026-02-01T00:00:00Z", default=names.BETA_DEFAULT_CLASS)
    twin = storage_class("b", created="2026-02-01T00:00:00Z", default=names.DEFAULT_CLASS)
    plain = storage_class("0", created="2026-03-01T00:00:00Z")
    assert default_class([old, young, twin, plain]) is twin
    assert default_class([plain]) is None
