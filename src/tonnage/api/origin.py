"""The data source of a claim, and the nodes that have it: content of local volumes stays on its node.

dataSourceRef, or dataSource (KEP-1495). A claim is cloned (CSI CLONE_VOLUME). Kinds other than claims and snapshots are
for a volume populator: it makes a claim of its own for the volume, and binds the volume to the first claim once it is
populated. No I/O: the caller passes the lookups.
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
    """A data source. text: its description. volume: the PV with the content; None while unknown.

    missing: what is awaited while the volume is unknown.
    """

    text: str
    volume: PersistentVolume | None = None
    missing: str = ""

    @property
    def reach(self) -> NodeMatcher | None:
        """The nodes that have the content; None where that is unknown, or every node has it."""
        affinity = self.volume.spec.node_affinity if self.volume is not None else None
        return node_matcher(affinity.required) if affinity is not None and affinity.required is not None else None


def reference(claim: PersistentVolumeClaim) -> TypedReference | None:
    """The data source of a claim, None for an empty volume."""
    return claim.spec.data_source_ref or claim.spec.data_source


def is_clone(claim: PersistentVolumeClaim) -> bool:
    """Whether the data source is another claim of its namespace."""
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
    """The location of the content; None when the claim has no data source, or a populator writes it.

    claims: by `namespace/name`. volumes: by name.
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
