"""Creation of the PV of a new volume, and its binding.

docs/reference/kubernetes/binding.md has the order of writes.
"""

from __future__ import annotations

import logging

from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, VOLUMES
from tonnage.capacity.ledger import Ledger, Stage
from tonnage.claims import pv
from tonnage.claims.bind import bind
from tonnage.claims.create_request import read_secret
from tonnage.claims.node_scope import NodeScope, is_ephemeral
from tonnage.csi.client.types import CreatedVolume
from tonnage.errors import ApiAlreadyExists, ApiNotFound, Precondition, TonnageError
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.node import volume_metrics
from tonnage.node.capacity.poller import Readings
from tonnage.node.provisioner.create import Work

log = logging.getLogger(__name__)


class Delivery:
    """Creates PVs and binds them, or deletes unwanted volumes.

    works: creations under way, by uid of the claim; completed ones are removed. claims: of this node. binds: complete
    the binding here, else the PV controller does.
    """

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        works: dict[str, Work],
        claims: Cache[PersistentVolumeClaim],
        ledger: Ledger,
        readings: Readings,
        scope: NodeScope,
        clock: Clock,
        *,
        binds: bool,
    ) -> None:
        self._client, self._events, self._works, self._claims = client, events, works, claims
        self._ledger, self._readings, self._scope, self._clock = ledger, readings, scope, clock
        self._binds = binds
        self.done: set[str] = set()
        """Uids of claims whose PV is bound; the cache may not show it yet."""

    def is_here(self, claim: PersistentVolumeClaim) -> bool:
        """Return whether the cache has the claim with this node, and it stays."""
        now = self._claims.get(claim.key)
        return now is not None and now.metadata.uid == claim.metadata.uid and not now.metadata.deleting

    async def deliver(self, uid: str, work: Work, volume: CreatedVolume) -> None:
        """Create the PV and bind it, or delete the volume if its claim is gone.

        Idempotent. Raises: ApiError, Unavailable; Precondition if the PV's name is taken.
        """
        claim = work.claim if self.is_here(work.claim) else await self._still_wanted(work.claim)
        if claim is None:
            await self._take_back(uid, work, volume)
            return
        wanted = pv.body(work.request, volume, claim, work.storage_class, work.driver, self._scope)
        try:
            made = await self._client.create(VOLUMES, wanted)
        except ApiAlreadyExists:
            made = await self._client.get(VOLUMES, work.request.name)
            if made.spec.claim_ref is None or made.spec.claim_ref.uid != uid:
                raise Precondition(
                    f"PersistentVolume {work.request.name} exists and is not for claim {claim.key}: remove it"
                ) from None
            if not work.driver.reaches(made):  # of another node, which was selected for the claim meanwhile
                await self._take_back(uid, work, volume)
                return
        self._works.pop(uid, None)
        volume_metrics.provisioned(claim, self._clock.monotonic() - work.began)
        if work.told or not is_ephemeral(claim):  # an ephemeral claim's users see that it is bound
            text = f"Successfully provisioned volume {work.request.name}"
            self._events.normal(refer(CLAIMS, claim), "ProvisioningSucceeded", text)
        await self.hand_over(claim, made)

    async def hand_over(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """Bind the claim and its PV. Idempotent.

        After a restart the volume may be from before: all GetCapacity results then include it.

        Raises: ApiError, Unavailable.
        """
        uid = claim.metadata.uid
        if self._is_counted_twice(uid):
            self._ledger.removed(uid)
        if not self._binds:
            return
        self.done.add(uid)
        try:
            await bind(self._client, claim, volume)
        except (ApiNotFound, Precondition) as reason:
            # The claim was deleted meanwhile. The PV controller releases the volume, and it is reclaimed.
            log.info("volume not bound claim=%s volume=%s reason=%s", claim.key, volume.metadata.name, reason)
        except TonnageError:
            self.done.discard(uid)
            raise

    def _is_counted_twice(self, uid: str) -> bool:
        """Return whether the claim's reservation counts its volume twice.

        True for a volume from before this process: every GetCapacity result includes it.
        """
        promise = self._ledger.get(uid)
        return promise is not None and promise.stage in (Stage.OBSERVED, Stage.RESERVED)

    async def _still_wanted(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim | None:
        """Return the claim if it still waits for this node, else None.

        A live read: the watch may be behind, and it shows a deleted claim and one with another node alike.
        """
        try:
            now = await self._client.get(CLAIMS, claim.metadata.name, claim.metadata.namespace)
        except ApiNotFound:
            return None
        meta = now.metadata
        if meta.uid != claim.metadata.uid or meta.deleting:
            return None
        sent_here = meta.annotations.get(names.SELECTED_NODE) == self._scope.node
        return now if sent_here and not now.spec.volume_name else None

    async def _take_back(self, uid: str, work: Work, volume: CreatedVolume) -> None:
        """Delete an unwanted volume, unless it has a PV.

        A volume with a PV is reclaimed later. A PV of that name may belong to another node, where the claim got its
        volume.
        """
        try:
            told = work.driver.reaches(await self._client.get(VOLUMES, work.request.name))
        except ApiNotFound:
            told = False
        if not told:
            secrets = await read_secret(self._client, work.request.secret)
            await work.driver.client.delete_volume(volume.id, secrets=secrets)
            log.info("unwanted volume deleted volume=%s claim=%s", volume.id, work.claim.key)
        self._works.pop(uid, None)
        self._ledger.removed(uid)
        self._readings.want(work.driver.name)
