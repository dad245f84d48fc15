"""Whose a volume is, by what its cluster says of it now; what a person may purge or adopt (as controllers/sweep.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from tonnage.aio.clock import Clock, parse_rfc3339
from tonnage.api import names
from tonnage.api.kinds import CLAIMS, NAMESPACES, VOLUMES
from tonnage.api.quantity import from_bytes
from tonnage.apps.inventory import VolumeReport
from tonnage.controllers.sweep import AGE
from tonnage.errors import ApiNotFound
from tonnage.kube.client import Client

_CLUSTER_NAMESPACE = "kube-system"


class Owner(Enum):
    """Whose a volume is."""

    VOLUME = "has a PersistentVolume"
    CLAIM = "is being made for its claim"
    YOUNG = "was made just now"
    POD = "is an inline volume: it ends with its pod"
    FOREIGN = "belongs to another cluster"
    NOBODY = "orphan"


class Registry:
    """What one cluster knows of volumes. Made anew for each look: nothing is kept."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._cluster = ""
        self._volumes: dict[tuple[str, str], str] = {}

    async def look(self) -> None:
        """Read all PersistentVolumes. Raises ApiError, Unavailable."""
        self._cluster = (await self._client.get(NAMESPACES, _CLUSTER_NAMESPACE)).metadata.uid
        found = (await self._client.list(VOLUMES)).items
        self._volumes = {(v.spec.csi.driver, v.spec.csi.volume_handle): v.metadata.name for v in found if v.spec.csi}

    def volume_of(self, volume: VolumeReport) -> str:
        """Name of its PersistentVolume, "" for none."""
        return self._volumes.get((volume.driver, volume.id), "")

    async def owner(self, volume: VolumeReport) -> Owner:
        """Whose it is; the claim is read live. Raises ApiError, Unavailable."""
        if self.volume_of(volume):
            return Owner.VOLUME
        if volume.inline:
            return Owner.POD
        if volume.cluster and volume.cluster != self._cluster:
            return Owner.FOREIGN
        if await self._is_wanted(volume):
            return Owner.CLAIM
        if await self._has_volume(volume):  # written since all were listed, and its claim bound
            return Owner.VOLUME
        # A volume that tells its claim needs no time: the claim was just looked at.
        return Owner.YOUNG if not volume.claim and self._age(volume) < AGE else Owner.NOBODY

    async def _is_wanted(self, volume: VolumeReport) -> bool:
        """Whether the claim that it was made for is there and still has no volume."""
        namespace, _, name = volume.claim.partition("/")
        if not name:
            return False
        try:
            claim = await self._client.get(CLAIMS, name, namespace)
        except ApiNotFound:
            return False
        mine = volume.persistent_volume == names.volume_name(claim.metadata.uid)
        return mine and not claim.spec.volume_name

    async def _has_volume(self, volume: VolumeReport) -> bool:
        if not volume.persistent_volume:
            return False
        try:
            found = await self._client.get(VOLUMES, volume.persistent_volume)
        except ApiNotFound:
            return False
        if found.spec.csi is None or found.spec.csi.volume_handle != volume.id:
            return False
        self._volumes[volume.driver, volume.id] = found.metadata.name
        return True

    def _age(self, volume: VolumeReport) -> float:
        try:
            return self._clock.time() - parse_rfc3339(volume.created)
        except ValueError:
            return AGE

    async def adopt(self, body: Mapping[str, Any]) -> None:
        """Make a PersistentVolume. Raises ApiAlreadyExists and the like."""
        await self._client.create(VOLUMES, dict(body))


def persistent_volume(volume: VolumeReport, *, name: str, storage_class: str, block: bool) -> dict[str, Any]:
    """The PersistentVolume that makes an orphan usable again: a claim with spec.volumeName takes it. It is retained:
    who adopts a volume decides on its end too."""
    spec: dict[str, Any] = {
        "capacity": {"storage": from_bytes(volume.size)},
        "accessModes": [names.READ_WRITE_ONCE],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": storage_class,
        "volumeMode": "Block" if block else "Filesystem",
        "csi": {"driver": volume.driver, "volumeHandle": volume.id},
    }
    if volume.topology:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [_term(volume.topology)]}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def _term(topology: Mapping[str, str]) -> dict[str, Sequence[Any]]:
    return {"matchExpressions": [{"key": k, "operator": "In", "values": [topology[k]]} for k in sorted(topology)]}
