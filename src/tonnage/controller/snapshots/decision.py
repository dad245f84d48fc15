"""What is to be done for one snapshot or group of snapshots: a table from what is known to one action. No I/O.

In order: what is being deleted ends its members, lets its content go, and goes itself; what has a content is bound to
it, gets its members once the driver has answered, and shows its status when all of them are ready; what has none makes
its content, whole, in one write. Nothing is held by a snapshot that cannot be made. A snapshot that was ready is never
made again: its data would be of a later moment. A member of a group only shows its content, and is deleted with its
group. A single snapshot is a group without members.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from tonnage.base.errors import InvalidError
from tonnage.controller.snapshots.members import MemberFacts, is_complete
from tonnage.controller.snapshots.sources import default_class, driver_of, secret_of
from tonnage.controller.snapshots.stages import STAGES, SnapshotEvent, SnapshotStage
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.snapshot import MANAGED_BY, VolumeSnapshot
from tonnage.kubernetes.client.object_write import has_fields
from tonnage.provisioning.claims.snapshot_shape import SINGLE, C, K, S, SnapshotShape, SnapshotSource

PENDING = "SnapshotDeletePending"
MAX_MEMBERS = 100
"""Snapshots of one group, as in upstream's API."""


@dataclass(frozen=True)
class Reasons:
    """Reasons of Events of one shape. created: "" for none. misbound: of a snapshot that was ready."""

    creating: str
    not_made: str
    no_content: str
    mismatch: str
    handle_set: str
    misbound: str
    content_misbound: str
    not_bound: str
    no_class: str
    no_default: str
    created: str
    ready: str
    failed: str
    not_deleted: str


SINGLE_REASONS = Reasons(
    creating="CreatingSnapshot",
    not_made="SnapshotContentCreationFailed",
    no_content="SnapshotContentMissing",
    mismatch="SnapshotContentMismatch",
    handle_set="SnapshotHandleSet",
    misbound="SnapshotMisbound",
    content_misbound="SnapshotContentMisbound",
    not_bound="SnapshotBindFailed",
    no_class="GetSnapshotClassFailed",
    no_default="SetDefaultSnapshotClassFailed",
    created="SnapshotCreated",
    ready="SnapshotReady",
    failed="SnapshotCreationFailed",
    not_deleted="SnapshotContentObjectDeleteError",
)
GROUP_REASONS = Reasons(
    creating="CreatingGroupSnapshot",
    not_made="CreateGroupSnapshotContentFailed",
    no_content="GroupSnapshotContentMissing",
    mismatch="GroupSnapshotContentMismatch",
    handle_set="GroupSnapshotHandleSet",
    misbound="GroupSnapshotContentMisbound",
    content_misbound="GroupSnapshotContentMisbound",
    not_bound="GroupSnapshotBindFailed",
    no_class="GetGroupSnapshotClassFailed",
    no_default="SetDefaultGroupSnapshotClassFailed",
    created="",
    ready="GroupSnapshotReady",
    failed="GroupSnapshotCreationFailed",
    not_deleted="GroupSnapshotContentObjectDeleteError",
)
MEMBER_MISBOUND = "GroupSnapshotMemberMisbound"


def reasons_of(shape: SnapshotShape[S, C, K]) -> Reasons:
    """The reasons of a shape."""
    return SINGLE_REASONS if shape.word == SINGLE.word else GROUP_REASONS


@dataclass(frozen=True, slots=True)
class SnapshotFacts(Generic[S, C, K]):
    """What is known of a snapshot or group.

    content: that of its name, wherever it points to. storage_class: the one that it names. defaults: the default
    classes of all drivers. sources: its claim, or those of its selector, by name. members: one for each snapshot of a
    group's content. living: VolumeSnapshots of a deleted group. restored: a Pending claim that is made from it, or from
    one of these. group: the VolumeGroupSnapshot that a deleted snapshot cannot leave, "" for none. ours: drivers that
    our agents serve.
    """

    shape: SnapshotShape[S, C, K]
    snapshot: S
    content: C | None = None
    storage_class: K | None = None
    defaults: Sequence[K] = ()
    sources: Sequence[SnapshotSource] = ()
    members: Sequence[MemberFacts] = ()
    living: Sequence[VolumeSnapshot] = ()
    restored: str = ""
    group: str = ""
    ours: Collection[str] = (names.DRIVER,)

    @property
    def is_protected(self) -> bool:
        """Whether the snapshot has its finalizers."""
        return set(self.shape.protection) <= set(self.snapshot.metadata.finalizers)

    @property
    def stage(self) -> SnapshotStage:
        """Its stage."""
        shape, snapshot, content = self.shape, self.snapshot, self.content
        if snapshot.metadata.deleting:
            return SnapshotStage.ENDING if set(shape.ends) & set(snapshot.metadata.finalizers) else SnapshotStage.GONE
        if content is None:
            return SnapshotStage.BARE
        is_held = shape.content_finalizer in content.metadata.finalizers or content.metadata.deleting
        if not is_held or not shape.is_bound(content, snapshot):
            return SnapshotStage.UNBOUND
        return SnapshotStage.READY if snapshot.status.ready_to_use else SnapshotStage.TAKING


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """Do nothing before the next change."""


@dataclass(frozen=True, slots=True)
class RejectSnapshot:
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
    """Put the finalizers on the snapshot, and the default class into it. One write."""

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
class MakeMembers:
    """Create the objects that these members lack, and write the status of their contents."""

    members: Sequence[MemberFacts]


@dataclass(frozen=True, slots=True)
class ShowContent:
    """Write the content's status into the snapshot. failure: of a driver whose agent does not emit it."""

    status: Mapping[str, Any]
    is_taken: bool = False
    is_ready: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True)
class EndMembers:
    """Delete these members."""

    snapshots: Sequence[VolumeSnapshot]


@dataclass(frozen=True, slots=True)
class EndContent:
    """Delete the content. marked: first tell upstream's snapshotter that it may delete."""

    marked: bool


@dataclass(frozen=True, slots=True)
class ReleaseSnapshot:
    """Take the finalizers off the snapshot. marked: first tell upstream's snapshotter of a content that stays."""

    marked: bool = False


Begun = PrepareSnapshot | MakeContent | BindContent | MakeMembers | ShowContent
Ending = EndMembers | EndContent | ReleaseSnapshot
Action = NothingToDo | RejectSnapshot | WarnOnly | Begun | Ending
_EVENTS: Mapping[type[Action], SnapshotEvent] = {
    NothingToDo: SnapshotEvent.WAIT,
    RejectSnapshot: SnapshotEvent.REJECT,
    WarnOnly: SnapshotEvent.WARN,
    PrepareSnapshot: SnapshotEvent.PREPARE,
    MakeContent: SnapshotEvent.MAKE_CONTENT,
    BindContent: SnapshotEvent.BIND_CONTENT,
    MakeMembers: SnapshotEvent.MAKE_MEMBERS,
    EndMembers: SnapshotEvent.END_MEMBERS,
    EndContent: SnapshotEvent.END_CONTENT,
    ReleaseSnapshot: SnapshotEvent.RELEASE,
}


def event_of(action: Action) -> SnapshotEvent:
    """The event that an action is in the table of stages."""
    if isinstance(action, ShowContent):
        return SnapshotEvent.SHOW_READY if action.status["readyToUse"] else SnapshotEvent.SHOW
    return _EVENTS[type(action)]


def decide(facts: SnapshotFacts[S, C, K]) -> Action:
    """The next action. Raises: ImpossibleTransitionError where the table of stages does not have it."""
    stage = facts.stage
    if stage in (SnapshotStage.ENDING, SnapshotStage.GONE):
        action = _end(facts, stage)
    elif facts.content is not None:
        action = _with_content(facts, facts.content, stage)
    else:
        action = _without_content(facts)
    STAGES.after(stage, event_of(action), about=facts.snapshot.key)
    return action


# Deleted


def _end(facts: SnapshotFacts[S, C, K], stage: SnapshotStage) -> Action:
    """Members first: a claim that is made from one keeps it, and so the whole group."""
    shape, snapshot, content = facts.shape, facts.snapshot, facts.content
    if stage is SnapshotStage.GONE:
        return NothingToDo()
    if facts.group:
        text = f"VolumeSnapshot is a member of VolumeGroupSnapshot {facts.group}, and is deleted with it: delete that"
        return WarnOnly(PENDING, text)
    if facts.living:
        return _end_members(facts)
    if content is None or not shape.is_bound(content, snapshot):
        return ReleaseSnapshot()
    if facts.restored and snapshot.status.ready_to_use:
        return WarnOnly(PENDING, f"Snapshot is being used to restore a PVC: claim {facts.restored}")
    unmarked = content.metadata.annotations.get(shape.being_deleted) != "yes"
    marked = content.spec.driver not in facts.ours and unmarked
    if content.spec.deletion_policy != "Delete":
        return ReleaseSnapshot(marked)
    return NothingToDo() if content.metadata.deleting and not marked else EndContent(marked)


def _end_members(facts: SnapshotFacts[S, C, K]) -> Action:
    if facts.restored:
        return WarnOnly(PENDING, f"A snapshot of the group is being used to restore a PVC: claim {facts.restored}")
    alive = [member for member in facts.living if not member.metadata.deleting]
    return EndMembers(alive) if alive else NothingToDo()


# With a content


def _with_content(facts: SnapshotFacts[S, C, K], content: C, stage: SnapshotStage) -> Action:
    shape, snapshot, why = facts.shape, facts.snapshot, reasons_of(facts.shape)
    ref, meta, where = shape.ref(content), snapshot.metadata, f"{shape.contents.kind} [{content.metadata.name}]"
    is_named, is_given = bool(shape.named_content(snapshot)), shape.is_given(content)
    if not shape.member_content(snapshot) and is_named is not is_given:
        if is_named:
            text = f"{where} was made for {shape.made_for}: name one that has {shape.given}"
            return RejectSnapshot(why.mismatch, text)
        return RejectSnapshot(why.handle_set, f"{where} has {shape.given}: delete it")
    if (ref.namespace, ref.name) != (meta.namespace, meta.name) or ref.uid not in ("", meta.uid):
        reason = why.misbound if snapshot.status.ready_to_use else why.content_misbound
        return RejectSnapshot(reason, f"{where} is bound to a different {shape.word}")
    if not facts.is_protected:
        return PrepareSnapshot()
    if stage is SnapshotStage.UNBOUND:
        return BindContent(_binding(facts, content))
    return _progress(facts, content)


def _binding(facts: SnapshotFacts[S, C, K], content: C) -> dict[str, Any]:
    shape = facts.shape
    meta: ObjectMeta = content.metadata
    spec: dict[str, Any] = {shape.field("Ref"): {"uid": facts.snapshot.metadata.uid}}
    name = shape.class_name(facts.snapshot)
    if name and not (shape.keeps_class and shape.class_of(content)):
        spec[shape.field("ClassName")] = name
    body: dict[str, Any] = {"spec": spec}
    if shape.content_finalizer not in meta.finalizers and not meta.deleting:
        body["metadata"] = {"finalizers": [*meta.finalizers, shape.content_finalizer]}
    return body


def _progress(facts: SnapshotFacts[S, C, K], content: C) -> Action:
    """Nothing is written while the driver has not answered, and nothing made once the snapshot was ready."""
    found = content.status
    if found.ready_to_use is None and found.error is None:
        return NothingToDo()
    if found.ready_to_use and not facts.snapshot.status.ready_to_use:
        uid, existing = facts.snapshot.metadata.uid, [one.snapshot for one in facts.members if one.snapshot]
        for one in existing:
            if uid not in {owner.uid for owner in one.metadata.owner_references}:
                text = f"VolumeSnapshot {one.metadata.name} exists and is not of this group: delete it"
                return RejectSnapshot(MEMBER_MISBOUND, text)
        if lacking := [member for member in facts.members if not is_complete(member)]:
            return MakeMembers(lacking)
        if not all(one.status.ready_to_use for one in existing):
            return NothingToDo()
    return _show(facts, content)


def _show(facts: SnapshotFacts[S, C, K], content: C) -> Action:
    found, was = content.status, facts.snapshot.status
    ready = bool(found.ready_to_use)
    status: dict[str, Any] = {f"bound{facts.shape.contents.kind}Name": content.metadata.name, "readyToUse": ready}
    status |= facts.shape.shown(facts.snapshot, content)
    failure = found.error if not ready else None
    status["error"] = {"message": failure.message, "time": failure.time} if failure is not None else None
    if has_fields(was, status):
        return NothingToDo()
    said = failure.message if failure is not None and content.spec.driver not in facts.ours else ""
    is_taken = bool(found.creation_time and not was.creation_time)
    return ShowContent(status, is_taken, ready and not was.ready_to_use, said)


# Without a content


def _without_content(facts: SnapshotFacts[S, C, K]) -> Action:
    shape, snapshot, why = facts.shape, facts.snapshot, reasons_of(facts.shape)
    if shape.named_content(snapshot) or snapshot.status.creation_time:
        return RejectSnapshot(why.no_content, f"{shape.contents.kind} is missing")
    if shape.member_content(snapshot):  # the loop of the groups makes it
        return NothingToDo()
    name, chosen = shape.class_name(snapshot), facts.storage_class
    if name and chosen is None:
        text = f'{shape.classes.qualified} "{name}" not found: make it, or name another one'
        return RejectSnapshot(why.no_class, f"Failed to get {shape.word} class with error {text}", ready=None)
    try:
        driver = _driver_of(facts)
        if chosen is None:
            chosen = default_class(facts.defaults, driver, what=shape.word)
        body = content_body(facts, chosen, driver)
    except InvalidError as error:
        if not name and chosen is None:
            text = f"Failed to set default {shape.word} class with error {error}"
            return RejectSnapshot(why.no_default, text, ready=None)
        return RejectSnapshot(why.not_made, f"Failed to create {shape.word} content with error {error}")
    if not name or not facts.is_protected:
        return PrepareSnapshot("" if name else chosen.metadata.name)
    return MakeContent(body)


def _driver_of(facts: SnapshotFacts[S, C, K]) -> str:
    """The driver of all sources. Raises: InvalidError for what is no source."""
    if not facts.sources:
        raise InvalidError(facts.shape.no_source(facts.snapshot))
    if len(facts.sources) > MAX_MEMBERS:
        raise InvalidError(f"the selector finds {len(facts.sources)} claims: a group has at most {MAX_MEMBERS}")
    found: dict[str, str] = {}
    for source in facts.sources:
        found.setdefault(driver_of(source.claim, source.volume, facts.snapshot.key), source.claim.metadata.name)
    if len(found) > 1:
        listed = ", ".join(f"claim {claim} is of driver {driver}" for driver, claim in sorted(found.items()))
        raise InvalidError(f"{listed}: a group is of one driver")
    return next(iter(found))


def content_body(facts: SnapshotFacts[S, C, K], chosen: K, driver: str) -> dict[str, Any]:
    """The whole content of a snapshot. Raises: InvalidError for a class that does not fit its sources."""
    shape, meta, name = facts.shape, facts.snapshot.metadata, chosen.metadata.name
    if chosen.driver != driver:
        why = f"class {name} is of driver {chosen.driver}, the {shape.claim_word(facts.snapshot)} of {driver}"
        raise InvalidError(f"{why}: name a class of {driver}")
    made: dict[str, Any] = {"name": shape.content_name(meta.uid), "finalizers": [shape.content_finalizer]}
    if node := _common_node(facts, driver):
        made["labels"] = {MANAGED_BY: node}
    if secret := _secret(facts, chosen):
        made["annotations"] = secret
    kind = shape.snapshots
    ref = {
        "apiVersion": kind.api_version, "kind": kind.kind, "namespace": meta.namespace, "name": meta.name,
        "uid": meta.uid, "resourceVersion": meta.resource_version,
    }  # fmt: skip
    spec = {
        shape.field("Ref"): ref,
        **shape.spec_of(facts.sources),
        "driver": driver,
        "deletionPolicy": chosen.deletion_policy,
        shape.field("ClassName"): name,
    }
    return {**shape.contents.head(), "metadata": made, "spec": spec}


def _common_node(facts: SnapshotFacts[S, C, K], driver: str) -> str:
    """The node of all sources, "" where it is not known. Raises: InvalidError for several nodes of our drivers."""
    nodes = {source.claim.metadata.name: source.node for source in facts.sources if source.node}
    if len(set(nodes.values())) == 1 and len(nodes) == len(facts.sources):
        return next(iter(nodes.values()))
    if driver in facts.ours and len(set(nodes.values())) > 1:
        places = ", ".join(sorted(set(nodes.values())))
        raise InvalidError(f"claims {', '.join(sorted(nodes))} are on nodes {places}: a group is of one node")
    return ""


def _secret(facts: SnapshotFacts[S, C, K], chosen: K) -> dict[str, str]:
    """The annotations of the class's Secret. Raises: InvalidError."""
    shape, meta, word = facts.shape, facts.snapshot.metadata, facts.shape.snapshots.kind.lower()
    tokens = {f"{word}content.name": shape.content_name(meta.uid), f"{word}.namespace": meta.namespace}
    found = secret_of(chosen, shape.role, {**tokens, f"{word}.name": meta.name})
    return dict(zip(shape.secret, found, strict=True)) if found is not None else {}
