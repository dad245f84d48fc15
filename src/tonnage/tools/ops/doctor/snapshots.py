"""Checks of snapshots: their kinds, a class of ours, a controller that binds them, and agents that make them."""

from __future__ import annotations

from collections.abc import Iterator

from tonnage.base.aio.clock import time_of
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.snapshot import (
    BEING_DELETED,
    CONTENT_BOUND,
    MANAGED_BY,
    VolumeSnapshot,
    VolumeSnapshotContent,
)
from tonnage.tools.ops.cluster_snapshot import View
from tonnage.tools.ops.doctor.claims import PATIENCE
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn
from tonnage.tools.ops.doctor.installation import APPLY

_CHECK = "snapshots"
_KINDS = (kinds.SNAPSHOTS, kinds.SNAPSHOT_CONTENTS, kinds.SNAPSHOT_CLASSES)
_CRDS = "tonnage manifests --snapshot-crds | kubectl create -f -"
_FLAG = "--snapshot-controller"
_RUN_ONE = f"run one: tonnage manifests {_FLAG}, or upstream's snapshot-controller (docs/tasks/snapshots.md)"


def check(view: View) -> Iterator[Finding]:
    """All of our driver. Nothing for a cluster that has no snapshots."""
    lacking = [kind.plural for kind in _KINDS if f"{kind.api_version}/{kind.plural}" not in view.served]
    if lacking:
        yield from _unserved(view, lacking)
        return
    if {kind.plural for kind in _KINDS} & view.rejected.keys():
        return
    found = [*_class(view), *_unbound(view), *_unanswered(view)]
    yield from found
    if not found:
        text = f"{len(view.our_contents)}, each ready or with a reason; {few(_classes(view))} makes more"
        yield ok(_CHECK, "snapshots", text)


def has_controller(view: View) -> bool:
    """Whether our controller is the cluster's snapshot controller."""
    containers = [
        container
        for found in view.deployments
        for container in found.spec.template.get("spec", {}).get("containers", ())
    ]
    return view.is_box or any(_FLAG in container.get("args", ()) for container in containers)


def _unserved(view: View, lacking: list[str]) -> Iterator[Finding]:
    ours = _classes(view)
    if not has_controller(view) and not ours:
        return
    why = f"the controller has {_FLAG}" if has_controller(view) else f"there is the class {few(ours)}"
    text = f"Kubernetes does not serve {few(lacking)} of {kinds.SNAPSHOTS.api_version}, yet {why}: no snapshot is made"
    yield fail(_CHECK, "kinds", text, _CRDS)


def _classes(view: View) -> list[str]:
    return sorted(found.metadata.name for found in view.snapshot_classes if found.driver == names.DRIVER)


def _class(view: View) -> Iterator[Finding]:
    if not _classes(view):
        text = f"no VolumeSnapshotClass has driver {names.DRIVER}: no VolumeSnapshot of our volumes can be made"
        yield warn(_CHECK, "volumesnapshotclasses", text, f"add --snapshot-class, and {APPLY}")


def _unbound(view: View) -> Iterator[Finding]:
    """VolumeSnapshots that no controller looks at: one that does writes a content's name, or an error."""
    waiting = [one for one in view.snapshots if _is_ours(view, one) and _is_unseen(one) and _is_old(view, one)]
    if not waiting:
        return
    listed = few(sorted(one.key for one in waiting))
    if has_controller(view):
        todo = f"kubectl -n {view.namespace} logs -l app.kubernetes.io/component=controller; see controller"
        yield fail(_CHECK, "controller", f"the snapshot controller has not answered: {listed}", todo)
    else:
        yield fail(_CHECK, "controller", f"no snapshot controller answers: {listed}", _RUN_ONE)


def _is_ours(view: View, snapshot: VolumeSnapshot) -> bool:
    """Whether a VolumeSnapshot has a class of ours, or the claim of a volume of ours."""
    if (name := snapshot.spec.volume_snapshot_class_name) is not None:
        return name in _classes(view)
    wanted = snapshot.metadata.namespace, snapshot.spec.source.persistent_volume_claim_name
    claims = (volume.spec.claim_ref for volume in view.our_volumes)
    return any(ref is not None and (ref.namespace, ref.name) == wanted for ref in claims)


def _is_unseen(snapshot: VolumeSnapshot) -> bool:
    status = snapshot.status
    return not status.bound_volume_snapshot_content_name and status.error is None


def _unanswered(view: View) -> Iterator[Finding]:
    """Contents that their agent has not made, or does not delete."""
    known = {names.label_value(name): name for name in view.node_names}
    for content in view.our_contents:
        if not _is_old(view, content):
            continue
        label, waits = content.metadata.labels.get(MANAGED_BY, ""), _wait_of(content)
        node = known.get(label, label)
        if not waits:
            continue
        if not node:
            text = f"{waits}, and no agent has taken it: its volume or snapshot is on no node that is served"
            yield warn(_CHECK, content.key, text, f"kubectl describe volumesnapshotcontent {content.metadata.name}")
            continue
        down = view.is_down(node)
        text = f"{waits} by node {node}{', whose agent is not ready' if down else ''}"
        todo = "see agents" if down else f"kubectl describe volumesnapshotcontent {content.metadata.name}"
        yield (fail if down else warn)(_CHECK, content.key, text, todo)


def _wait_of(content: VolumeSnapshotContent) -> str:
    """What a content waits for, "" for nothing, or for something that its status tells."""
    meta = content.metadata
    if meta.deleting:
        released = meta.annotations.get(BEING_DELETED) == "yes" or not content.spec.volume_snapshot_ref.uid
        return "it waits for deletion" if released and CONTENT_BOUND in meta.finalizers else ""
    return "" if content.status.ready_to_use or content.status.error is not None else "it waits to be made"


def _is_old(view: View, found: KubeObject) -> bool:
    since = time_of(found.metadata.deletion_timestamp or found.metadata.creation_timestamp)
    return since is not None and view.now - since > PATIENCE
