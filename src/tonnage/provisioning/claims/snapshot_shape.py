"""What differs between single and group snapshots: kinds, names, words, and where a field is.

Both have the same life: an object of a user, a content, a class; finalizers on both objects, a content that is made
for claims or names what exists, a deletion that asks the driver first. The controller decides and the agent acts over a
shape, so that a rule is written once. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.group_snapshot import (
    DEFAULT_GROUP_CLASS,
    GROUP_BEING_DELETED,
    GROUP_BOUND,
    GROUP_CONTENT_BOUND,
    GROUP_SECRET_NAME,
    GROUP_SECRET_NAMESPACE,
    IN_GROUP,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    group_content_name,
    group_name,
    group_of,
    is_member_content,
    member_content,
)
from tonnage.kubernetes.api.kinds import (
    GROUP_CLASSES,
    GROUP_CONTENTS,
    GROUP_SNAPSHOTS,
    SNAPSHOT_CLASSES,
    SNAPSHOT_CONTENTS,
    SNAPSHOTS,
    Kind,
)
from tonnage.kubernetes.api.meta import ObjectReference
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage.kubernetes.api.snapshot import (
    AS_SOURCE,
    BEING_DELETED,
    BOUND,
    CONTENT_BOUND,
    DEFAULT_CLASS,
    PROVISIONER_SOURCE,
    SECRET_NAME,
    SECRET_NAMESPACE,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
    content_name,
    snapshot_name,
)

_NANO = 1_000_000_000
_UID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
S = TypeVar("S", VolumeSnapshot, VolumeGroupSnapshot)
C = TypeVar("C", VolumeSnapshotContent, VolumeGroupSnapshotContent)
K = TypeVar("K", VolumeSnapshotClass, VolumeGroupSnapshotClass)


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A claim that a snapshot is made of. node: of its volume, "" if unknown."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume | None = None
    node: str = ""

    @property
    def handle(self) -> str:
        """The handle of its volume, which is one of CSI."""
        assert self.volume is not None
        assert self.volume.spec.csi is not None
        return self.volume.spec.csi.volume_handle


@dataclass(frozen=True)
class SnapshotShape(Generic[S, C, K]):
    """One of the two shapes.

    word: of messages. made_for, given: of messages, what a content was made for, and what one names that exists.
    protection: finalizers of a snapshot that has a content. ends: those that are taken off a deleted one, also a
    member's and an earlier provisioner's. secret: annotations that name a content's Secret. role: of the driver's
    calls, as the keys of Secrets in a class name it. content_name, csi_name: after a snapshot's uid. named_by_uid:
    of ids that are unique among nodes. claim_of: the name of the one claim, "" for none. claim_word: whose volume a
    class does not fit. no_source: why there is no claim, or InvalidError. named_content, member_content: content
    that a snapshot names, or has as a member of a group, "" for none. spec_of: of a content for these claims.
    shown: a content's status as its snapshot shows it.
    """

    word: str
    made_for: str
    given: str
    snapshots: Kind[S]
    contents: Kind[C]
    classes: Kind[K]
    protection: tuple[str, ...]
    ends: tuple[str, ...]
    content_finalizer: str
    being_deleted: str
    default_class: str
    secret: tuple[str, str]
    role: str
    named_by_uid: re.Pattern[str]
    csi_name: Callable[[str], str]
    content_name: Callable[[str], str]
    class_name: Callable[[S], str]
    named_content: Callable[[S], str]
    member_content: Callable[[S], str]
    claim_of: Callable[[S], str]
    claim_word: Callable[[S], str]
    no_source: Callable[[S], str]
    spec_of: Callable[[Sequence[SnapshotSource]], dict[str, Any]]
    shown: Callable[[S, C], dict[str, Any]]
    ref: Callable[[C], ObjectReference]
    """What a content is for."""
    handles: Callable[[C], Sequence[str]]
    """Handles of the volumes that a content is to be made of."""
    recorded: Callable[[C], str]
    """The id in a content's status, "" for none."""
    is_given: Callable[[C], bool]
    """Whether a content names what exists."""
    is_member: Callable[[C], bool]
    """Whether a content is made and deleted with that of its group."""
    class_of: Callable[[C], str]
    keeps_class: bool = False
    """Whether a content keeps a class that it has when a snapshot is bound to it."""
    is_optional: bool = False
    """Whether a cluster may have snapshots without these kinds."""
    stops_writers: bool = False
    """Whether a creation that fails may have stopped writers for seconds, and so is not repeated soon."""

    def field(self, suffix: str) -> str:
        """The name of a field of contents and snapshots, as volumeSnapshotRef."""
        kind = self.snapshots.kind
        return f"{kind[0].lower()}{kind[1:]}{suffix}"

    def content_of(self, snapshot: S) -> str:
        """The name of a snapshot's content."""
        named = self.named_content(snapshot) or self.member_content(snapshot)
        return named or self.content_name(snapshot.metadata.uid)

    def is_bound(self, content: C, snapshot: S) -> bool:
        """Whether a content is that of a snapshot."""
        ref, meta = self.ref(content), snapshot.metadata
        return (ref.namespace, ref.name, ref.uid) == (meta.namespace, meta.name, meta.uid)

    def is_default(self, one: K) -> bool:
        """Whether snapshots without class get this one."""
        return one.metadata.annotations.get(self.default_class) == "true"


def _single_spec(sources: Sequence[SnapshotSource]) -> dict[str, Any]:
    (source,) = sources
    assert source.volume is not None
    return {
        "source": {"volumeHandle": source.handle},
        "sourceVolumeMode": source.volume.spec.volume_mode or "Filesystem",
    }


def _single_shown(snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> dict[str, Any]:
    found, status = content.status, dict[str, Any]()
    if found.creation_time:
        status["creationTime"] = rfc3339(found.creation_time / _NANO)
    if found.restore_size:
        status["restoreSize"] = from_bytes(found.restore_size)
    if (owner := group_of(snapshot)) is not None:
        status["volumeGroupSnapshotName"] = owner.name
    return status


def _single_no_source(snapshot: VolumeSnapshot) -> str:
    return f"claim {snapshot.metadata.namespace}/{snapshot.spec.source.persistent_volume_claim_name} does not exist"


def _group_no_source(group: VolumeGroupSnapshot) -> str:
    if selector := group.spec.source.selector:
        from_label_selector(selector)  # one that cannot be read finds nothing
    return "no claim of this namespace has the labels of spec.source.selector: label the claims"


SINGLE = SnapshotShape(
    word="snapshot",
    made_for="a claim",
    given="a snapshotHandle",
    snapshots=SNAPSHOTS,
    contents=SNAPSHOT_CONTENTS,
    classes=SNAPSHOT_CLASSES,
    protection=(AS_SOURCE, BOUND),
    ends=(AS_SOURCE, BOUND, IN_GROUP, PROVISIONER_SOURCE),
    content_finalizer=CONTENT_BOUND,
    being_deleted=BEING_DELETED,
    default_class=DEFAULT_CLASS,
    secret=(SECRET_NAME, SECRET_NAMESPACE),
    role="snapshotter",
    named_by_uid=re.compile(rf"{_UID}$"),
    csi_name=snapshot_name,
    content_name=content_name,
    class_name=lambda snapshot: snapshot.spec.volume_snapshot_class_name or "",
    named_content=lambda snapshot: snapshot.spec.source.volume_snapshot_content_name,
    member_content=member_content,
    claim_of=lambda snapshot: snapshot.spec.source.persistent_volume_claim_name,
    claim_word=lambda snapshot: f"volume of claim {snapshot.spec.source.persistent_volume_claim_name}",
    no_source=_single_no_source,
    spec_of=_single_spec,
    shown=_single_shown,
    ref=lambda content: content.spec.volume_snapshot_ref,
    handles=lambda content: [content.spec.source.volume_handle] if content.spec.source.volume_handle else [],
    recorded=lambda content: content.status.snapshot_handle,
    is_given=lambda content: bool(content.spec.source.snapshot_handle),
    is_member=is_member_content,
    class_of=lambda content: content.spec.volume_snapshot_class_name,
)
GROUP = SnapshotShape(
    word="group snapshot",
    made_for="claims",
    given="groupSnapshotHandles",
    snapshots=GROUP_SNAPSHOTS,
    contents=GROUP_CONTENTS,
    classes=GROUP_CLASSES,
    protection=(GROUP_BOUND,),
    ends=(GROUP_BOUND,),
    content_finalizer=GROUP_CONTENT_BOUND,
    being_deleted=GROUP_BEING_DELETED,
    default_class=DEFAULT_GROUP_CLASS,
    secret=(GROUP_SECRET_NAME, GROUP_SECRET_NAMESPACE),
    role="group-snapshotter",
    named_by_uid=re.compile(rf"^groupsnapshot-{_UID}$"),
    csi_name=group_name,
    content_name=group_content_name,
    class_name=lambda group: group.spec.volume_group_snapshot_class_name or "",
    named_content=lambda group: group.spec.source.volume_group_snapshot_content_name,
    member_content=lambda group: "",
    claim_of=lambda group: "",
    claim_word=lambda group: "volumes of the claims",
    no_source=_group_no_source,
    spec_of=lambda sources: {"source": {"volumeHandles": [source.handle for source in sources]}},
    shown=lambda _, content: {"creationTime": content.status.creation_time} if content.status.creation_time else {},
    ref=lambda content: content.spec.volume_group_snapshot_ref,
    handles=lambda content: content.spec.source.volume_handles,
    recorded=lambda content: content.status.volume_group_snapshot_handle,
    is_given=lambda content: content.spec.source.group_snapshot_handles is not None,
    is_member=lambda content: False,
    class_of=lambda content: content.spec.volume_group_snapshot_class_name,
    keeps_class=True,
    is_optional=True,
    stops_writers=True,
)
