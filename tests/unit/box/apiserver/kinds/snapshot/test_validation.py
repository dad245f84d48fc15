"""Rules of the snapshot kinds; upstream's tests look for the same messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
SNAPSHOTS = "snapshot.storage.k8s.io/volumesnapshots"
CONTENTS = "snapshot.storage.k8s.io/volumesnapshotcontents"
CLASSES = "snapshot.storage.k8s.io/volumesnapshotclasses"


def snapshot(**spec: Any) -> Obj:
    return {"metadata": {"name": "x"}, "spec": {"source": {"persistentVolumeClaimName": "data"}} | spec}


def content(**spec: Any) -> Obj:
    whole = {
        "driver": "a.b", "deletionPolicy": "Delete", "source": {"volumeHandle": "v"},
        "volumeSnapshotRef": {"name": "x", "namespace": "shop"},
    }  # fmt: skip
    return {"metadata": {"name": "x"}, "spec": {k: v for k, v in (whole | spec).items() if v is not None}}


def classed(**fields: Any) -> Obj:
    found = {"metadata": {"name": "x"}, "driver": "a.b", "deletionPolicy": "Delete"} | fields
    return {k: v for k, v in found.items() if v is not None}


PRE = {"volumeSnapshotContentName": "c"}
BOTH = PRE | {"persistentVolumeClaimName": "data"}


@pytest.mark.parametrize(
    ("key", "new", "old"),
    [
        (SNAPSHOTS, snapshot(), None),
        (SNAPSHOTS, snapshot(source=PRE, volumeSnapshotClassName="c"), snapshot(source=PRE)),
        (SNAPSHOTS, snapshot(), snapshot(volumeSnapshotClassName="c")),
        (CONTENTS, content(), None),
        (CONTENTS, content(source={"snapshotHandle": "s"}, sourceVolumeMode="Block"), None),
        (CONTENTS, content(deletionPolicy="Retain", driver="c.d"), content()),
        (CONTENTS, content(volumeSnapshotRef={"name": "x", "namespace": "shop", "uid": "u"}), content()),
        (CONTENTS, content(sourceVolumeMode="Block"), content()),
        (CLASSES, classed(parameters={"a": "b"}), None),
        (CLASSES, classed(driver="c.d", deletionPolicy="Retain"), classed()),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, new: Obj, old: Obj | None) -> None:
    assert faults(key, new, old) == []


ONE_SOURCE = "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set"
ONE_HANDLE = "exactly one of volumeHandle and snapshotHandle must be set"
REF = "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set"


@pytest.mark.parametrize(
    ("key", "new", "old", "path", "said"),
    [
        (SNAPSHOTS, {"metadata": {"name": "x"}}, None, "spec", "Required value"),
        (SNAPSHOTS, {"metadata": {"name": "x"}, "spec": {}}, None, "spec.source", "Required value"),
        (SNAPSHOTS, snapshot(source={}), None, "spec.source", ONE_SOURCE),
        (SNAPSHOTS, snapshot(source=BOTH), None, "spec.source", ONE_SOURCE),
        (SNAPSHOTS, snapshot(source=PRE), snapshot(), "spec.source", "persistentVolumeClaimName is required once set"),
        (SNAPSHOTS, snapshot(), snapshot(source=PRE), "spec.source", "volumeSnapshotContentName is required once set"),
        (
            SNAPSHOTS,
            snapshot(source={"persistentVolumeClaimName": "other"}),
            snapshot(),
            "spec.source.persistentVolumeClaimName",
            "persistentVolumeClaimName is immutable",
        ),
        (
            SNAPSHOTS,
            snapshot(source={"volumeSnapshotContentName": "other"}),
            snapshot(source=PRE),
            "spec.source.volumeSnapshotContentName",
            "volumeSnapshotContentName is immutable",
        ),
        (
            SNAPSHOTS,
            snapshot(volumeSnapshotClassName=""),
            None,
            "spec.volumeSnapshotClassName",
            "volumeSnapshotClassName must not be the empty string when set",
        ),
        (CONTENTS, content(source=None), None, "spec.source", "Required value"),
        (CONTENTS, content(driver=None), None, "spec.driver", "Required value"),
        (CONTENTS, content(deletionPolicy=None), None, "spec.deletionPolicy", "Required value"),
        (CONTENTS, content(volumeSnapshotRef=None), None, "spec.volumeSnapshotRef", "Required value"),
        (CONTENTS, content(deletionPolicy="Keep"), None, "spec.deletionPolicy", 'Unsupported value: "Keep"'),
        (CONTENTS, content(source={}), None, "spec.source", ONE_HANDLE),
        (CONTENTS, content(source={"volumeHandle": "v", "snapshotHandle": "s"}), None, "spec.source", ONE_HANDLE),
        (
            CONTENTS,
            content(source={"volumeHandle": "w"}),
            content(),
            "spec.source.volumeHandle",
            "volumeHandle is immutable",
        ),
        (
            CONTENTS,
            content(source={"snapshotHandle": "t"}),
            content(source={"snapshotHandle": "s"}),
            "spec.source.snapshotHandle",
            "snapshotHandle is immutable",
        ),
        (
            CONTENTS,
            content(source={"snapshotHandle": "s"}),
            content(),
            "spec.source",
            "volumeHandle is required once set",
        ),
        (
            CONTENTS,
            content(),
            content(source={"snapshotHandle": "s"}),
            "spec.source",
            "snapshotHandle is required once set",
        ),
        (
            CONTENTS,
            content(sourceVolumeMode="Block"),
            content(sourceVolumeMode="Filesystem"),
            "spec.sourceVolumeMode",
            "sourceVolumeMode is immutable",
        ),
        (CONTENTS, content(), content(sourceVolumeMode="Block"), "spec", "sourceVolumeMode is required once set"),
        (CONTENTS, content(volumeSnapshotRef={"name": "x"}), None, "spec.volumeSnapshotRef", REF),
        (CONTENTS, content() | {"status": {"restoreSize": -1}}, None, "status.restoreSize", "greater than or equal"),
        (CLASSES, classed(driver=None), None, "driver", "Required value"),
        (CLASSES, classed(deletionPolicy=None), None, "deletionPolicy", "Required value"),
        (CLASSES, classed(deletionPolicy="Keep"), None, "deletionPolicy", 'supported values: "Delete", "Retain"'),
    ],
)
def test_wrong_ones_are_rejected(faults: Faults, key: str, new: Obj, old: Obj | None, path: str, said: str) -> None:
    found = [fault.partition(": ") for fault in faults(key, new, old)]
    assert [where for where, _, what in found if said in what] == [path], found
