"""The definitions of `tonnage manifests --snapshot-crds` on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.control_plane import ControlPlane
from tests.unit.box.apiserver.kinds.snapshot import test_group_validation as groups
from tests.unit.box.apiserver.kinds.snapshot.test_validation import (
    CLASSES,
    CONTENTS,
    SNAPSHOTS,
    classed,
    content,
    snapshot,
)

from tonnage.kubernetes.api import kinds
from tonnage.tools.ops.install import manifests

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
Obj = dict[str, Any]
KINDS: dict[str, kinds.Kind[Any]] = {
    CLASSES: kinds.SNAPSHOT_CLASSES,
    CONTENTS: kinds.SNAPSHOT_CONTENTS,
    SNAPSHOTS: kinds.SNAPSHOTS,
    groups.CLASSES: kinds.GROUP_CLASSES,
    groups.CONTENTS: kinds.GROUP_CONTENTS,
    groups.GROUPS: kinds.GROUP_SNAPSHOTS,
}
EMPTY = (SNAPSHOTS, snapshot(source={}), None)
PRE = {"volumeSnapshotContentName": "c"}


def define(plane: ControlPlane) -> None:
    """Make the definitions, or replace those of another test. They stay: others may use them."""
    plane.kubectl("apply", "-f", "-", stdin=manifests.template("snapshot-crds.yaml"))
    plane.kubectl("wait", "--for=condition=Established", "crd", *(kind.qualified for kind in KINDS.values()))
    plane.until("they are served", lambda: plane.try_kubectl("get", "vs,vsc,vsclass,vgs,vgsc,vgsclass").returncode == 0)


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    define(control_plane)
    control_plane.kubectl("create", "namespace", "definitions")
    control_plane.until("its rules are at work", lambda: "exactly one of" in said(control_plane, *EMPTY))
    yield control_plane
    control_plane.kubectl("delete", "namespace", "definitions", "--wait=false")


def said(plane: ControlPlane, key: str, new: Obj, old: Obj | None) -> str:
    """What becomes of an object, or of its update. Nothing is left."""
    head = {"metadata": {"name": "x", "namespace": "definitions"}}

    def send(verb: str, body: Obj) -> Any:
        return plane.try_kubectl(verb, "-f", "-", "--validate=false", stdin=json.dumps(KINDS[key].head() | body | head))

    if old is not None:
        made = send("create", old)
        assert made.returncode == 0, made.stderr
    ended = send("replace" if old is not None else "create", new)
    plane.kubectl("delete", KINDS[key].plural, "x", "-n", "definitions", "--ignore-not-found")
    return "" if ended.returncode == 0 else str(ended.stderr)


@pytest.mark.parametrize(
    ("key", "new", "old", "message"),
    [
        (SNAPSHOTS, snapshot(), None, ""),
        (SNAPSHOTS, snapshot(volumeSnapshotClassName="c"), snapshot(), ""),
        (CONTENTS, content(deletionPolicy="Retain", driver="c.d"), content(), ""),
        (CLASSES, classed(driver="c.d"), classed(), ""),
        (SNAPSHOTS, snapshot(source={}), None, "exactly one of volumeSnapshotContentName and"),
        (SNAPSHOTS, snapshot(source=PRE), snapshot(), "persistentVolumeClaimName is required once set"),
        (SNAPSHOTS, snapshot(), snapshot(source=PRE), "volumeSnapshotContentName is required once set"),
        (
            SNAPSHOTS,
            snapshot(source={"persistentVolumeClaimName": "other"}),
            snapshot(),
            "persistentVolumeClaimName is immutable",
        ),
        (SNAPSHOTS, snapshot(volumeSnapshotClassName=""), None, "must not be the empty string when set"),
        (CONTENTS, content(source={}), None, "exactly one of volumeHandle and snapshotHandle must be set"),
        (CONTENTS, content(source={"volumeHandle": "w"}), content(), "volumeHandle is immutable"),
        (CONTENTS, content(source={"snapshotHandle": "s"}), content(), "volumeHandle is required once set"),
        (CONTENTS, content(sourceVolumeMode="Block"), content(sourceVolumeMode="Filesystem"), "Mode is immutable"),
        (CONTENTS, content(), content(sourceVolumeMode="Block"), "sourceVolumeMode is required once set"),
        (CONTENTS, content(volumeSnapshotRef={"name": "x"}), None, "both spec.volumeSnapshotRef.name and"),
        (CONTENTS, content(deletionPolicy="Keep"), None, 'supported values: "Delete", "Retain"'),
        (CLASSES, classed(driver=None), None, "driver: Required value"),
        (groups.GROUPS, groups.group(), None, ""),
        (groups.GROUPS, groups.group(source={}), None, "exactly one of selector and volumeGroupSnapshotContentName"),
        (groups.GROUPS, groups.group(source=groups.PRE), groups.group(), "selector is required once set"),
        (groups.GROUPS, groups.group(source={"selector": {}}), groups.group(), "selector is immutable"),
        (groups.CONTENTS, groups.content(deletionPolicy="Retain"), groups.content(), ""),
        (groups.CONTENTS, groups.WITH_UID, groups.content(), ""),
        (groups.CONTENTS, groups.content(), groups.WITH_UID, "volumeGroupSnapshotRef.uid is immutable once set"),
        (groups.CONTENTS, groups.content(driver="c.d"), groups.content(), "driver is immutable once set"),
        (groups.CONTENTS, groups.content(source={}), None, "exactly one of volumeHandles and groupSnapshotHandles"),
        (groups.CONTENTS, groups.content(volumeGroupSnapshotRef={"name": "x"}), None, "both volumeGroupSnapshotRef.na"),
        (groups.CLASSES, groups.classed(deletionPolicy="Retain"), groups.classed(), "deletionPolicy is immutable once"),
    ],
)
def test_they_reject_what_the_box_rejects(
    plane: ControlPlane, key: str, new: Obj, old: Obj | None, message: str
) -> None:
    found = said(plane, key, new, old)
    assert message in found
    assert bool(found) == bool(message), found
