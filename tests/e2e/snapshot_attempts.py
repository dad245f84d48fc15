"""What an agent's token may do to contents of snapshots and groups, and what somebody who stole it could try."""

from __future__ import annotations

from typing import Any

from tests.e2e.attempts import DRY, Try, World, apply, delete, patch, put
from tests.e2e.control_plane import ControlPlane

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.group_snapshot import GROUP_BEING_DELETED, GROUP_CONTENT_BOUND
from tonnage.kubernetes.api.snapshot import ALLOW_MODE_CHANGE, BEING_DELETED, CONTENT_BOUND, MANAGED_BY

GROUP = "snapshot.storage.k8s.io"
CONTENTS = f"/apis/{GROUP}/v1/volumesnapshotcontents"
SNAPSHOTS = f"/apis/{GROUP}/v1/namespaces/power/volumesnapshots"
GROUPS = "groupsnapshot.storage.k8s.io"
GROUP_CONTENTS = f"/apis/{GROUPS}/v1/volumegroupsnapshotcontents"
GROUP_SNAPSHOTS = f"/apis/{GROUPS}/v1/namespaces/power/volumegroupsnapshots"
KINDS = (
    (GROUP, "VolumeSnapshot", "Namespaced"),
    (GROUP, "VolumeSnapshotContent", "Cluster"),
    (GROUP, "VolumeSnapshotClass", "Cluster"),
    (GROUPS, "VolumeGroupSnapshot", "Namespaced"),
    (GROUPS, "VolumeGroupSnapshotContent", "Cluster"),
    (GROUPS, "VolumeGroupSnapshotClass", "Cluster"),
)
OTHERS_CONTENT = "may not touch the content of a snapshot or group on another node"
FOREIGN = "may not touch the content of a snapshot or group of another driver"
ONLY_TAKES = "changes nothing of the content of a snapshot or group but takes"
NO_OTHER_SNAPSHOT = "no other snapshot than the one"
NO_OTHER_GROUP = "no other snapshots than those"
RBAC = "cannot"
_MEMBERS = [{"volumeHandle": f"scratch/pvc-{n}", "snapshotHandle": f"scratch/s{n}"} for n in (1, 2)]
GROUP_STATUS = {"volumeGroupSnapshotHandle": "g", "readyToUse": True, "volumeSnapshotInfoList": _MEMBERS}


def serve(plane: ControlPlane) -> None:
    """Make CustomResourceDefinitions of the kinds where there are none; any fields are taken."""
    for group, kind, scope in KINDS:
        plural = _plural(kind)
        name = f"{plural}.{group}"
        if plane.try_kubectl("get", "crd", name).returncode == 0:
            continue
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        version["subresources"] = {"status": {}}
        notes = {"api-approved.kubernetes.io": "unapproved, for tests"}
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": name, "annotations": notes},
            "spec": {
                "group": group,
                "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [version],
            },
        }
        plane.apply(body)
    for group, kind, _ in KINDS:
        plane.kubectl("wait", "--for=condition=Established", f"crd/{_plural(kind)}.{group}", "--timeout=60s")
    for path in (CONTENTS, GROUP_CONTENTS):
        plane.until("contents are served", lambda path=path: plane.send("GET", path).status == 200)  # type: ignore[misc]


def _plural(kind: str) -> str:
    return f"{kind.lower()}es" if kind.endswith("Class") else f"{kind.lower()}s"


def make_contents(world: World) -> None:
    """A content of each node, one without, one of another driver, and one that is being deleted."""
    for name, node, driver in (
        ("power-mine", world.mine, names.DRIVER),
        ("power-other", world.other, names.DRIVER),
        ("power-free", "", names.DRIVER),
        ("power-alien", world.mine, "csi.example.com"),
        ("power-going", world.mine, names.DRIVER),
        ("power-long", names.label_value(world.long), names.DRIVER),
    ):
        ref = {"kind": "VolumeSnapshot", "apiVersion": f"{GROUP}/v1", "namespace": "power", "name": name}
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "VolumeSnapshotContent",
            "metadata": {
                "name": name,
                "finalizers": [CONTENT_BOUND, "example.com/theirs"],
                "labels": {"people/own": "x", **({MANAGED_BY: node} if node else {})},
                "annotations": {"people/own": "x"},
            },
            "spec": {
                "driver": driver,
                "deletionPolicy": "Delete",
                "source": {"volumeHandle": "scratch/pvc-1"},
                "volumeSnapshotRef": {**ref, "uid": f"uid-{name}"},
            },
        }
        world.plane.create(body)
        handle = {"status": {"snapshotHandle": "scratch/s", "readyToUse": True}}
        world.plane.send("PATCH", f"{CONTENTS}/{name}/status", handle)
        _make_group_content(world, body)
    for path in (CONTENTS, GROUP_CONTENTS):
        world.plane.send("DELETE", f"{path}/power-going")
    body = {"apiVersion": f"{GROUP}/v1", "kind": "VolumeSnapshot", "metadata": {"name": "s", "namespace": "power"}}
    world.plane.create({**body, "spec": {"source": {"persistentVolumeClaimName": "mine"}}})
    body = {**body, "apiVersion": f"{GROUPS}/v1", "kind": "VolumeGroupSnapshot"}
    world.plane.create({**body, "spec": {"source": {"selector": {"matchLabels": {"app": "db"}}}}})


def _make_group_content(world: World, single: dict[str, Any]) -> None:
    """A group content like a content of a snapshot."""
    meta, spec = single["metadata"], single["spec"]
    ref = {**spec["volumeSnapshotRef"], "kind": "VolumeGroupSnapshot", "apiVersion": f"{GROUPS}/v1"}
    body = {
        "apiVersion": f"{GROUPS}/v1",
        "kind": "VolumeGroupSnapshotContent",
        "metadata": {**meta, "finalizers": [GROUP_CONTENT_BOUND, "example.com/theirs"]},
        "spec": {
            "driver": spec["driver"],
            "deletionPolicy": "Delete",
            "source": {"volumeHandles": ["scratch/pvc-1", "scratch/pvc-2"]},
            "volumeGroupSnapshotRef": ref,
        },
    }
    world.plane.create(body)
    world.plane.send("PATCH", f"{GROUP_CONTENTS}/{meta['name']}/status", {"status": GROUP_STATUS})


def remove_contents(world: World) -> None:
    """All of them."""
    for kind in (CONTENTS, GROUP_CONTENTS):
        for content in world.plane.send("GET", kind).body["items"]:
            path = f"{kind}/{content['metadata']['name']}"
            world.plane.send("PATCH", path, {"metadata": {"finalizers": None}})
            world.plane.send("DELETE", path)


def versions(world: World) -> dict[str, str]:
    """Path -> resourceVersion of every content."""
    return {
        f"{kind}/{content['metadata']['name']}": content["metadata"]["resourceVersion"]
        for kind in (CONTENTS, GROUP_CONTENTS)
        for content in world.plane.send("GET", kind).body["items"]
    }


def _meta(name: str, *, of: str = CONTENTS, **changes: Any) -> Try:
    return patch(f"{of}/{name}", {"metadata": changes})


def _status(name: str, *, of: str = CONTENTS, **changes: Any) -> Try:
    return patch(f"{of}/{name}/status", {"status": changes})


def _labelled(name: str, node: str, *, of: str = CONTENTS) -> Try:
    """node: the name of a field of the world, "" for none."""
    return patch(
        f"{of}/{name}",
        lambda w: {"metadata": {"labels": {MANAGED_BY: getattr(w, node) if node else None}}},
    )


_OF = GROUP_CONTENTS
_GROUPS_REJECTED: dict[str, tuple[str, Try]] = {
    "another's group released": (OTHERS_CONTENT, _meta("power-other", of=_OF, finalizers=None)),
    "another's group taken": (OTHERS_CONTENT, _labelled("power-other", "mine", of=_OF)),
    "another's group called ready": (OTHERS_CONTENT, _status("power-other", of=_OF, readyToUse=True)),
    "free group given to another": (OTHERS_CONTENT, _labelled("power-free", "other", of=_OF)),
    "free group called ready": (OTHERS_CONTENT, _status("power-free", of=_OF, readyToUse=True)),
    "own group given away": (OTHERS_CONTENT, _labelled("power-mine", "other", of=_OF)),
    "own group freed": (OTHERS_CONTENT, _labelled("power-mine", "", of=_OF)),
    "another driver's group released": (FOREIGN, _meta("power-alien", of=_OF, finalizers=None)),
    "own group released": (ONLY_TAKES, _meta("power-mine", of=_OF, finalizers=["example.com/theirs"])),
    "another's finalizer of a group": (ONLY_TAKES, _meta("power-going", of=_OF, finalizers=[GROUP_CONTENT_BOUND])),
    "own group relabelled": (ONLY_TAKES, _meta("power-mine", of=_OF, labels={"people/own": "y"})),
    "own group annotated": (ONLY_TAKES, _meta("power-mine", of=_OF, annotations={GROUP_BEING_DELETED: "yes"})),
    "own group of another policy": (ONLY_TAKES, patch(f"{_OF}/power-mine", {"spec": {"deletionPolicy": "Retain"}})),
    "own group of other volumes": (
        ONLY_TAKES,
        patch(f"{_OF}/power-mine", {"spec": {"source": {"volumeHandles": ["scratch/pvc-3"]}}}),
    ),
    "own group with another id": (NO_OTHER_GROUP, _status("power-mine", of=_OF, volumeGroupSnapshotHandle="h")),
    "own group without its id": (NO_OTHER_GROUP, _status("power-mine", of=_OF, volumeGroupSnapshotHandle=None)),
    "own group with other snapshots": (NO_OTHER_GROUP, _status("power-mine", of=_OF, volumeSnapshotInfoList=[])),
    "a group content made": (RBAC, lambda w: w.try_("POST", GROUP_CONTENTS, {"metadata": {"name": "new"}})),
    "a group content deleted": (RBAC, delete(f"{_OF}/power-mine")),
    "all group contents": (RBAC, delete(_OF)),
    "a group made": (RBAC, lambda w: w.try_("POST", GROUP_SNAPSHOTS, {"metadata": {"name": "new"}})),
    "a group called ready": (RBAC, patch(f"{GROUP_SNAPSHOTS}/s/status", {"status": {"readyToUse": True}})),
    "a group deleted": (RBAC, delete(f"{GROUP_SNAPSHOTS}/s")),
    "all groups read": (RBAC, lambda w: w.try_("GET", GROUP_SNAPSHOTS)),
    "a group class": (RBAC, delete(f"/apis/{GROUPS}/v1/volumegroupsnapshotclasses/any")),
}
REJECTED: dict[str, tuple[str, Try]] = {
    **_GROUPS_REJECTED,
    "another's content released": (OTHERS_CONTENT, _meta("power-other", finalizers=None)),
    "another's content taken": (OTHERS_CONTENT, _labelled("power-other", "mine")),
    "another's content freed": (OTHERS_CONTENT, _labelled("power-other", "")),
    "another's content called ready": (OTHERS_CONTENT, _status("power-other", readyToUse=True, restoreSize=1)),
    "another's content with another snapshot": (OTHERS_CONTENT, _status("power-other", snapshotHandle="scratch/x")),
    "free content given to another": (OTHERS_CONTENT, _labelled("power-free", "other")),
    "free content released": (OTHERS_CONTENT, _meta("power-free", finalizers=None)),
    "free content called ready": (OTHERS_CONTENT, _status("power-free", readyToUse=True)),
    "own content given away": (OTHERS_CONTENT, _labelled("power-mine", "other")),
    "own content freed": (OTHERS_CONTENT, _labelled("power-mine", "")),
    "another driver's content released": (FOREIGN, _meta("power-alien", finalizers=None)),
    "another driver's content called ready": (FOREIGN, _status("power-alien", readyToUse=True)),
    "own content released": (ONLY_TAKES, _meta("power-mine", finalizers=["example.com/theirs"])),
    "another's finalizer of a content": (ONLY_TAKES, _meta("power-going", finalizers=[CONTENT_BOUND])),
    "own content with a new finalizer": (
        ONLY_TAKES,
        _meta("power-mine", finalizers=[CONTENT_BOUND, "example.com/theirs", "example.com/x"]),
    ),
    "own content relabelled": (ONLY_TAKES, _meta("power-mine", labels={"people/own": "y"})),
    "own content with a new label": (ONLY_TAKES, _meta("power-mine", labels={"quota": "free"})),
    "free content taken with another label": (
        ONLY_TAKES,
        patch(f"{CONTENTS}/power-free", lambda w: {"metadata": {"labels": {MANAGED_BY: w.mine, "x": "y"}}}),
    ),
    "own content annotated": (ONLY_TAKES, _meta("power-mine", annotations={ALLOW_MODE_CHANGE: "true"})),
    "own content called deleted": (ONLY_TAKES, _meta("power-mine", annotations={BEING_DELETED: "yes"})),
    "own content's annotation taken": (ONLY_TAKES, _meta("power-mine", annotations={"people/own": None})),
    "own content with an owner": (
        ONLY_TAKES,
        _meta("power-mine", ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]),
    ),
    "own content of another policy": (
        ONLY_TAKES,
        patch(f"{CONTENTS}/power-mine", {"spec": {"deletionPolicy": "Retain"}}),
    ),
    "own content of another driver": (
        ONLY_TAKES,
        patch(f"{CONTENTS}/power-mine", {"spec": {"driver": "csi.example.com"}}),
    ),
    "own content for another snapshot": (
        ONLY_TAKES,
        patch(f"{CONTENTS}/power-mine", {"spec": {"volumeSnapshotRef": {"namespace": "power", "name": "s"}}}),
    ),
    "free content taken and changed": (
        ONLY_TAKES,
        patch(
            f"{CONTENTS}/power-free",
            lambda w: {"metadata": {"labels": {MANAGED_BY: w.mine}}, "spec": {"deletionPolicy": "Retain"}},
        ),
    ),
    "own content with another's snapshot": (NO_OTHER_SNAPSHOT, _status("power-mine", snapshotHandle="scratch/x")),
    "own content without its snapshot": (NO_OTHER_SNAPSHOT, _status("power-mine", snapshotHandle=None)),
    "another's content by server-side apply": (
        OTHERS_CONTENT,
        apply(
            f"{CONTENTS}/power-other",
            {"apiVersion": f"{GROUP}/v1", "kind": "VolumeSnapshotContent", "metadata": {"labels": {"x": "y"}}},
        ),
    ),
    "a content made": (RBAC, lambda w: w.try_("POST", CONTENTS, {"metadata": {"name": "new"}})),
    "a content by PUT": (RBAC, lambda w: put(w, f"{CONTENTS}/power-mine", lambda b: b["metadata"].pop("finalizers"))),
    "a content deleted": (RBAC, delete(f"{CONTENTS}/power-mine")),
    "all contents": (RBAC, delete(CONTENTS)),
    "a snapshot made": (RBAC, lambda w: w.try_("POST", SNAPSHOTS, {"metadata": {"name": "new"}})),
    "a snapshot changed": (RBAC, patch(f"{SNAPSHOTS}/s", {"metadata": {"labels": {"x": "y"}}})),
    "a snapshot called ready": (RBAC, patch(f"{SNAPSHOTS}/s/status", {"status": {"readyToUse": True}})),
    "a snapshot deleted": (RBAC, delete(f"{SNAPSHOTS}/s")),
    "all snapshots watched": (RBAC, lambda w: w.try_("GET", f"{SNAPSHOTS}?watch=true&timeoutSeconds=1")),
    "a snapshot class": (RBAC, delete(f"/apis/{GROUP}/v1/volumesnapshotclasses/any")),
}
ALLOWED: dict[str, Try] = {
    "snapshots of a finished pod's claim": lambda w: w.try_("GET", SNAPSHOTS),
    "free group taken": patch(f"{_OF}/power-free{DRY}", lambda w: {"metadata": {"labels": {MANAGED_BY: w.mine}}}),
    "own group ready": patch(f"{_OF}/power-mine/status{DRY}", {"status": {"readyToUse": True, "error": None}}),
    "own group failed": patch(
        f"{_OF}/power-mine/status{DRY}", {"status": {"readyToUse": False, "error": {"message": "x"}}}
    ),
    "own group let go": patch(f"{_OF}/power-going{DRY}", {"metadata": {"finalizers": ["example.com/theirs"]}}),
    "a group read": lambda w: w.try_("GET", f"{GROUP_SNAPSHOTS}/s"),
    "free content taken": patch(
        f"{CONTENTS}/power-free{DRY}", lambda w: {"metadata": {"labels": {MANAGED_BY: w.mine}}}
    ),
    "own content ready": patch(
        f"{CONTENTS}/power-mine/status{DRY}", {"status": {"snapshotHandle": "scratch/s", "readyToUse": True}}
    ),
    "own content failed": patch(
        f"{CONTENTS}/power-mine/status{DRY}", {"status": {"readyToUse": False, "error": {"message": "x"}}}
    ),
    "own content let go": patch(f"{CONTENTS}/power-going{DRY}", {"metadata": {"finalizers": ["example.com/theirs"]}}),
    "content of a node with a long name": lambda w: w.try_(
        "PATCH", f"{CONTENTS}/power-long/status{DRY}", {"status": {"readyToUse": True}}, node=w.long
    ),
    "a snapshot read": lambda w: w.try_("GET", f"{SNAPSHOTS}/s"),
}
