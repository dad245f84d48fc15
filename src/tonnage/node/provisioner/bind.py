"""Hands a volume over that is made: its PersistentVolume, and the binding (docs/reference/kubernetes/binding.md)."""

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
    """works: what is under way, by uid of the claim; what is handed over or taken back is taken out. claims: of this
    node. binds: complete the binding here, else leave it to the PV controller."""

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
        """Uids of claims that are handed over; the cache may not show it yet."""

    def is_here(self, claim: PersistentVolumeClaim) -> bool:
        """Whether the claim is still seen here, and stays."""
        now = self._claims.get(claim.key)
        return now is not None and now.metadata.uid == claim.metadata.uid and not now.metadata.deleting

    async def deliver(self, uid: str, work: Work, volume: CreatedVolume) -> None:
        """Write the PersistentVolume and bind it, or delete the volume when nobody waits for it any more.

        May be repeated. Raises ApiError, Unavailable, Precondition: the PersistentVolume's name is taken.
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
            if not work.driver.reaches(made):  # of another node, which the claim was sent to meanwhile
                await self._take_back(uid, work, volume)
                return
        self._works.pop(uid, None)
        volume_metrics.provisioned(claim, self._clock.monotonic() - work.began)
        if work.told or not is_ephemeral(claim):  # whoever looks at an ephemeral one finds it bound
            text = f"Successfully provisioned volume {work.request.name}"
            self._events.normal(refer(CLAIMS, claim), "ProvisioningSucceeded", text)
        await self.hand_over(claim, made)

    async def hand_over(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """Bind. After a restart the volume may be from before: then all readings include it already.

        May be repeated. Raises ApiError, Unavailable.
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
            # The claim went meanwhile. The PV controller finds the volume without one, and it is reclaimed.
            log.info("volume not bound claim=%s volume=%s reason=%s", claim.key, volume.metadata.name, reason)
        except TonnageError:
            self.done.discard(uid)
            raise

    def _is_counted_twice(self, uid: str) -> bool:
        """A promise for a volume that was there before this process: every reading includes it."""
        promise = self._ledger.get(uid)
        return promise is not None and promise.stage in (Stage.OBSERVED, Stage.RESERVED)

    async def _still_wanted(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim | None:
        """The claim as it is now, if it still waits for a volume from this node. A live read: the watch may be
        behind, and it cannot tell what is gone from what was sent elsewhere."""
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
        """Delete a volume that nobody was given. If a PV tells of it after all, reclaiming is its matter; one of that
        name may be another node's, where the claim got its volume."""
        try:
            told = work.driver.reaches(await self._client.get(VOLUMES, work.request.name))
        except ApiNotFound:
            told = False
        if not told:
            secrets = await read_secret(self._client, work.request.secret)
            await work.driver.client.delete_volume(volume.id, secrets=secrets)
            log.info("volume taken back volume=%s claim=%s", volume.id, work.claim.key)
        self._works.pop(uid, None)
        self._ledger.removed(uid)
        self._readings.want(work.driver.name)
