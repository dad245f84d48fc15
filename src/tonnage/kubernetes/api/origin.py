"""The data source of a claim, and the nodes that have it: content of local volumes stays on its node.

dataSourceRef, or dataSource (KEP-1495). A claim is cloned (CSI CLONE_VOLUME), a snapshot restored. With a Content the
agent has the volume filled while it is made. Other kinds are for a volume populator: it makes a claim of its own for
the volume, and binds the volume to the first claim once it is populated. No I/O: the caller passes the lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim, TypedReference
from tonnage.kubernetes.api.kinds import CLAIMS, CONTENTS, SNAPSHOTS
from tonnage.kubernetes.api.matching import is_bound
from tonnage.kubernetes.api.selectors import NodeMatcher, node_matcher
from tonnage.kubernetes.api.snapshot import MANAGED_BY, VolumeSnapshot, VolumeSnapshotContent, content_name

_SNAPSHOT = ("snapshot.storage.k8s.io", SNAPSHOTS.kind)
_CONTENT = (CONTENTS.group, CONTENTS.kind)
PROVISIONED = frozenset({("", "PersistentVolumeClaim"), _SNAPSHOT, _CONTENT})
"""API group and kind of the data sources that a provisioner serves; other kinds are a volume populator's."""
Lookup = Callable[[str], PersistentVolumeClaim | None]
VolumeLookup = Callable[[str], PersistentVolume | None]
SnapshotLookup = Callable[[str], VolumeSnapshot | None]
ContentLookup = Callable[[str], VolumeSnapshotContent | None]


@dataclass(frozen=True)
class Origin:
    """A data source. text: its description. volume: the PV with the content, or with what was snapshotted.

    missing: what is awaited; "" once the content can be copied. content: of a snapshot. node: label of the node of a
    snapshot, "" while that is unknown.
    """

    text: str
    volume: PersistentVolume | None = None
    missing: str = ""
    content: VolumeSnapshotContent | None = None
    node: str = ""

    @property
    def verb(self) -> str:
        """What a claim does with it."""
        return "restores" if self.text.startswith("snapshot ") else "clones"

    @property
    def place(self) -> str:
        """Where it is, for people; "" while that is unknown."""
        return f"node {self.node}" if self.node else f"volume {self.volume.metadata.name}" if self.volume else ""

    @property
    def reach(self) -> NodeMatcher | None:
        """The nodes that have the content; None where that is unknown, or every node has it."""
        if self.node:
            return self._is_its_node
        affinity = self.volume.spec.node_affinity if self.volume is not None else None
        return node_matcher(affinity.required) if affinity is not None and affinity.required is not None else None

    def _is_its_node(self, labels: Mapping[str, str], name: str) -> bool:
        return names.label_value(name) == self.node


def reference(claim: PersistentVolumeClaim) -> TypedReference | None:
    """The data source of a claim, None for an empty volume."""
    return claim.spec.data_source_ref or claim.spec.data_source


def is_clone(claim: PersistentVolumeClaim) -> bool:
    """Whether the data source is another claim of its namespace."""
    ref = reference(claim)
    return ref is not None and is_claim(ref, claim.metadata.namespace)


def is_claim(source: TypedReference, namespace: str) -> bool:
    """Whether the data source of a claim in a namespace is another claim there."""
    return source.kind == CLAIMS.kind and not source.api_group and source.namespace in ("", namespace)


def is_restore(claim: PersistentVolumeClaim) -> bool:
    """Whether the data source is a snapshot of its namespace."""
    ref = reference(claim)
    if ref is None or (ref.api_group or "", ref.kind) != _SNAPSHOT:
        return False
    return ref.namespace in ("", claim.metadata.namespace)


def is_content(claim: PersistentVolumeClaim) -> bool:
    """Whether the data source is a Content of its namespace."""
    ref = reference(claim)
    if ref is None or (ref.api_group, ref.kind) != _CONTENT:
        return False
    return ref.namespace in ("", claim.metadata.namespace)


def is_copy(claim: PersistentVolumeClaim) -> bool:
    """Whether the volume begins with the content of one node: a clone, or a restored snapshot."""
    return is_clone(claim) or is_restore(claim)


def is_populated(claim: PersistentVolumeClaim) -> bool:
    """Whether a volume populator provides the volume: no provisioner, and no agent, knows the kind of data source.

    A provisioner leaves such a claim alone, as external-provisioner does.
    """
    ref = reference(claim)
    return ref is not None and (ref.api_group or "", ref.kind) not in PROVISIONED


def content_name_of(snapshot: VolumeSnapshot) -> str:
    """The name of the content of a VolumeSnapshot, which may not be there yet."""
    named = snapshot.status.bound_volume_snapshot_content_name or snapshot.spec.source.volume_snapshot_content_name
    return named or content_name(snapshot.metadata.uid)


def volume_name_of(content: VolumeSnapshotContent) -> str:
    """The name of the PV that was snapshotted, as far as the handle tells: ours is `<pool>/<name of the PV>`."""
    return content.spec.source.volume_handle.rpartition("/")[2]


def origin_of(
    claim: PersistentVolumeClaim,
    claims: Lookup,
    volumes: VolumeLookup,
    snapshots: SnapshotLookup = lambda key: None,
    contents: ContentLookup = lambda name: None,
) -> Origin | None:
    """The location of the content; None when the claim has no data source, or a populator writes it.

    claims, snapshots: by `namespace/name`. volumes, contents: by name.
    """
    ref = reference(claim)
    if ref is None:
        return None
    key = f"{claim.metadata.namespace}/{ref.name}"
    if is_restore(claim):
        return _snapshot_origin(ref.name, snapshots(key), volumes, contents)
    return _claim_origin(ref.name, claims(key), volumes) if is_clone(claim) else None


def _claim_origin(name: str, source: PersistentVolumeClaim | None, volumes: VolumeLookup) -> Origin:
    text = f"claim {name}"
    if source is None:
        return Origin(text, missing=f"{text} does not exist")
    if source.metadata.deleting:
        return Origin(text, missing=f"{text} is being deleted")
    volume = volumes(source.spec.volume_name) if is_bound(source) else None
    if volume is None:
        return Origin(text, missing=f"{text} is not bound yet")
    return Origin(text, volume)


def _snapshot_origin(
    name: str, snapshot: VolumeSnapshot | None, volumes: VolumeLookup, contents: ContentLookup
) -> Origin:
    """The origin of a snapshot: its content's label names the node, else the volume that was snapshotted."""
    text = f"snapshot {name}"
    if snapshot is None:
        return Origin(text, missing=f"{text} does not exist")
    content = contents(content_name_of(snapshot))
    # While a Pending claim needs it, a deleted snapshot keeps its content: the claim is still made.
    if snapshot.metadata.deleting and (content is None or content.metadata.deleting):
        return Origin(text, missing=f"{text} is being deleted")
    if content is None:
        return Origin(text, missing=f"{text} is not bound yet")
    ref = content.spec.volume_snapshot_ref
    if (ref.namespace, ref.name) != (snapshot.metadata.namespace, name) or ref.uid not in ("", snapshot.metadata.uid):
        return Origin(text, missing=f"content {content.metadata.name} of {text} is bound to a different snapshot")
    node, volume = content.metadata.labels.get(MANAGED_BY, ""), volumes(volume_name_of(content))
    if volume is not None and (volume.spec.csi is None or volume.spec.csi.volume_handle != _source(content)):
        volume = None
    if not (snapshot.status.ready_to_use and content.status.ready_to_use and content.handle):
        missing = f"{text} is not ready yet"
    elif not node and volume is None:
        missing = f"{text} has no node yet"
    else:
        missing = ""
    return Origin(text, volume, missing, content, node)


def _source(content: VolumeSnapshotContent) -> str:
    return content.spec.source.volume_handle
