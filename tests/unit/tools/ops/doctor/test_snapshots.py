"""Snapshots: a cluster without, a healthy one with, and one thing broken at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.tools.ops.doctor.broken import Broken, assert_found, findings
from tests.unit.tools.ops.doctor.ward import NOW, SERVED, Ward

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.snapshot import (
    BEING_DELETED,
    CONTENT_BOUND,
    MANAGED_BY,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from tonnage.kubernetes.api.workloads import Deployment
from tonnage.tools.ops.doctor import snapshots
from tonnage.tools.ops.doctor.finding import Level

FAIL, WARN = Level.FAIL, Level.WARN
GROUP = "snapshot.storage.k8s.io/v1"
KINDS = frozenset(
    f"{GROUP}/{plural}" for plural in ("volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses")
)
OLD, NEW = NOW - 3600, NOW - 5
DONE = {"readyToUse": True, "snapshotHandle": "scratch/snapshot-1"}
FULL = {"readyToUse": False, "error": {"message": "pool scratch has no capacity"}}


@pytest.fixture
def ward(ward: Ward) -> Ward:
    """The healthy installation, with a snapshot class, a controller of snapshots, and a ready snapshot."""
    ward.view.served = SERVED | KINDS
    made = {"metadata": {"name": "tonnage"}, "driver": names.DRIVER, "deletionPolicy": "Delete"}
    ward.view.snapshot_classes = [msgspec.convert(made, VolumeSnapshotClass)]
    controlled(ward)
    ward.view.contents = [content("c1", DONE)]
    ward.view.snapshots = [snapshot("s1", {"boundVolumeSnapshotContentName": "c1"})]
    return ward


def controlled(ward: Ward) -> None:
    template = {"spec": {"containers": [{"args": ["controller", "--snapshot-controller"]}]}}
    body = {
        "metadata": {"name": "tonnage-controller", "uid": "tonnage-controller"},
        "spec": {"template": template},
        "status": {"replicas": 2, "readyReplicas": 2},
    }
    ward.view.deployments = [msgspec.convert(body, Deployment)]


def content(
    name: str, status: dict[str, Any], *, node: str = "n1", made: float = OLD, **metadata: Any
) -> VolumeSnapshotContent:
    meta = {"name": name, "creationTimestamp": rfc3339(made), "labels": {MANAGED_BY: node} if node else {}, **metadata}
    ref = {"namespace": "team", "name": "s1", "uid": "1"}
    spec = {"driver": names.DRIVER, "source": {"volumeHandle": "scratch/pvc-1"}, "volumeSnapshotRef": ref}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, VolumeSnapshotContent)


def snapshot(name: str, status: dict[str, Any], *, of: str = "tonnage", made: float = OLD) -> VolumeSnapshot:
    meta = {"name": name, "namespace": "team", "creationTimestamp": rfc3339(made)}
    spec = {"source": {"persistentVolumeClaimName": "data"}, **({"volumeSnapshotClassName": of} if of else {})}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, VolumeSnapshot)


def having(**fields: Any) -> Callable[[Ward], None]:
    def change(ward: Ward) -> None:
        for name, value in fields.items():
            setattr(ward.view, name, value)

    return change


def uncontrolled(ward: Ward) -> None:
    ward.view.deployments = [msgspec.convert({"metadata": {"name": "c"}, "status": {"readyReplicas": 1}}, Deployment)]
    ward.view.snapshots = [snapshot("s2", {})]


def deaf(ward: Ward) -> None:
    ward.agent("n1", phase="Failed")
    ward.view.contents = [content("c2", {})]


GOING: dict[str, Any] = {"deletionTimestamp": rfc3339(OLD), "finalizers": [CONTENT_BOUND]}
BROKEN: tuple[Broken, ...] = (
    ("snapshots", having(served=SERVED), FAIL, "yet the controller has --snapshot-controller", "--snapshot-crds"),
    ("snapshots", having(served=SERVED | {f"{GROUP}/volumesnapshotclasses"}, deployments=[]), FAIL, "volumesnapshotcontents of snapshot.storage.k8s.io/v1, yet there is the class tonnage", "kubectl create"),
    ("snapshots", having(snapshot_classes=[]), WARN, "no VolumeSnapshotClass has driver", "--snapshot-class"),
    ("snapshots", having(snapshots=[snapshot("s2", {})]), FAIL, "has not answered: team/s2", "logs"),
    ("snapshots", uncontrolled, FAIL, "no snapshot controller answers: team/s2", "tonnage manifests --snapshot-controller"),
    ("snapshots", having(contents=[content("c2", {})]), WARN, "it waits to be made by node n1", "describe volumesnapshotcontent c2"),
    ("snapshots", deaf, FAIL, "by node n1, whose agent is not ready", "see agents"),
    ("snapshots", having(contents=[content("c2", {}, node="")]), WARN, "no agent has taken it", "describe"),
    ("snapshots", having(contents=[content("c2", DONE, annotations={BEING_DELETED: "yes"}, **GOING)]), WARN, "it waits for deletion by node n1", "describe"),
)  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken[3])
def test_one_thing_is_broken(ward: Ward, broken: Broken) -> None:
    assert_found(ward, broken)


def test_a_healthy_cluster_says_how_many(ward: Ward) -> None:
    assert {found.level for found in findings(ward)} == {Level.OK}
    (found,) = snapshots.check(ward.view)
    assert found.text == "1, each ready or with a reason; tonnage makes more"


def test_a_cluster_without_snapshots_says_nothing(ward: Ward) -> None:
    ward.view.served, ward.view.deployments, ward.view.snapshot_classes = SERVED, [], []
    assert list(snapshots.check(ward.view)) == []


def test_what_is_new_has_a_reason_or_belongs_to_others_is_no_fault(ward: Ward) -> None:
    foreign = msgspec.structs.replace(
        content("c3", {}), spec=msgspec.convert({"driver": "x"}, type(content("c", {}).spec))
    )
    needed = content("c5", DONE, **GOING)  # its VolumeSnapshot is there
    ward.view.contents = [content("c2", {}, made=NEW), content("c4", FULL), foreign, needed]
    rejected = {"error": {"message": "no such claim"}}
    ward.view.snapshots = [snapshot("s2", {}, made=NEW), snapshot("s3", rejected), snapshot("s4", {}, of="other")]
    assert [found.level for found in snapshots.check(ward.view)] == [Level.OK]


def test_a_snapshot_without_class_is_ours_by_its_volume(ward: Ward) -> None:
    ward.view.snapshots = [snapshot("s2", {}, of="")]
    assert [found.level for found in snapshots.check(ward.view)] == [Level.OK]
    ward.volume("pvc-1", "n1")
    volume = msgspec.to_builtins(ward.view.volumes[0])
    volume["spec"]["claimRef"] = {"namespace": "team", "name": "data", "uid": "1"}
    ward.view.volumes = [msgspec.convert(volume, type(ward.view.volumes[0]))]
    assert [found.about for found in snapshots.check(ward.view)] == ["controller"]


def test_nothing_is_said_about_what_may_not_be_read(ward: Ward) -> None:
    ward.view.rejected["volumesnapshots"] = "forbidden"
    assert list(snapshots.check(ward.view)) == []
