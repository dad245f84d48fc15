"""Owners of volumes and snapshots according to the live cluster, and which a person may purge or adopt.

The rules are those of the node agent's sweep.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.api.core import PersistentVolume
from tonnage.api.group_snapshot import VolumeGroupSnapshotContent, group_name
from tonnage.api.kinds import GROUP_CONTENTS, NAMESPACES, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES, Kind
from tonnage.api.quantity import from_bytes
from tonnage.api.snapshot import MANAGED_BY, VolumeSnapshotContent, snapshot_name
from tonnage.claims.bind import find
from tonnage.claims.node_scope import reaches
from tonnage.claims.provisioning import topology_term
from tonnage.errors import ApiNotFoundError
from tonnage.kube.client import Client
from tonnage.node.orphans import AGE, age_of, read_claim
from tonnage.ops.report import VolumeReport

_CLUSTER_NAMESPACE = "kube-system"
_MEMBER = re.compile(rf"{group_name('')}[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}(?=-)")
"""How the driver begins the name of a snapshot of a group: with the group's."""


class Owner(Enum):
    """The owner of a volume."""

    VOLUME = "has a PersistentVolume"
    CONTENT = "has a VolumeSnapshotContent"
    CLAIM = "is being made for its claim"
    YOUNG = "was made just now"
    POD = "is an inline volume: it ends with its pod"
    FOREIGN = "belongs to another cluster"
    NOBODY = "orphan"


class Registry:
    """Volumes that one cluster knows. Read anew for each check, without cache."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._cluster = ""
        self._former: frozenset[str] = frozenset()
        self._volumes: dict[tuple[str, str], list[PersistentVolume]] = {}
        self._contents: dict[tuple[str, str], str] = {}
        self._groups: dict[tuple[str, str], VolumeGroupSnapshotContent] = {}
        self.without_snapshot: list[VolumeSnapshotContent] = []
        """Contents whose VolumeSnapshot is gone, and that no one has deleted."""

    async def look(self) -> None:
        """Read all PersistentVolumes and snapshot objects. Raises ApiError, UnavailableError."""
        metadata = (await self._client.get(NAMESPACES, _CLUSTER_NAMESPACE)).metadata
        self._cluster = metadata.uid
        self._former = frozenset(filter(None, metadata.annotations.get(names.FORMER_CLUSTERS, "").split(",")))
        found = (await self._client.list(VOLUMES)).items
        self._volumes = {}
        for volume in found:
            if volume.spec.csi is not None:
                self._volumes.setdefault((volume.spec.csi.driver, volume.spec.csi.volume_handle), []).append(volume)
        with suppress(ApiNotFoundError):  # a cluster without snapshots
            contents = (await self._client.list(SNAPSHOT_CONTENTS)).items
            self._contents = {(c.spec.driver, handle): c.metadata.name for c in contents if (handle := _handle_of(c))}
            snapshots = {s.key: s.metadata.uid for s in (await self._client.list(SNAPSHOTS)).items}
            self.without_snapshot = [c for c in contents if _is_without(c, snapshots)]
        self._groups = {}
        with suppress(ApiNotFoundError):  # a cluster without groups of snapshots
            for group in (await self._client.list(GROUP_CONTENTS)).items:
                self._groups[group.spec.driver, group_name(group.spec.volume_group_snapshot_ref.uid)] = group
                for handle in group.snapshot_handles:
                    self._contents.setdefault((group.spec.driver, handle), group.metadata.name)

    def volume_of(self, volume: VolumeReport) -> str:
        """Name of its PersistentVolume, VolumeSnapshotContent or VolumeGroupSnapshotContent, "" for none."""
        if volume.snapshot_of:
            return self._contents.get((volume.driver, volume.id), "") or self._group_of(volume)
        known = self._volumes.get((volume.driver, volume.id), ())
        return next((v.metadata.name for v in known if reaches(v, volume.topology)), "")

    def _group_of(self, snapshot: VolumeReport) -> str:
        """Name of the group content that it is made for, also of one whose agent has not reported it yet."""
        found = _MEMBER.match(snapshot.name)
        group = self._groups.get((snapshot.driver, found[0])) if found is not None else None
        return group.metadata.name if group is not None else ""

    async def owner(self, volume: VolumeReport) -> Owner:
        """The owner of a volume; its claim is read live. Raises ApiError, UnavailableError."""
        if self.volume_of(volume):
            return Owner.CONTENT if volume.snapshot_of else Owner.VOLUME
        if volume.inline:
            return Owner.POD
        if volume.cluster in self._former:
            return Owner.NOBODY
        if volume.cluster and volume.cluster != self._cluster:
            return Owner.FOREIGN
        if volume.snapshot_of:
            return Owner.YOUNG if age_of(volume.created, self._clock) < AGE else Owner.NOBODY
        if await self._is_wanted(volume):
            return Owner.CLAIM
        if await self._has_volume(volume):  # written since all were listed, and its claim bound
            return Owner.VOLUME
        # A volume that tells its claim needs no time: the claim was just looked at.
        return Owner.YOUNG if not volume.claim and age_of(volume.created, self._clock) < AGE else Owner.NOBODY

    async def _is_wanted(self, volume: VolumeReport) -> bool:
        """Return whether the claim that it was made for exists and still has no volume."""
        namespace, _, name = volume.claim.partition("/")
        claim = await read_claim(self._client, namespace, name, volume.persistent_volume) if name else None
        return claim is not None and not claim.spec.volume_name

    async def _has_volume(self, volume: VolumeReport) -> bool:
        name = volume.persistent_volume
        found = await find(self._client, VOLUMES, name) if name else None
        if found is None or found.spec.csi is None or found.spec.csi.volume_handle != volume.id:
            return False
        if not reaches(found, volume.topology):
            return False
        self._volumes[volume.driver, volume.id] = [found]
        return True

    async def adopt(self, body: Mapping[str, Any]) -> None:
        """Make a PersistentVolume or VolumeSnapshotContent. Raises ApiAlreadyExistsError and the like."""
        kind: Kind[Any] = SNAPSHOT_CONTENTS if body["kind"] == SNAPSHOT_CONTENTS.kind else VOLUMES
        await self._client.create(kind, dict(body))


def _handle_of(content: VolumeSnapshotContent) -> str:
    """Return the id of its snapshot, also of one whose agent has not reported it yet; "" for none."""
    pool, slash, _ = content.spec.source.volume_handle.partition("/")
    return content.handle or (f"{pool}/{snapshot_name(content.spec.volume_snapshot_ref.uid)}" if slash else "")


def _is_without(content: VolumeSnapshotContent, snapshots: Mapping[str, str]) -> bool:
    """Return whether the VolumeSnapshot that it was bound to is gone. snapshots: key -> uid."""
    ref = content.spec.volume_snapshot_ref
    return bool(ref.uid) and not content.metadata.deleting and snapshots.get(f"{ref.namespace}/{ref.name}") != ref.uid


def persistent_volume(volume: VolumeReport, *, name: str, storage_class: str, block: bool) -> dict[str, Any]:
    """Return the PersistentVolume that makes an orphan usable again.

    A claim with spec.volumeName binds it. It is retained: the person who adopts a volume decides when it is deleted.
    """
    spec: dict[str, Any] = {
        "capacity": {"storage": from_bytes(volume.size)},
        "accessModes": [names.READ_WRITE_ONCE],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": storage_class,
        "volumeMode": "Block" if block else "Filesystem",
        "csi": {"driver": volume.driver, "volumeHandle": volume.id},
    }
    if volume.topology:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [topology_term(volume.topology)]}}
    return {**VOLUMES.head(), "metadata": {"name": name}, "spec": spec}


def snapshot_content(snapshot: VolumeReport, *, name: str, namespace: str, block: bool) -> dict[str, Any]:
    """Return the VolumeSnapshotContent that makes an orphan usable again.

    A VolumeSnapshot `name` in `namespace`, with spec.source.volumeSnapshotContentName, binds it. It is retained.
    """
    spec = {
        "driver": snapshot.driver,
        "deletionPolicy": "Retain",
        "source": {"snapshotHandle": snapshot.id},
        "sourceVolumeMode": "Block" if block else "Filesystem",
        "volumeSnapshotRef": {"name": name, "namespace": namespace},
    }
    metadata: dict[str, Any] = {"name": name}
    if snapshot.node:  # else the agents of other nodes may have a snapshot of that id
        metadata["labels"] = {MANAGED_BY: names.label_value(snapshot.node)}
    return {**SNAPSHOT_CONTENTS.head(), "metadata": metadata, "spec": spec}
