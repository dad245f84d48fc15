"""A node and its CSI drivers, as claims and reservations name them: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tonnage.api import names
from tonnage.api.core import NodeSelector, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim
from tonnage.api.meta import ObjectMeta
from tonnage.api.selectors import node_matcher
from tonnage.api.storage import StorageClass
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient


@dataclass(frozen=True)
class Source:
    """What GetCapacity is asked about: a class of a driver; room names the bytes it shares with other sources."""

    driver: str
    storage_class: str
    room: str


PUBLISHED_AHEAD = frozenset({"static"})
"""Kinds of pools whose volumes are disks of fixed sizes: they become PersistentVolumes before there is a claim."""


@dataclass(frozen=True)
class NodeScope:
    """Whose agent this is. cluster_uid: uid of the namespace kube-system; former: uids that it had before its database
    was lost. label: the value of `tonnage.dev/node`."""

    node: str
    cluster_uid: str
    former: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """Value of the label that claims, volumes and capacity objects of this node carry."""
        return names.label_value(self.node)

    @property
    def selector(self) -> str:
        """Label selector for the objects of this node."""
        return f"{names.NODE_LABEL}={self.label}"

    def has_claim(self, claim: ObjectMeta) -> bool:
        """Whether a claim is sent to this node; who sent it may not have labelled it."""
        return claim.annotations.get(names.SELECTED_NODE) == self.node

    def has_volume(self, volume: ObjectMeta) -> bool:
        """Whether a PersistentVolume is this node's: its agent has labelled it when it made it."""
        return volume.labels.get(names.NODE_LABEL) == self.label


@dataclass(frozen=True)
class Driver:
    """One driver and what it said of itself. default_pool: "" for drivers that do not name their pools. pools: name ->
    kind, in the driver's order; empty for drivers that do not say. inline: those that keep room for inline volumes."""

    client: CsiClient
    name: str
    default_pool: str
    plugin: frozenset[str]
    controller: frozenset[str]
    segment: Mapping[str, str]
    identity: str
    pools: Mapping[str, str] = field(default_factory=dict)
    inline: frozenset[str] = frozenset()

    @property
    def topology(self) -> bool:
        """Whether its volumes are bound to places."""
        return types.VOLUME_ACCESSIBILITY_CONSTRAINTS in self.plugin

    @property
    def lists_capacity(self) -> bool:
        """Whether it answers GetCapacity."""
        return types.GET_CAPACITY in self.controller

    @property
    def lists_volumes(self) -> bool:
        """Whether it answers ListVolumes."""
        return types.LIST_VOLUMES in self.controller

    def reaches(self, volume: PersistentVolume) -> bool:
        """Whether a PersistentVolume may tell of a volume that lies here (see reaches())."""
        return reaches(volume, self.segment)

    def pool(self, storage_class: StorageClass) -> str:
        """Name of the pool that the class draws on; "" where pools have no names."""
        if not self.default_pool or (named := storage_class.parameters.get("pool", "")):
            return named if self.default_pool else ""
        kind = _present(storage_class.parameters.get("kind", ""))
        if not kind or _present(self.pools.get(self.default_pool, "")) == kind:
            return self.default_pool
        return next((name for name, its in self.pools.items() if _present(its) == kind), self.default_pool)

    def publishes_ahead(self, storage_class: StorageClass) -> bool:
        """Whether volumes of the class are published before claims ask for them, so that none is made for a claim."""
        return self.pools.get(self.pool(storage_class), "") in PUBLISHED_AHEAD

    def source(self, storage_class: StorageClass) -> Source:
        """The ledger's word for the class.

        A driver that does not name its pools is taken as one room: counting a promise against a class that it does
        not touch costs a moment of waiting, the contrary costs a failed volume.
        """
        pool = self.pool(storage_class)
        return Source(self.name, storage_class.metadata.name, f"pool/{pool}" if pool else f"driver/{self.name}")


def _present(kind: str) -> str:
    """The present name of a kind of pool, of which classes and older drivers may have the old one."""
    return names.RENAMED_KINDS.get(kind, kind)


def reaches(volume: PersistentVolume, segment: Mapping[str, str]) -> bool:
    """Whether a PersistentVolume may tell of a volume in that place; segment: a driver's topology there.

    A volume's name is made of its claim, so the same name, and the same handle, may be found on several nodes: where a
    claim got its volume, and where one was made for it that came too late. What the affinity says in other words than
    the driver's is not held against the volume: who asks would delete what lies here.
    """
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    spoken = [[e for e in t.match_expressions if e.key in segment] for t in affinity.required.node_selector_terms]
    if not spoken or not all(spoken):
        return True
    return node_matcher(NodeSelector([NodeSelectorTerm(expressions) for expressions in spoken]))(segment, "")


def provisioner_of(claim: PersistentVolumeClaim) -> str:
    """The driver that shall make the claim's volume, "" while nobody has said so."""
    notes = claim.metadata.annotations
    return notes.get(names.STORAGE_PROVISIONER) or notes.get(names.BETA_STORAGE_PROVISIONER, "")


def is_ephemeral(claim: PersistentVolumeClaim) -> bool:
    """Whether the claim was made for a pod's ephemeral volume and goes with the pod."""
    return any(o.controller and o.kind == "Pod" and o.api_version == "v1" for o in claim.metadata.owner_references)
