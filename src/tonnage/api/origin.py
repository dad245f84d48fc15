"""What a claim's volume is to be filled from, and which nodes have that: content of local volumes stays on its node.

dataSourceRef, or dataSource (KEP-1495). A claim is copied (CSI CLONE_VOLUME). Kinds other
than claims and snapshots are a volume populator's: it makes a claim of its own for the volume, and gives the volume to
the first claim once it is filled. Pure: who asks says how to look things up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tonnage.api.core import PersistentVolume, PersistentVolumeClaim, TypedReference
from tonnage.api.kinds import CLAIMS
from tonnage.api.matching import is_bound
from tonnage.api.selectors import NodeMatcher, node_matcher

PROVISIONED = frozenset({("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot")})
"""API group and kind of the data sources that a provisioner serves; other kinds are a volume populator's."""
Lookup = Callable[[str], PersistentVolumeClaim | None]
VolumeLookup = Callable[[str], PersistentVolume | None]


@dataclass(frozen=True)
class Origin:
    """The content that is asked for. text: what it is, for people. volume: the one that holds it; None: it is not
    known yet, and `missing` says what is awaited."""

    text: str
    volume: PersistentVolume | None = None
    missing: str = ""

    @property
    def reach(self) -> NodeMatcher | None:
        """Which nodes have it; None where that is not known, or every node has it."""
        affinity = self.volume.spec.node_affinity if self.volume is not None else None
        return node_matcher(affinity.required) if affinity is not None and affinity.required is not None else None


def reference(claim: PersistentVolumeClaim) -> TypedReference | None:
    """What the claim names as its source, None for an empty volume."""
    return claim.spec.data_source_ref or claim.spec.data_source


def is_clone(claim: PersistentVolumeClaim) -> bool:
    """Whether it is to be a copy of another claim of its namespace."""
    ref = reference(claim)
    if ref is None or ref.kind != CLAIMS.kind or ref.api_group:
        return False
    return ref.namespace in ("", claim.metadata.namespace)


def is_populated(claim: PersistentVolumeClaim) -> bool:
    """Whether a volume populator provides the volume: the data source is neither a claim nor a snapshot.

    A provisioner leaves such a claim alone, as external-provisioner does.
    """
    ref = reference(claim)
    return ref is not None and (ref.api_group or "", ref.kind) not in PROVISIONED


def origin_of(claim: PersistentVolumeClaim, claims: Lookup, volumes: VolumeLookup) -> Origin | None:
    """Where the content is; None when the claim asks for none, or a populator brings it.

    claims: by `namespace/name`. volumes: by name. A snapshot's place is to be found here in the same way.
    """
    ref = reference(claim)
    if ref is None or not is_clone(claim):
        return None
    text = f"claim {ref.name}"
    source = claims(f"{claim.metadata.namespace}/{ref.name}")
    if source is None:
        return Origin(text, missing=f"{text} is not there")
    if source.metadata.deleting:
        return Origin(text, missing=f"{text} is being deleted")
    volume = volumes(source.spec.volume_name) if is_bound(source) else None
    if volume is None:
        return Origin(text, missing=f"{text} is not bound yet")
    return Origin(text, volume)
