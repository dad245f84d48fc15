"""The table from facts to actions, for what the flows of the controller do not pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.api import names
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, SNAPSHOT_CLASSES, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES
from tonnage.api.snapshot import (
    BEING_DELETED,
    CONTENT_BOUND,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from tonnage.claims.snapshot_shape import SINGLE, SnapshotSource
from tonnage.controller.snapshots.decision import (
    BindContent,
    EndContent,
    MakeContent,
    NothingToDo,
    PrepareSnapshot,
    RejectSnapshot,
    ReleaseSnapshot,
    ShowContent,
    SnapshotFacts,
    WarnOnly,
    content_body,
    decide,
)
from tonnage.errors import InvalidError

META = {"namespace": "shop", "name": "monday", "uid": "u"}
GONE = {"deletionTimestamp": "2026-01-02T03:04:05Z"}
READY = {"readyToUse": True, "creationTime": 10**18, "restoreSize": 1 << 30, "snapshotHandle": "pool/s"}
OTHER = "csi.example.com"


def snapshot(meta: Mapping[str, Any] | None = None, **fields: Any) -> VolumeSnapshot:
    whole = META | {"finalizers": list(SINGLE.protection)} | dict(meta or {})
    spec = {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "c"}
    return SNAPSHOTS.decode(msgspec.json.encode({"metadata": whole, "spec": spec} | fields))


def content(
    meta: Mapping[str, Any] | None = None, *, driver: str = names.DRIVER, **fields: Any
) -> VolumeSnapshotContent:
    whole = {"name": "snapcontent-u", "finalizers": [CONTENT_BOUND]} | dict(meta or {})
    spec = {
        "driver": driver, "deletionPolicy": "Delete", "source": {"volumeHandle": "v"}, "volumeSnapshotRef": META,
    } | fields.pop("spec", {})  # fmt: skip
    return SNAPSHOT_CONTENTS.decode(msgspec.json.encode({"metadata": whole, "spec": spec} | fields))


def of_class(name: str = "c", driver: str = names.DRIVER, **parameters: str) -> VolumeSnapshotClass:
    body = {"metadata": {"name": name}, "driver": driver, "deletionPolicy": "Delete", "parameters": parameters}
    return SNAPSHOT_CLASSES.decode(msgspec.json.encode(body))


def claim(**fields: Any) -> PersistentVolumeClaim:
    meta = {"namespace": "shop", "name": "data", "uid": "p"}
    body = {"metadata": meta, "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}}
    return CLAIMS.decode(msgspec.json.encode(body | fields))


def volume(driver: str = names.DRIVER, **ref: str) -> PersistentVolume:
    claimed = {"namespace": "shop", "name": "data", "uid": "p"} | ref
    spec = {"csi": {"driver": driver, "volumeHandle": "pool/v"}, "claimRef": claimed, "volumeMode": "Block"}
    return VOLUMES.decode(msgspec.json.encode({"metadata": {"name": "v"}, "spec": spec}))


Facts = SnapshotFacts[VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotClass]


def _facts(of: VolumeSnapshot, held: VolumeSnapshotContent | None = None, **more: Any) -> Facts:
    return SnapshotFacts(SINGLE, of, held, **more)


def _source(found: PersistentVolume) -> list[SnapshotSource]:
    return [SnapshotSource(claim(), found, "n1")]


WHOLE = _facts(snapshot(), storage_class=of_class(), sources=_source(volume()))
ENDING = snapshot(GONE)


@pytest.mark.parametrize(
    ("facts", "action"),
    [
        (_facts(ENDING), ReleaseSnapshot()),
        (_facts(snapshot(GONE | {"finalizers": ["a.b/c"]})), NothingToDo()),
        (_facts(ENDING, content()), EndContent(marked=False)),
        (_facts(ENDING, content(GONE)), NothingToDo()),
        (_facts(ENDING, content(driver=OTHER)), EndContent(marked=True)),
        (_facts(ENDING, content(GONE, driver=OTHER)), EndContent(marked=True)),
        (
            _facts(ENDING, content(GONE | {"annotations": {BEING_DELETED: "yes"}}, driver=OTHER)),
            NothingToDo(),
        ),
        (_facts(ENDING, content(spec={"deletionPolicy": "Retain"})), ReleaseSnapshot()),
        (
            _facts(ENDING, content(spec={"deletionPolicy": "Retain"}, driver=OTHER)),
            ReleaseSnapshot(marked=True),
        ),
        (_facts(ENDING, content(spec={"volumeSnapshotRef": META | {"uid": "x"}})), ReleaseSnapshot()),
        (_facts(ENDING, content(spec={"volumeSnapshotRef": META | {"uid": ""}})), ReleaseSnapshot()),
        (_facts(ENDING, content(), restored="copy"), EndContent(marked=False)),
        (
            _facts(snapshot(GONE, status={"readyToUse": True}), content(), restored="copy"),
            WarnOnly("SnapshotDeletePending", "Snapshot is being used to restore a PVC: claim copy"),
        ),
        (_facts(snapshot(), content()), NothingToDo()),
        (_facts(snapshot({"finalizers": []}), content()), PrepareSnapshot()),
        (_facts(snapshot({"finalizers": []}), storage_class=of_class()), None),
        (replace(WHOLE, snapshot=snapshot({"finalizers": []})), PrepareSnapshot()),
        (
            _facts(snapshot(), content({"finalizers": ["a.b/c"]})),
            BindContent(
                {
                    "spec": {"volumeSnapshotRef": {"uid": "u"}, "volumeSnapshotClassName": "c"},
                    "metadata": {"finalizers": ["a.b/c", CONTENT_BOUND]},
                }
            ),
        ),
    ],
)
def test_actions(facts: Facts, action: object) -> None:
    found = decide(facts)
    assert found == action if action is not None else isinstance(found, RejectSnapshot)


@pytest.mark.parametrize(
    ("facts", "reason", "ready"),
    [
        (
            _facts(snapshot(status={"readyToUse": True}), content(spec={"volumeSnapshotRef": META | {"uid": "x"}})),
            "SnapshotMisbound",
            False,
        ),
        (_facts(snapshot(), content(spec={"source": {"snapshotHandle": "s"}})), "SnapshotHandleSet", False),
        (
            _facts(snapshot(spec={"source": {"volumeSnapshotContentName": "snapcontent-u"}}), content()),
            "SnapshotContentMismatch",
            False,
        ),
        (
            replace(WHOLE, snapshot=snapshot(status={"creationTime": "2026-01-02T03:04:05Z"})),
            "SnapshotContentMissing",
            False,
        ),
        (replace(WHOLE, storage_class=None), "GetSnapshotClassFailed", None),
        (replace(WHOLE, sources=_source(volume(uid="x"))), "SnapshotContentCreationFailed", False),
        (replace(WHOLE, sources=_source(volume(OTHER))), "SnapshotContentCreationFailed", False),
    ],
)
def test_refusals(facts: Facts, reason: str, *, ready: bool | None) -> None:
    found = decide(facts)
    assert isinstance(found, RejectSnapshot)
    assert (found.reason, found.ready) == (reason, ready)


def test_a_content_is_made_whole() -> None:
    made = decide(WHOLE)
    assert isinstance(made, MakeContent)
    assert made.body["spec"]["sourceVolumeMode"] == "Block"
    assert made.body["metadata"]["labels"] == {"snapshot.storage.kubernetes.io/managed-by": "n1"}


@given(st.builds(dict, readyToUse=st.booleans(), creationTime=st.sampled_from((None, 10**18)), restoreSize=st.just(5)))
def test_what_is_shown_once_is_not_shown_again(status: dict[str, Any]) -> None:
    held = content(status={key: value for key, value in status.items() if value is not None})
    first = decide(_facts(snapshot(), held))
    assert isinstance(first, ShowContent)
    shown = {key: value for key, value in first.status.items() if value is not None}
    assert decide(_facts(snapshot(status=shown), held)) == NothingToDo()


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"csi.storage.k8s.io/snapshotter-secret-name": "a"}, "Both must be specified"),
        (
            {
                "csi.storage.k8s.io/snapshotter-secret-name": "${volumesnapshot.uid}",
                "csi.storage.k8s.io/snapshotter-secret-namespace": "b",
            },
            "is no name of a Secret",
        ),
    ],
)
def test_secrets_that_cannot_be(parameters: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        content_body(replace(WHOLE, sources=_source(volume(OTHER))), of_class("c", OTHER, **parameters), OTHER)
