"""What is to be done for one VolumeGroupSnapshot: a table from what is known to one action. No I/O.

In order: a group that is being deleted ends its members, then its content, and is released; one that has a content is
bound to it, gets its members once the driver has answered, and shows its status when all of them are ready; one
without content makes it. A group that was ready is never made again: its data would be of a later moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tonnage.api import names
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.group_snapshot import (
    DEFAULT_GROUP_CLASS,
    GROUP_BEING_DELETED,
    GROUP_BOUND,
    GROUP_CONTENT_BOUND,
    GROUP_HANDLE,
    GROUP_SECRET_NAME,
    GROUP_SECRET_NAMESPACE,
    IN_GROUP,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshotInfo,
    group_content_name,
    member_names,
)
from tonnage.api.kinds import GROUP_CLASSES, GROUP_CONTENTS, GROUP_SNAPSHOTS, SNAPSHOT_CONTENTS, SNAPSHOTS
from tonnage.api.selectors import from_label_selector
from tonnage.api.snapshot import (
    AS_SOURCE,
    BOUND,
    CONTENT_BOUND,
    MANAGED_BY,
    VolumeSnapshot,
    VolumeSnapshotContent,
)
from tonnage.controller.snapshots.decision import PENDING, NothingToDo, WarnOnly
from tonnage.controller.snapshots.sources import default_class, driver_of, secret_of
from tonnage.errors import InvalidError
from tonnage.kube.object_write import has_fields

MAX_MEMBERS = 100
"""Snapshots of one group, as in upstream's API."""


@dataclass(frozen=True, slots=True)
class GroupSource:
    """A claim that the selector finds. node: of its volume, "" if unknown."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """One snapshot of a group: what the driver said, and the objects that there are. volume: its PV, while known."""

    info: VolumeSnapshotInfo
    snapshot: VolumeSnapshot | None = None
    content: VolumeSnapshotContent | None = None
    volume: PersistentVolume | None = None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What is known of a group.

    content: that of its name, wherever it points to. storage_class: the one that it names. defaults: the default
    classes of all drivers. sources: the claims of its selector, by name. members: one for each snapshot of the content.
    living: VolumeSnapshots of a deleted group. restored: a Pending claim that is made from one of these. ours: drivers
    that our agents serve.
    """

    group: VolumeGroupSnapshot
    content: VolumeGroupSnapshotContent | None = None
    storage_class: VolumeGroupSnapshotClass | None = None
    defaults: Sequence[VolumeGroupSnapshotClass] = ()
    sources: Sequence[GroupSource] = ()
    members: Sequence[MemberFacts] = ()
    living: Sequence[VolumeSnapshot] = ()
    restored: str = ""
    ours: Collection[str] = (names.DRIVER,)


@dataclass(frozen=True, slots=True)
class RefuseGroup:
    """Write the error into the group's status and emit it. ready: what readyToUse is written as, None for not."""

    reason: str
    message: str
    ready: bool | None = False


@dataclass(frozen=True, slots=True)
class PrepareGroup:
    """Put the finalizer on the group, and the default class into it. One write."""

    storage_class: str = ""


@dataclass(frozen=True, slots=True)
class MakeGroupContent:
    """Create the content of the group."""

    body: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BindGroupContent:
    """Write the group's uid and class, and the finalizer, into a content that was there before it."""

    body: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class MakeMembers:
    """Create the objects that these members lack, and write the status of their contents."""

    members: Sequence[MemberFacts]


@dataclass(frozen=True, slots=True)
class ShowGroup:
    """Write the content's status into the group. failure: of a driver whose agent does not emit it."""

    status: Mapping[str, Any]
    is_ready: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True)
class EndMembers:
    """Delete these members."""

    snapshots: Sequence[VolumeSnapshot]


@dataclass(frozen=True, slots=True)
class EndGroupContent:
    """Delete the content. marked: first tell upstream's snapshotter that it may delete."""

    marked: bool


@dataclass(frozen=True, slots=True)
class ReleaseGroup:
    """Take the finalizer off the group. marked: first tell upstream's snapshotter of a content that stays."""

    marked: bool = False


GroupBegun = PrepareGroup | MakeGroupContent | BindGroupContent | MakeMembers | ShowGroup
GroupEnd = EndMembers | EndGroupContent | ReleaseGroup
GroupAction = NothingToDo | RefuseGroup | WarnOnly | GroupBegun | GroupEnd


def group_content_of(group: VolumeGroupSnapshot) -> str:
    """The name of a group's content."""
    return group.spec.source.volume_group_snapshot_content_name or group_content_name(group.metadata.uid)


def is_default_group_class(one: VolumeGroupSnapshotClass) -> bool:
    """Whether groups without class get this one."""
    return one.metadata.annotations.get(DEFAULT_GROUP_CLASS) == "true"


def decide_group(facts: GroupFacts) -> GroupAction:
    """The next action."""
    if facts.group.metadata.deleting:
        return _end(facts)
    if facts.content is not None:
        return _with_content(facts, facts.content)
    return _without_content(facts)


# Deleted


def _end(facts: GroupFacts) -> GroupAction:
    """Members first: a claim that is made from one keeps it, and so the whole group."""
    group, content = facts.group, facts.content
    if GROUP_BOUND not in group.metadata.finalizers:
        return NothingToDo()
    if facts.restored:
        return WarnOnly(PENDING, f"A snapshot of the group is being used to restore a PVC: claim {facts.restored}")
    if alive := [snapshot for snapshot in facts.living if not snapshot.metadata.deleting]:
        return EndMembers(alive)
    if facts.living:
        return NothingToDo()
    if content is None or not _is_bound(content, group):
        return ReleaseGroup()
    unmarked = content.metadata.annotations.get(GROUP_BEING_DELETED) != "yes"
    marked = content.spec.driver not in facts.ours and unmarked
    if content.spec.deletion_policy != "Delete":
        return ReleaseGroup(marked)
    return NothingToDo() if content.metadata.deleting and not marked else EndGroupContent(marked)


def _is_bound(content: VolumeGroupSnapshotContent, group: VolumeGroupSnapshot) -> bool:
    ref, meta = content.spec.volume_group_snapshot_ref, group.metadata
    return (ref.namespace, ref.name, ref.uid) == (meta.namespace, meta.name, meta.uid)


# With a content


def _with_content(facts: GroupFacts, content: VolumeGroupSnapshotContent) -> GroupAction:
    group, name = facts.group, content.metadata.name
    ref, meta = content.spec.volume_group_snapshot_ref, group.metadata
    existing, given = bool(group.spec.source.volume_group_snapshot_content_name), content.spec.source
    if existing and given.group_snapshot_handles is None:
        text = f"VolumeGroupSnapshotContent [{name}] was made for claims: name one that has groupSnapshotHandles"
        return RefuseGroup("GroupSnapshotContentMismatch", text)
    if not existing and given.group_snapshot_handles is not None:
        text = f"VolumeGroupSnapshotContent [{name}] has groupSnapshotHandles: delete it"
        return RefuseGroup("GroupSnapshotHandleSet", text)
    if (ref.namespace, ref.name) != (meta.namespace, meta.name) or ref.uid not in ("", meta.uid):
        text = f"VolumeGroupSnapshotContent [{name}] is bound to a different group snapshot"
        return RefuseGroup("GroupSnapshotContentMisbound", text)
    if GROUP_BOUND not in meta.finalizers:
        return PrepareGroup()
    protected = GROUP_CONTENT_BOUND in content.metadata.finalizers or content.metadata.deleting
    if not ref.uid or not protected:
        return BindGroupContent(_binding(group, content))
    return _progress(facts, content)


def _binding(group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent) -> dict[str, Any]:
    spec: dict[str, Any] = {"volumeGroupSnapshotRef": {"uid": group.metadata.uid}}
    name = group.spec.volume_group_snapshot_class_name
    if name and not content.spec.volume_group_snapshot_class_name:
        spec["volumeGroupSnapshotClassName"] = name
    body: dict[str, Any] = {"spec": spec}
    if GROUP_CONTENT_BOUND not in content.metadata.finalizers and not content.metadata.deleting:
        body["metadata"] = {"finalizers": [*content.metadata.finalizers, GROUP_CONTENT_BOUND]}
    return body


def _progress(facts: GroupFacts, content: VolumeGroupSnapshotContent) -> GroupAction:
    """Nothing is written while the driver has not answered, and nothing made once the group was ready."""
    found = content.status
    if found.ready_to_use is None and found.error is None:
        return NothingToDo()
    if not found.ready_to_use:
        return _show(facts, content)
    if not facts.group.status.ready_to_use:
        uid = facts.group.metadata.uid
        for member in facts.members:
            if member.snapshot is not None and uid not in {
                one.uid for one in member.snapshot.metadata.owner_references
            }:
                text = f"VolumeSnapshot {member.snapshot.metadata.name} exists and is not of this group: delete it"
                return RefuseGroup("GroupSnapshotMemberMisbound", text)
        if lacking := [member for member in facts.members if not is_complete(member)]:
            return MakeMembers(lacking)
        if not all(member.snapshot is not None and member.snapshot.status.ready_to_use for member in facts.members):
            return NothingToDo()
    return _show(facts, content)


def is_complete(member: MemberFacts) -> bool:
    """Whether nothing of a member is left to make."""
    content = member.content
    return member.snapshot is not None and content is not None and has_fields(content.status, member_status(member))


def _show(facts: GroupFacts, content: VolumeGroupSnapshotContent) -> GroupAction:
    found, was = content.status, facts.group.status
    ready = bool(found.ready_to_use)
    status: dict[str, Any] = {"boundVolumeGroupSnapshotContentName": content.metadata.name, "readyToUse": ready}
    if found.creation_time:
        status["creationTime"] = found.creation_time
    failure = found.error if not ready else None
    status["error"] = {"message": failure.message, "time": failure.time} if failure is not None else None
    if has_fields(was, status):
        return NothingToDo()
    said = failure.message if failure is not None and content.spec.driver not in facts.ours else ""
    return ShowGroup(status, ready and not was.ready_to_use, said)


# Members


def member_body(group: VolumeGroupSnapshot, member: MemberFacts) -> dict[str, Any]:
    """The whole VolumeSnapshot of a member. Without its claim it names its content."""
    meta = group.metadata
    name, content = member_names(meta.uid, member_of(member.info))
    claim = member.volume.spec.claim_ref if member.volume is not None else None
    source = {"volumeSnapshotContentName": content}
    if claim is not None and claim.namespace == meta.namespace:
        source = {"persistentVolumeClaimName": claim.name}
    owner = {
        "apiVersion": GROUP_SNAPSHOTS.api_version, "kind": GROUP_SNAPSHOTS.kind, "name": meta.name, "uid": meta.uid,
    }  # fmt: skip
    head = {"name": name, "finalizers": [AS_SOURCE, BOUND, IN_GROUP], "ownerReferences": [owner]}
    return {**SNAPSHOTS.head(), "metadata": head, "spec": {"source": source}}


def member_content_body(
    content: VolumeGroupSnapshotContent, member: MemberFacts, snapshot: VolumeSnapshot
) -> dict[str, Any]:
    """The whole content of a member, but for its status. snapshot: its VolumeSnapshot."""
    meta = snapshot.metadata
    made: dict[str, Any] = {
        "name": member_names(content.spec.volume_group_snapshot_ref.uid, member_of(member.info))[1],
        "finalizers": [CONTENT_BOUND],
        "annotations": {GROUP_HANDLE: content.handle},
    }
    if node := content.metadata.labels.get(MANAGED_BY):
        made["labels"] = {MANAGED_BY: node}
    ref = {
        "apiVersion": SNAPSHOTS.api_version, "kind": SNAPSHOTS.kind, "namespace": meta.namespace, "name": meta.name,
        "uid": meta.uid,
    }  # fmt: skip
    info, is_new = member.info, content.spec.source.group_snapshot_handles is None
    spec: dict[str, Any] = {
        "volumeSnapshotRef": ref,
        "source": {"volumeHandle": info.volume_handle} if is_new else {"snapshotHandle": info.snapshot_handle},
        "driver": content.spec.driver,
        "deletionPolicy": content.spec.deletion_policy,
    }
    if member.volume is not None:
        spec["sourceVolumeMode"] = member.volume.spec.volume_mode or "Filesystem"
    return {**SNAPSHOT_CONTENTS.head(), "metadata": made, "spec": spec}


def member_status(member: MemberFacts) -> dict[str, Any]:
    """The status of a member's content, as the driver answered for the group."""
    info = member.info
    status: dict[str, Any] = {"snapshotHandle": info.snapshot_handle, "readyToUse": bool(info.ready_to_use)}
    if member.content is not None:
        status["volumeGroupSnapshotHandle"] = member.content.metadata.annotations.get(GROUP_HANDLE, "")
    if info.creation_time:
        status["creationTime"] = info.creation_time
    if info.restore_size:
        status["restoreSize"] = info.restore_size
    return status


def member_of(info: VolumeSnapshotInfo) -> str:
    """What the name of a member is made of: the volume, or the snapshot where the driver does not tell the volume."""
    return info.volume_handle or info.snapshot_handle


# Without a content


def _without_content(facts: GroupFacts) -> GroupAction:
    group = facts.group
    if group.spec.source.volume_group_snapshot_content_name or group.status.creation_time:
        return RefuseGroup("GroupSnapshotContentMissing", "VolumeGroupSnapshotContent is missing")
    name = group.spec.volume_group_snapshot_class_name or ""
    chosen = facts.storage_class
    if name and chosen is None:
        why = f'{GROUP_CLASSES.qualified} "{name}" not found: make it, or name another one'
        text = f"Failed to get group snapshot class with error {why}"
        return RefuseGroup("GetGroupSnapshotClassFailed", text, ready=None)
    try:
        driver = _common_driver(facts)
        if chosen is None:
            chosen = default_class(facts.defaults, driver, what="group snapshot")
        body = group_content_body(facts, chosen, driver)
    except InvalidError as error:
        if not name and chosen is None:
            text = f"Failed to set default group snapshot class with error {error}"
            return RefuseGroup("SetDefaultGroupSnapshotClassFailed", text, ready=None)
        text = f"Failed to create group snapshot content with error {error}"
        return RefuseGroup("CreateGroupSnapshotContentFailed", text)
    if not name or GROUP_BOUND not in group.metadata.finalizers:
        return PrepareGroup("" if name else chosen.metadata.name)
    return MakeGroupContent(body)


def _common_driver(facts: GroupFacts) -> str:
    """The driver of all sources. Raises InvalidError for what is no source."""
    if not facts.sources:
        if selector := facts.group.spec.source.selector:
            from_label_selector(selector)  # one that cannot be read finds nothing
        raise InvalidError("no claim of this namespace has the labels of spec.source.selector: label the claims")
    if len(facts.sources) > MAX_MEMBERS:
        raise InvalidError(f"the selector finds {len(facts.sources)} claims: a group has at most {MAX_MEMBERS}")
    found: dict[str, str] = {}
    for source in facts.sources:
        found.setdefault(driver_of(source.claim, source.volume, facts.group.key), source.claim.metadata.name)
    if len(found) > 1:
        listed = ", ".join(f"claim {claim} is of driver {driver}" for driver, claim in sorted(found.items()))
        raise InvalidError(f"{listed}: a group is of one driver")
    return next(iter(found))


def group_content_body(facts: GroupFacts, chosen: VolumeGroupSnapshotClass, driver: str) -> dict[str, Any]:
    """The whole content of a group. Raises InvalidError for a class that does not fit its sources."""
    meta, name = facts.group.metadata, chosen.metadata.name
    if chosen.driver != driver:
        why = f"class {name} is of driver {chosen.driver}, the volumes of the claims of {driver}"
        raise InvalidError(f"{why}: name a class of {driver}")
    made: dict[str, Any] = {"name": group_content_name(meta.uid), "finalizers": [GROUP_CONTENT_BOUND]}
    if node := _common_node(facts, driver):
        made["labels"] = {MANAGED_BY: node}
    if secret := _group_secret(facts, chosen):
        made["annotations"] = secret
    ref = {
        "apiVersion": GROUP_SNAPSHOTS.api_version, "kind": GROUP_SNAPSHOTS.kind, "namespace": meta.namespace,
        "name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version,
    }  # fmt: skip
    spec = {
        "volumeGroupSnapshotRef": ref,
        "source": {"volumeHandles": [_handle(source) for source in facts.sources]},
        "driver": driver,
        "deletionPolicy": chosen.deletion_policy,
        "volumeGroupSnapshotClassName": name,
    }
    return {**GROUP_CONTENTS.head(), "metadata": made, "spec": spec}


def _handle(source: GroupSource) -> str:
    assert source.volume is not None
    assert source.volume.spec.csi is not None
    return source.volume.spec.csi.volume_handle


def _common_node(facts: GroupFacts, driver: str) -> str:
    """The node of all sources, "" where it is not known. Raises InvalidError for several nodes of our drivers."""
    nodes = {source.claim.metadata.name: source.node for source in facts.sources if source.node}
    if len(set(nodes.values())) == 1 and len(nodes) == len(facts.sources):
        return next(iter(nodes.values()))
    if driver in facts.ours and len(set(nodes.values())) > 1:
        places = ", ".join(sorted(set(nodes.values())))
        raise InvalidError(f"claims {', '.join(sorted(nodes))} are on nodes {places}: a group is of one node")
    return ""


def _group_secret(facts: GroupFacts, chosen: VolumeGroupSnapshotClass) -> dict[str, str]:
    """The annotations of the class's Secret. Raises InvalidError."""
    meta = facts.group.metadata
    tokens = {
        "volumegroupsnapshotcontent.name": group_content_name(meta.uid),
        "volumegroupsnapshot.namespace": meta.namespace,
        "volumegroupsnapshot.name": meta.name,
    }
    found = secret_of(chosen, "group-snapshotter", tokens)
    return {GROUP_SECRET_NAME: found[0], GROUP_SECRET_NAMESPACE: found[1]} if found is not None else {}
