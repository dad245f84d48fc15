"""Rules of the group snapshot kinds; upstream's tests look for the same messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tonnage.kubernetes.api.kinds import GROUP_CLASSES, GROUP_CONTENTS, GROUP_SNAPSHOTS

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
GROUPS, CONTENTS, CLASSES = GROUP_SNAPSHOTS.key, GROUP_CONTENTS.key, GROUP_CLASSES.key
SELECTED = {"selector": {"matchLabels": {"app": "db"}}}
PRE = {"volumeGroupSnapshotContentName": "c"}
HANDLES = {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["s"]}}
REF = {"name": "x", "namespace": "shop"}


def group(status: Obj | None = None, **spec: Any) -> Obj:
    found: Obj = {"metadata": {"name": "x"}, "spec": {"source": SELECTED} | spec}
    return found | ({"status": status} if status is not None else {})


def content(status: Obj | None = None, **spec: Any) -> Obj:
    whole = {
        "driver": "a.b", "deletionPolicy": "Delete", "source": {"volumeHandles": ["v", "w"]},
        "volumeGroupSnapshotRef": REF,
    }  # fmt: skip
    found: Obj = {"metadata": {"name": "x"}, "spec": {k: v for k, v in (whole | spec).items() if v is not None}}
    return found | ({"status": status} if status is not None else {})


def classed(**fields: Any) -> Obj:
    found = {"metadata": {"name": "x"}, "driver": "a.b", "deletionPolicy": "Delete"} | fields
    return {k: v for k, v in found.items() if v is not None}


@pytest.mark.parametrize(
    ("key", "new", "old"),
    [
        (GROUPS, group(), None),
        (GROUPS, group(source=PRE, volumeGroupSnapshotClassName="c"), group(source=PRE)),
        (GROUPS, group(source={"selector": {}}), None),
        (GROUPS, group({"boundVolumeGroupSnapshotContentName": "c"}), group()),
        (CONTENTS, content(), None),
        (CONTENTS, content(source=HANDLES), None),
        (CONTENTS, content(deletionPolicy="Retain"), content()),
        (CONTENTS, content(volumeGroupSnapshotClassName="c"), content()),
        (CONTENTS, content(volumeGroupSnapshotRef=REF | {"uid": "u"}), content()),
        (CONTENTS, content({"volumeGroupSnapshotHandle": "h"}), content({})),
        (CLASSES, classed(parameters={"a": "b"}), None),
        (CLASSES, classed(parameters={"a": "b"}), classed(parameters={"a": "b"})),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, new: Obj, old: Obj | None) -> None:
    assert faults(key, new, old) == []


ONE_SOURCE = "exactly one of selector and volumeGroupSnapshotContentName must be set"
ONE_HANDLE = "exactly one of volumeHandles and groupSnapshotHandles must be set"
WITH_UID = content(volumeGroupSnapshotRef=REF | {"uid": "u"})


@pytest.mark.parametrize(
    ("key", "new", "old", "path", "said"),
    [
        (GROUPS, {"metadata": {"name": "x"}}, None, "spec", "Required value"),
        (GROUPS, {"metadata": {"name": "x"}, "spec": {}}, None, "spec.source", "Required value"),
        (GROUPS, group(source={}), None, "spec.source", ONE_SOURCE),
        (GROUPS, group(source=SELECTED | PRE), None, "spec.source", ONE_SOURCE),
        (GROUPS, group(source=PRE), group(), "spec.source", "selector is required once set"),
        (GROUPS, group(), group(source=PRE), "spec.source", "volumeGroupSnapshotContentName is required once set"),
        (GROUPS, group(source={"selector": {}}), group(), "spec.source.selector", "selector is immutable"),
        (
            GROUPS,
            group(source={"volumeGroupSnapshotContentName": "d"}),
            group(source=PRE),
            "spec.source.volumeGroupSnapshotContentName",
            "volumeGroupSnapshotContentName is immutable",
        ),
        (
            GROUPS,
            group(volumeGroupSnapshotClassName=""),
            None,
            "spec.volumeGroupSnapshotClassName",
            "volumeGroupSnapshotClassName must not be the empty string when set",
        ),
        (
            GROUPS,
            group({"boundVolumeGroupSnapshotContentName": "d"}),
            group({"boundVolumeGroupSnapshotContentName": "c"}),
            "status.boundVolumeGroupSnapshotContentName",
            "boundVolumeGroupSnapshotContentName is immutable once set",
        ),
        (CONTENTS, {"metadata": {"name": "x"}}, None, "spec", "Required value"),
        (CONTENTS, content(driver=None), None, "spec.driver", "Required value"),
        (CONTENTS, content(source=None), None, "spec.source", "Required value"),
        (CONTENTS, content(deletionPolicy="Keep"), None, "spec.deletionPolicy", 'Unsupported value: "Keep"'),
        (CONTENTS, content(volumeGroupSnapshotRef=None), None, "spec.volumeGroupSnapshotRef", "Required value"),
        (CONTENTS, content(source={}), None, "spec.source", ONE_HANDLE),
        (CONTENTS, content(source=HANDLES | {"volumeHandles": ["v"]}), None, "spec.source", ONE_HANDLE),
        (CONTENTS, content(source=HANDLES), content(), "spec.source", "volumeHandles is required once set"),
        (
            CONTENTS,
            content(source={"volumeHandles": ["v"]}),
            content(),
            "spec.source.volumeHandles",
            "volumeHandles is immutable",
        ),
        (
            CONTENTS,
            content(source={"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "g"}}),
            None,
            "spec.source.groupSnapshotHandles.volumeSnapshotHandles",
            "Required value",
        ),
        (CONTENTS, content(driver="c.d"), content(), "spec.driver", "driver is immutable once set"),
        (
            CONTENTS,
            content(volumeGroupSnapshotClassName="d"),
            content(volumeGroupSnapshotClassName="c"),
            "spec.volumeGroupSnapshotClassName",
            "volumeGroupSnapshotClassName is immutable once set",
        ),
        (
            CONTENTS,
            content(volumeGroupSnapshotRef={"name": "x"}),
            None,
            "spec.volumeGroupSnapshotRef",
            "both volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace must be set",
        ),
        (
            CONTENTS,
            content(volumeGroupSnapshotRef={"name": "y", "namespace": "shop"}),
            content(),
            "spec.volumeGroupSnapshotRef",
            "volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace are immutable",
        ),
        (CONTENTS, content(), WITH_UID, "spec.volumeGroupSnapshotRef", "volumeGroupSnapshotRef.uid is immutable once"),
        (
            CONTENTS,
            content({"volumeGroupSnapshotHandle": "i"}),
            content({"volumeGroupSnapshotHandle": "h"}),
            "status.volumeGroupSnapshotHandle",
            "volumeGroupSnapshotHandle is immutable once set",
        ),
        (CLASSES, classed(driver=None), None, "driver", "Required value"),
        (CLASSES, classed(deletionPolicy="Keep"), None, "deletionPolicy", "Unsupported value"),
        (CLASSES, classed(driver="c.d"), classed(), "driver", "driver is immutable once set"),
        (CLASSES, classed(deletionPolicy="Retain"), classed(), "deletionPolicy", "deletionPolicy is immutable once"),
        (
            CLASSES,
            classed(parameters={"a": "c"}),
            classed(parameters={"a": "b"}),
            "parameters",
            "parameters are immutable once set",
        ),
    ],
)
def test_wrong_ones_are_rejected(faults: Faults, key: str, new: Obj, old: Obj | None, path: str, said: str) -> None:
    found = [fault.partition(": ") for fault in faults(key, new, old)]
    assert [where for where, _, what in found if said in what] == [path], found
