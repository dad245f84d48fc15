"""Owners of volumes and snapshots according to the live cluster, and which a person may purge or adopt.

The rules are those of the node agent's sweep.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import (
    ApiAlreadyExistsError,
    ApiNotFoundError,
    InvalidError,
    PreconditionError,
    TonnageError,
    UnavailableError,
)
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.group_snapshot import VolumeGroupSnapshotContent, group_name
from tonnage.kubernetes.api.kinds import CLAIMS, GROUP_CONTENTS, NAMESPACES, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES, Kind
from tonnage.kubernetes.api.matching import driver_volume
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.api.snapshot import MANAGED_BY, VolumeSnapshotContent, snapshot_name
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.object_write import delete_object
from tonnage.node.orphans import AGE, age_of, read_claim
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.node_scope import reaches
from tonnage.provisioning.claims.provisioning import topology_term
from tonnage.tools.ops.report import VolumeReport

T = TypeVar("T", bound=KubeObject)
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
        self._flex: dict[str, str] = {}  # PVs of FlexVolumes: uid -> name
        self._contents: dict[tuple[str, str], str] = {}
        self._groups: dict[tuple[str, str], VolumeGroupSnapshotContent] = {}
        self.without_snapshot: list[VolumeSnapshotContent] = []
        """Contents whose VolumeSnapshot is gone, and that no one has deleted."""

    async def look(self) -> None:
        """Read all PersistentVolumes and snapshot objects. Raises: ApiError, UnavailableError."""
        metadata = (await self._client.get(NAMESPACES, _CLUSTER_NAMESPACE)).metadata
        self._cluster = metadata.uid
        self._former = frozenset(filter(None, metadata.annotations.get(names.FORMER_CLUSTERS, "").split(",")))
        self._volumes, self._flex = {}, {}
        for volume in (await self._client.list(VOLUMES)).items:
            if volume.spec.flex_volume is not None:
                self._flex[volume.metadata.uid] = volume.metadata.name
            if (found := driver_volume(volume)) is not None:
                self._volumes.setdefault(found, []).append(volume)
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
        if name := self._flex.get(names.flex_uid(volume.id)):
            return name
        known = self._volumes.get((volume.driver, volume.id), ())
        return next((v.metadata.name for v in known if reaches(v, volume.topology)), "")

    def lacks_claim(self, volume: VolumeReport) -> bool:
        """Whether its PersistentVolume is for a claim that was never bound: restore() has not come to the end."""
        known = [v.spec.claim_ref for v in self._volumes.get((volume.driver, volume.id), ())]
        return any(claim is not None and not claim.uid for claim in known)

    def _group_of(self, snapshot: VolumeReport) -> str:
        """Name of the group content that it is made for, also of one whose agent has not reported it yet."""
        found = _MEMBER.match(snapshot.name)
        group = self._groups.get((snapshot.driver, found[0])) if found is not None else None
        return group.metadata.name if group is not None else ""

    async def owner(self, volume: VolumeReport) -> Owner:
        """The owner of a volume; its claim is read live. Raises: ApiError, UnavailableError."""
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

    async def check_cluster(self, volume: VolumeReport) -> None:
        """Raises: PreconditionError for a volume of another cluster: its namespaces are others."""
        if volume.cluster not in ("", self._cluster):
            raise PreconditionError(f"volume {volume.id} {Owner.FOREIGN.value} ({volume.cluster}): name its kubeconfig")

    async def restore(
        self, volume: Mapping[str, Any], claim: Mapping[str, Any], restore: Callable[[], Awaitable[None]]
    ) -> None:
        """Make the objects of restored(), with the volume between them. May be repeated after a kill.

        restore: makes the volume of trash; when it fails for good, the PV that was made for it is deleted. Raises
        ApiAlreadyExistsError where a PV or claim of that name is another; what restore raises.
        """
        wanted = volume["metadata"]["name"]
        made = await self._make(VOLUMES, volume, lambda now: _handle_in(now) == _handle(volume))
        try:
            await restore()
        except TonnageError as failure:
            may_be_done = isinstance(failure, UnavailableError) or (isinstance(failure, CsiError) and not failure.final)
            if made is not None and not may_be_done:
                with suppress(ApiNotFoundError):
                    await delete_object(self._client, VOLUMES, made)
            raise
        await self._make(CLAIMS, claim, lambda now: now.spec.volume_name == wanted)

    async def _make(self, kind: Kind[T], body: Mapping[str, Any], is_made: Callable[[T], bool]) -> T | None:
        """Return the object if it was made now."""
        namespace = body["metadata"].get("namespace", "")
        try:
            return await self._client.create(kind, dict(body), namespace)
        except ApiAlreadyExistsError:
            found = await find(self._client, kind, body["metadata"]["name"], namespace)
            if found is None or not is_made(found):
                raise
            return None

    async def adopt(self, body: Mapping[str, Any]) -> None:
        """Make a PersistentVolume or VolumeSnapshotContent. Raises: ApiAlreadyExistsError and the like."""
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


def restored(
    volume: VolumeReport, *, claim: str = "", storage_class: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the PersistentVolume and the claim that make trash usable again, in the namespace of its former claim.

    claim: another name for it. Raises: InvalidError for a volume that was made for no claim, and for a bad name.
    """
    namespace, _, former = volume.claim.partition("/")
    name = claim or former
    if not namespace or not names.is_dns_subdomain(name):
        raise InvalidError(
            f"volume {volume.id}: it was made for no claim" if not namespace else f"{name!r} names no claim"
        )
    body = persistent_volume(
        volume, name=volume.persistent_volume or volume.name, storage_class=storage_class, block=bool(volume.block)
    )
    body["spec"]["claimRef"] = {**CLAIMS.head(), "namespace": namespace, "name": name}
    spec = {key: body["spec"][key] for key in ("accessModes", "storageClassName", "volumeMode")}
    spec |= {"volumeName": body["metadata"]["name"], "resources": {"requests": body["spec"]["capacity"]}}
    return body, {**CLAIMS.head(), "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _handle(body: Mapping[str, Any]) -> tuple[str, str]:
    return body["spec"]["csi"]["driver"], body["spec"]["csi"]["volumeHandle"]


def _handle_in(volume: PersistentVolume) -> tuple[str, str]:
    csi = volume.spec.csi
    return (csi.driver, csi.volume_handle) if csi is not None else ("", "")


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
