"""What is to be done for one VolumeSnapshot: a table from what is known to one action. No I/O.

In order: a snapshot that is being deleted lets its content go, and goes itself; one that has a content is bound to it
and shows its status; one without makes its content, whole, in one write. Nothing is held by a snapshot that cannot be
made. A snapshot that was ready is never made again: its data would be of a later moment. A member of a group only
shows its content, and is deleted with its group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tonnage.aio.clock import rfc3339
from tonnage.api import names
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.group_snapshot import IN_GROUP, group_of, member_content
from tonnage.api.kinds import SNAPSHOT_CLASSES, SNAPSHOT_CONTENTS, SNAPSHOTS
from tonnage.api.quantity import from_bytes
from tonnage.api.snapshot import (
    AS_SOURCE,
    BEING_DELETED,
    BOUND,
    CONTENT_BOUND,
    DEFAULT_CLASS,
    MANAGED_BY,
    PROVISIONER_SOURCE,
    SECRET_NAME,
    SECRET_NAMESPACE,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
    content_name,
)
from tonnage.controller.snapshots.sources import default_class, driver_of, secret_of
from tonnage.errors import InvalidError
from tonnage.kube.object_write import has_fields

_NANO = 1_000_000_000
PROTECTION = (AS_SOURCE, BOUND)
PENDING = "SnapshotDeletePending"


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """What is known of a snapshot.

    content: that of its name, wherever it points to. storage_class: the one that it names. defaults: the default
    classes of all drivers. claim, volume: its source. node: of the volume, "" if unknown. restored: a Pending claim
    that is made from it. group: the VolumeGroupSnapshot that a deleted snapshot cannot leave, "" for none. ours:
    drivers that our agents serve.
    """

    snapshot: VolumeSnapshot
    content: VolumeSnapshotContent | None = None
    storage_class: VolumeSnapshotClass | None = None
    defaults: Sequence[VolumeSnapshotClass] = ()
    claim: PersistentVolumeClaim | None = None
    volume: PersistentVolume | None = None
    node: str = ""
    restored: str = ""
    group: str = ""
    ours: Collection[str] = (names.DRIVER,)


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """Do nothing before the next change."""


@dataclass(frozen=True, slots=True)
class RefuseSnapshot:
    """Write the error into the snapshot's status and emit it. ready: what readyToUse is written as, None for not."""

    reason: str
    message: str
    ready: bool | None = False


@dataclass(frozen=True, slots=True)
class WarnOnly:
    """Emit a warning, and wait."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PrepareSnapshot:
    """Put both finalizers on the snapshot, and the default class into it. One write."""

    storage_class: str = ""


@dataclass(frozen=True, slots=True)
class MakeContent:
    """Create the content."""

    body: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BindContent:
    """Write the snapshot's uid and class, and the finalizer, into a content that was there before it."""

    body: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ShowContent:
    """Write the content's status into the snapshot. failure: of a driver whose agent does not emit it."""

    status: Mapping[str, Any]
    is_taken: bool = False
    is_ready: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True)
class EndContent:
    """Delete the content. marked: first tell upstream's snapshotter that it may delete."""

    marked: bool


@dataclass(frozen=True, slots=True)
class ReleaseSnapshot:
    """Take the finalizers off the snapshot. marked: first tell upstream's snapshotter of a content that stays."""

    marked: bool = False


Begun = PrepareSnapshot | MakeContent | BindContent | ShowContent
Action = NothingToDo | RefuseSnapshot | WarnOnly | Begun | EndContent | ReleaseSnapshot


def content_of(snapshot: VolumeSnapshot) -> str:
    """The name of a snapshot's content."""
    named = snapshot.spec.source.volume_snapshot_content_name or member_content(snapshot)
    return named or content_name(snapshot.metadata.uid)


def decide(facts: SnapshotFacts) -> Action:
    """The next action."""
    if facts.snapshot.metadata.deleting:
        return _end(facts)
    if facts.content is not None:
        return _with_content(facts, facts.content)
    return _without_content(facts)


# Deleted


def _end(facts: SnapshotFacts) -> Action:
    snapshot, content = facts.snapshot, facts.content
    if not {*PROTECTION, IN_GROUP, PROVISIONER_SOURCE} & set(snapshot.metadata.finalizers):
        return NothingToDo()
    if facts.group:
        text = f"VolumeSnapshot is a member of VolumeGroupSnapshot {facts.group}, and is deleted with it: delete that"
        return WarnOnly(PENDING, text)
    if content is None or not _is_bound(content, snapshot):
        return ReleaseSnapshot()
    if facts.restored and snapshot.status.ready_to_use:
        return WarnOnly(PENDING, f"Snapshot is being used to restore a PVC: claim {facts.restored}")
    unmarked = content.metadata.annotations.get(BEING_DELETED) != "yes"
    marked = content.spec.driver not in facts.ours and unmarked
    if content.spec.deletion_policy != "Delete":
        return ReleaseSnapshot(marked)
    return NothingToDo() if content.metadata.deleting and not marked else EndContent(marked)


def _is_bound(content: VolumeSnapshotContent, snapshot: VolumeSnapshot) -> bool:
    ref, meta = content.spec.volume_snapshot_ref, snapshot.metadata
    return (ref.namespace, ref.name, ref.uid) == (meta.namespace, meta.name, meta.uid)


# With a content


def _with_content(facts: SnapshotFacts, content: VolumeSnapshotContent) -> Action:
    snapshot, name = facts.snapshot, content.metadata.name
    ref, meta = content.spec.volume_snapshot_ref, snapshot.metadata
    existing, member = bool(snapshot.spec.source.volume_snapshot_content_name), bool(member_content(snapshot))
    if existing and not member and content.spec.source.volume_handle:
        text = f"VolumeSnapshotContent [{name}] was made for a claim: name one that has a snapshotHandle"
        return RefuseSnapshot("SnapshotContentMismatch", text)
    if not existing and not member and content.spec.source.snapshot_handle:
        return RefuseSnapshot("SnapshotHandleSet", f"VolumeSnapshotContent [{name}] has a snapshotHandle: delete it")
    if (ref.namespace, ref.name) != (meta.namespace, meta.name) or ref.uid not in ("", meta.uid):
        reason = "SnapshotMisbound" if snapshot.status.ready_to_use else "SnapshotContentMisbound"
        return RefuseSnapshot(reason, f"VolumeSnapshotContent [{name}] is bound to a different snapshot")
    if not set(PROTECTION) <= set(meta.finalizers):
        return PrepareSnapshot()
    protected = CONTENT_BOUND in content.metadata.finalizers or content.metadata.deleting
    return BindContent(_binding(snapshot, content)) if not ref.uid or not protected else _show(facts, content)


def _binding(snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> dict[str, Any]:
    spec: dict[str, Any] = {"volumeSnapshotRef": {"uid": snapshot.metadata.uid}}
    if name := snapshot.spec.volume_snapshot_class_name:
        spec["volumeSnapshotClassName"] = name
    body: dict[str, Any] = {"spec": spec}
    if CONTENT_BOUND not in content.metadata.finalizers and not content.metadata.deleting:
        body["metadata"] = {"finalizers": [*content.metadata.finalizers, CONTENT_BOUND]}
    return body


def _show(facts: SnapshotFacts, content: VolumeSnapshotContent) -> Action:
    """Nothing is written while the driver has not answered."""
    found, was = content.status, facts.snapshot.status
    if found.ready_to_use is None and found.error is None:
        return NothingToDo()
    ready = bool(found.ready_to_use)
    status: dict[str, Any] = {"boundVolumeSnapshotContentName": content.metadata.name, "readyToUse": ready}
    if found.creation_time:
        status["creationTime"] = rfc3339(found.creation_time / _NANO)
    if found.restore_size:
        status["restoreSize"] = from_bytes(found.restore_size)
    if (owner := group_of(facts.snapshot)) is not None:
        status["volumeGroupSnapshotName"] = owner.name
    failure = found.error if not ready else None
    status["error"] = {"message": failure.message, "time": failure.time} if failure is not None else None
    if has_fields(was, status):
        return NothingToDo()
    said = failure.message if failure is not None and content.spec.driver not in facts.ours else ""
    is_taken = bool(found.creation_time and not was.creation_time)
    return ShowContent(status, is_taken, ready and not was.ready_to_use, said)


# Without a content


def _without_content(facts: SnapshotFacts) -> Action:
    snapshot = facts.snapshot
    if snapshot.spec.source.volume_snapshot_content_name or snapshot.status.creation_time:
        return RefuseSnapshot("SnapshotContentMissing", "VolumeSnapshotContent is missing")
    if member_content(snapshot):  # the loop of the groups makes it
        return NothingToDo()
    name = snapshot.spec.volume_snapshot_class_name or ""
    chosen = facts.storage_class
    if name and chosen is None:
        why = f'{SNAPSHOT_CLASSES.qualified} "{name}" not found: make it, or name another one'
        return RefuseSnapshot("GetSnapshotClassFailed", f"Failed to get snapshot class with error {why}", ready=None)
    try:
        driver = _driver_of(facts)
        if chosen is None:
            chosen = default_class(facts.defaults, driver)
        body = content_body(facts, chosen)
    except InvalidError as error:
        if not name and chosen is None:
            text = f"Failed to set default snapshot class with error {error}"
            return RefuseSnapshot("SetDefaultSnapshotClassFailed", text, ready=None)
        return RefuseSnapshot("SnapshotContentCreationFailed", f"Failed to create snapshot content with error {error}")
    if not name or not set(PROTECTION) <= set(snapshot.metadata.finalizers):
        return PrepareSnapshot("" if name else chosen.metadata.name)
    return MakeContent(body)


def _driver_of(facts: SnapshotFacts) -> str:
    """The driver of the source. Raises InvalidError for what is no source."""
    if facts.claim is None:
        meta, source = facts.snapshot.metadata, facts.snapshot.spec.source
        raise InvalidError(f"claim {meta.namespace}/{source.persistent_volume_claim_name} is not there")
    return driver_of(facts.claim, facts.volume, facts.snapshot.key)


def is_default(one: VolumeSnapshotClass) -> bool:
    """Whether snapshots without class get this one."""
    return one.metadata.annotations.get(DEFAULT_CLASS) == "true"


def content_body(facts: SnapshotFacts, chosen: VolumeSnapshotClass) -> dict[str, Any]:
    """The whole content of a snapshot. Raises InvalidError for a class that does not fit its source."""
    meta, volume, name = facts.snapshot.metadata, facts.volume, chosen.metadata.name
    assert volume is not None
    assert volume.spec.csi is not None
    if chosen.driver != (driver := volume.spec.csi.driver):
        claim = facts.snapshot.spec.source.persistent_volume_claim_name
        why = f"class {name} is of driver {chosen.driver}, the volume of claim {claim} of {driver}"
        raise InvalidError(f"{why}: name a class of {driver}")
    made: dict[str, Any] = {"name": content_name(meta.uid), "finalizers": [CONTENT_BOUND]}
    if facts.node:
        made["labels"] = {MANAGED_BY: facts.node}
    if secret := _secret(facts, chosen):
        made["annotations"] = secret
    ref = {
        "apiVersion": SNAPSHOTS.api_version, "kind": SNAPSHOTS.kind, "namespace": meta.namespace, "name": meta.name,
        "uid": meta.uid, "resourceVersion": meta.resource_version,
    }  # fmt: skip
    spec = {
        "volumeSnapshotRef": ref,
        "source": {"volumeHandle": volume.spec.csi.volume_handle},
        "sourceVolumeMode": volume.spec.volume_mode or "Filesystem",
        "driver": driver,
        "deletionPolicy": chosen.deletion_policy,
        "volumeSnapshotClassName": name,
    }
    return {**SNAPSHOT_CONTENTS.head(), "metadata": made, "spec": spec}


def _secret(facts: SnapshotFacts, chosen: VolumeSnapshotClass) -> dict[str, str]:
    """The annotations of the class's Secret. Raises InvalidError."""
    meta = facts.snapshot.metadata
    tokens = {"volumesnapshotcontent.name": content_name(meta.uid), "volumesnapshot.namespace": meta.namespace}
    found = secret_of(chosen, "snapshotter", {**tokens, "volumesnapshot.name": meta.name})
    return {SECRET_NAME: found[0], SECRET_NAMESPACE: found[1]} if found is not None else {}
