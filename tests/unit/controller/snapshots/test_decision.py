"""The table from facts to actions, for what the flows of the controller do not pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from tonnage.base.errors import InvalidError
from tonnage.controller.snapshots.decision import (
    BindContent,
    EndContent,
    EndMembers,
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
    event_of,
)
from tonnage.controller.snapshots.members import MemberFacts
from tonnage.controller.snapshots.stages import STAGES, SnapshotEvent, SnapshotStage
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.group_snapshot import VolumeSnapshotInfo
from tonnage.kubernetes.api.kinds import (
    CLAIMS,
    GROUP_SNAPSHOTS,
    SNAPSHOT_CLASSES,
    SNAPSHOT_CONTENTS,
    SNAPSHOTS,
    VOLUMES,
)
from tonnage.kubernetes.api.snapshot import (
    BEING_DELETED,
    CONTENT_BOUND,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from tonnage.provisioning.claims.snapshot_shape import GROUP, SINGLE, SnapshotShape, SnapshotSource

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
def test_rejections(facts: Facts, reason: str, *, ready: bool | None) -> None:
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


# Stages

MEMBER = f"snapshot-{'0' * 64}"
OWNER = {"apiVersion": GROUP_SNAPSHOTS.api_version, "kind": GROUP_SNAPSHOTS.kind, "name": "g", "uid": "g"}


def _any(shape: SnapshotShape[Any, Any, Any]) -> st.SearchStrategy[SnapshotFacts[Any, Any, Any]]:
    """Facts of any kind, also those that no cluster has together."""
    name, error = shape.content_name("u"), {"message": "no", "time": "2026-01-02T03:04:05Z"}
    when = "2026-01-02T03:04:05Z" if shape is GROUP else 10**18
    of_claims: dict[str, Any] = {"selector": {}} if shape is GROUP else {"persistentVolumeClaimName": "data"}
    made: dict[str, Any] = {"volumeHandles": ["v"]} if shape is GROUP else {"volumeHandle": "v"}
    given: dict[str, Any] = {"groupSnapshotHandles": {}} if shape is GROUP else {"snapshotHandle": "s"}
    statuses = st.sampled_from(
        [{}, {"error": error}, {"readyToUse": False}, {"readyToUse": True, "creationTime": when}]
    )
    ends_ = st.sampled_from([{}, {}, {}, GONE])
    heads = [META] if shape is GROUP else [META, META | {"name": MEMBER, "ownerReferences": [OWNER]}]
    snapshots = st.builds(
        lambda head, finalizers, end, source, of, status: shape.snapshots.decode(
            msgspec.json.encode(
                {
                    "metadata": head | {"finalizers": finalizers} | end,
                    "spec": {"source": source, shape.field("ClassName"): of},
                    "status": {key: value for key, value in status.items() if key != "creationTime"},
                }
            )
        ),
        st.sampled_from(heads),
        st.sampled_from([[], ["a.b/c"], *[list(shape.protection)] * 3]),
        ends_,
        st.sampled_from([of_claims, {f"{shape.field('ContentName')}": name}]),
        st.sampled_from([None, "c"]),
        statuses,
    )
    contents = st.builds(
        lambda finalizers, end, source, uid, driver, policy, status: shape.contents.decode(
            msgspec.json.encode(
                {
                    "metadata": {"name": name, "finalizers": finalizers} | end,
                    "spec": {
                        "source": source, shape.field("Ref"): META | {"uid": uid}, "driver": driver,
                        "deletionPolicy": policy,
                    },
                    "status": status,
                }
            )
        ),
        st.sampled_from([[], *[[shape.content_finalizer]] * 3]),
        ends_,
        st.sampled_from([made, given]),
        st.sampled_from(["", "u", "u", "u", "x"]),
        st.sampled_from([names.DRIVER, OTHER]),
        st.sampled_from(["Delete", "Retain"]),
        statuses,
    )  # fmt: skip
    chosen = shape.classes.decode(
        msgspec.json.encode({"metadata": {"name": "c"}, "driver": names.DRIVER, "deletionPolicy": "Delete"})
    )
    member = snapshot({"name": "m", "ownerReferences": []})
    members = [MemberFacts(VolumeSnapshotInfo("v", "s")), MemberFacts(VolumeSnapshotInfo("v", "s"), member)]
    return st.builds(
        SnapshotFacts,
        st.just(shape),
        snapshots,
        st.none() | contents,
        storage_class=st.none() | st.just(chosen),
        defaults=st.sampled_from([[], [chosen]]),
        sources=st.sampled_from([[], _source(volume())]),
        members=st.lists(st.sampled_from(members), max_size=1) if shape is GROUP else st.just([]),
        living=st.sampled_from([[], [ENDING], [snapshot()]]) if shape is GROUP else st.just([]),
        restored=st.sampled_from(["", "copy"]),
        group=st.sampled_from(["", "shop/g"]) if shape is SINGLE else st.just(""),
    )


@pytest.mark.parametrize("shape", [SINGLE, GROUP], ids=["single", "group"])
def test_no_facts_lead_out_of_the_table_of_stages(shape: SnapshotShape[Any, Any, Any]) -> None:
    @examples(1000)
    @given(_any(shape))
    def each(facts: SnapshotFacts[Any, Any, Any]) -> None:
        action = decide(facts)  # or ImpossibleTransitionError
        assert STAGES.allows(facts.stage, event_of(action))
        if isinstance(action, EndContent | EndMembers | ReleaseSnapshot):
            assert facts.stage is SnapshotStage.ENDING, "nothing ends before its user says so"
        if isinstance(action, MakeContent):
            assert facts.stage is SnapshotStage.BARE

    each()


def test_the_table_of_stages_has_all_and_each_once() -> None:
    pairs = [(stage, row.event) for row in STAGES.rows for stage in row.before]
    assert len(pairs) == len(set(pairs))
    assert {stage for stage, _ in pairs} == set(SnapshotStage)
    assert {event for _, event in pairs} == set(SnapshotEvent)
