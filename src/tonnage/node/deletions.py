"""All that the agent deletes goes through here: with its proof, and one line in the log that can be read a year later.

Nothing is deleted while the API server may be in an older state than this node has seen. docs/design.md
lists who deletes what, on which proof.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tonnage.csi.client.types import ReclaimState
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, VOLUMES
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.client.client import Client
from tonnage.node.history import ApiHistory
from tonnage.provisioning.claims.node_scope import DriverInfo

log = logging.getLogger(__name__)
NO_SECRETS: Mapping[str, str] = {}


@dataclass(frozen=True)
class TakenSnapshot:
    """The id of a snapshot that a driver has; members: of the snapshots of a group, None for a single one."""

    id: str
    members: Sequence[str] | None = None


class Deletions:
    """The deletions of one node. All methods are idempotent.

    They raise PreconditionError while nothing may be deleted, or while the volume is in use; ApiError, CsiError,
    UnavailableError.
    """

    def __init__(self, client: Client, history: ApiHistory) -> None:
        self._client, self._history = client, history

    async def keeps_unused(self, driver: DriverInfo, volume: str, *, copies: bool) -> str:
        """Return why delete_unused() would not delete a volume of our driver, "" where it would."""
        return await driver.client.delete_unused_volume(volume, copies=copies, ask=True)

    async def delete_unused(
        self, driver: DriverInfo, volume: str, why: str, *, copies: bool, secrets: Mapping[str, str] = NO_SECRETS
    ) -> str:
        """Delete a volume that no pod ever had; return why it stays, "" for a deleted one.

        Proof: its record, read by our driver in the call that deletes. Another driver has no record: its volume is one
        that this agent has just made. copies: also one that was made with content.
        """
        await self._history.check()
        if driver.default_pool:
            stays = await driver.client.delete_unused_volume(volume, copies=copies)
        else:
            stays = ""
            await driver.client.delete_volume(volume, secrets=secrets)
        if stays:
            log.warning("volume stays volume=%s driver=%s wanted=%s reason=%s", volume, driver.name, why, stays)
        else:
            self._tell("volume", volume, driver, f"never staged: {why}")
        return stays

    async def delete_released(
        self, driver: DriverInfo, handle: str, volume: PersistentVolume, secrets: Mapping[str, str]
    ) -> None:
        """Delete the volume of a PersistentVolume.

        Proof: a live read of it, with policy Delete: Released, or being deleted without ever having had a claim.
        """
        await self._history.check()
        await driver.client.delete_volume(handle, secrets=secrets)
        self._tell(
            "volume", handle, driver, f"PersistentVolume {_of(volume)} is {volume.status.phase} with policy Delete"
        )

    async def delete_data(self, driver: DriverInfo, handle: str, volume: PersistentVolume, why: str) -> ReclaimState:
        """Delete the data of a volume whose pod has finished. Proof: live reads of the pod and of all that name it."""
        await self._history.check()
        state = await driver.client.reclaim_volume(handle, why)
        self._tell("data", handle, driver, f"PersistentVolume {_of(volume)}: {why}")
        return state

    async def delete_snapshots(
        self, driver: DriverInfo, taken: TakenSnapshot, content: KubeObject, secrets: Mapping[str, str]
    ) -> None:
        """Delete a snapshot, or the snapshots of a group.

        Proof: a live read of its content, which is being deleted, or went while the snapshot was made for it.
        """
        await self._history.check()
        if taken.members is None:
            await driver.client.delete_snapshot(taken.id, secrets=secrets)
        else:
            await driver.client.delete_group_snapshot(taken.id, taken.members, secrets=secrets)
        self._tell("snapshot" if taken.members is None else "group", taken.id, driver, f"content {_of(content)} goes")

    async def delete_claim(self, claim: PersistentVolumeClaim, why: str) -> None:
        """Delete a claim of which the volume was deleted unused. Raises: ApiConflictError when it has changed."""
        await self._history.check()
        meta = claim.metadata
        await self._client.delete(
            CLAIMS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
        )
        log.info("deleted what=claim name=%s proof=%s", claim.key, f"its volume was never staged: {why}")

    async def delete_persistent_volume(self, volume: PersistentVolume, why: str, *, unchanged: bool = False) -> None:
        """Delete a PersistentVolume: of a deleted volume, or one that no claim has. unchanged: only as it was read.

        Raises: ApiNotFoundError, ApiConflictError.
        """
        meta = volume.metadata
        version = meta.resource_version if unchanged else ""
        await self._client.delete(VOLUMES, meta.name, uid=meta.uid, resource_version=version)
        log.info("deleted what=persistentvolume name=%s proof=%s", _of(volume), why)

    def _tell(self, what: str, name: str, driver: DriverInfo, proof: str) -> None:
        log.info("deleted what=%s name=%s driver=%s proof=%s", what, name, driver.name, proof)


def _of(found: KubeObject) -> str:
    meta = found.metadata
    return f"{meta.name} (uid {meta.uid}, resourceVersion {meta.resource_version})"
