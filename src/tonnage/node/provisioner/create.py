"""CreateVolume for a claim, and handling of its failures.

Errors are classified as external-provisioner does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tonnage.aio.clock import Clock
from tonnage.aio.tasks import Background
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS
from tonnage.api.storage import StorageClass
from tonnage.capacity.ledger import Ledger, Stage
from tonnage.claims.create_request import ClaimRequest, read_secret
from tonnage.claims.node_scope import DriverInfo
from tonnage.csi.client.types import CreatedVolume
from tonnage.csi.errors import Code, CsiError
from tonnage.errors import TonnageError
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.node import volume_metrics
from tonnage.node.capacity.poller import Readings
from tonnage.node.provisioner.failure_events import Refusals

log = logging.getLogger(__name__)
SLOW = 1.0
"""Seconds after which an Event reports that a volume is being created."""


@dataclass
class Work:
    """State of a creation between two calls; it outlives its claim.

    volume: created, without a PV yet. began: time of the last CreateVolume call.
    """

    claim: PersistentVolumeClaim
    driver: DriverInfo
    storage_class: StorageClass
    request: ClaimRequest
    volume: CreatedVolume | None = None
    told: bool = False
    began: float = 0.0


class Making:
    """Calls CreateVolume.

    works: creations under way, by uid of the claim; one that ends without a volume is removed. is_here: whether a claim
    still waits here. exhausted(uid): the driver had insufficient storage although the ledger had capacity.
    """

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        works: dict[str, Work],
        ledger: Ledger,
        readings: Readings,
        refusals: Refusals,
        clock: Clock,
        is_here: Callable[[PersistentVolumeClaim], bool],
        exhausted: Callable[[str], None],
    ) -> None:
        self._client, self._events, self._works, self._clock = client, events, works, clock
        self._ledger, self._readings, self._refusals = ledger, readings, refusals
        self._is_here, self._exhausted = is_here, exhausted
        self.infeasible: dict[str, tuple[str, str]] = {}
        """Infeasible claims: uid -> uid of the class that cannot serve it, and why."""
        self._slow = Background("provision")

    async def close(self) -> None:
        """Emit no more Events."""
        await self._slow.close()

    async def create(self, uid: str, work: Work) -> CreatedVolume | None:
        """Call the driver.

        Returns None if the creation ended without a volume. Raises an error for which the claim waits for its back-off.
        """
        claim, request, driver = work.claim, work.request, work.driver
        work.began = self._clock.monotonic()
        try:
            secrets = await read_secret(self._client, request.secret)
        except TonnageError as failure:  # no call was made
            if self._ledger_is_free(uid):
                self._works.pop(uid, None)
            volume_metrics.not_provisioned(claim)
            self._failed_event(claim, work.storage_class, failure)
            raise
        if self._ledger.get(uid) is None:  # the claim left this node before a call was made
            self._works.pop(uid, None)
            return None
        self._ledger.start(uid)
        telling = self._slow.start(self._tell_if_slow(work), "slow")
        try:
            volume = await driver.client.create_volume(
                request.name,
                request.size,
                request.capabilities,
                parameters=request.parameters,
                secrets=secrets,
                topology=request.topology,
                source=request.content,
            )
            await self._check_answer(driver, request, volume)
        except CsiError as failure:
            await self._settle(uid, work, failure)
            return None
        finally:
            telling.cancel()
        self._ledger.made(uid, volume.size or request.size)
        if driver.lists_capacity:
            self._readings.want(driver.name)
        else:
            self._ledger.removed(uid)  # no GetCapacity result will ever include it
        return volume

    async def _tell_if_slow(self, work: Work) -> None:
        """Emit an Event if a creation takes long.

        A fast creation emits none before the volume exists: each Event is one more write for the API server.
        """
        await self._clock.sleep(SLOW)
        if not work.told:
            work.told = True
            text = f'External provisioner is provisioning volume for claim "{work.claim.key}"'
            self._events.normal(refer(CLAIMS, work.claim), "Provisioning", text)

    def _ledger_is_free(self, uid: str) -> bool:
        promise = self._ledger.get(uid)
        return promise is None or promise.stage is not Stage.CREATING

    async def _check_answer(self, driver: DriverInfo, request: ClaimRequest, volume: CreatedVolume) -> None:
        """Check the created volume; delete one that is too small.

        Raises: CsiError that is not final.
        """
        if request.content is not None and volume.content is None:
            await driver.client.delete_volume(volume.id)
            raise CsiError(Code.ABORTED, "the driver made an empty volume, though a copy was asked for")
        if not volume.size or volume.size >= request.size:
            return
        log.error("volume too small driver=%s volume=%s size=%d", driver.name, volume.id, volume.size)
        await driver.client.delete_volume(volume.id)
        raise CsiError(
            Code.ABORTED, f"created volume capacity {volume.size} less than requested capacity {request.size}"
        )

    async def _settle(self, uid: str, work: Work, failure: CsiError) -> None:
        claim, storage_class = work.claim, work.storage_class
        volume_metrics.not_provisioned(claim)
        here = self._is_here(claim)
        if not failure.final:
            self._failed_event(claim, storage_class, failure)
            raise failure  # repeated until the outcome is known, even if the claim is deleted
        self._ledger.failed(uid, refused=failure.exhausted or failure.infeasible)
        self._works.pop(uid, None)
        self._readings.want(work.driver.name)
        if not here:
            self._ledger.forget(uid)
            return
        if failure.infeasible:
            prefix = "Volume provisioning failed with infeasible error. Retries will be delayed. "
            why = prefix + failed_text(storage_class.metadata.name, failure)
            self.infeasible[uid] = (storage_class.metadata.uid, why)
            await self._refusals.tell(claim, why)
            return
        self._failed_event(claim, storage_class, failure)
        if failure.exhausted and work.driver.topology:
            # The ledger had capacity, but somebody else used it. The next attempt uses a new GetCapacity result.
            self._exhausted(uid)
            return
        raise failure

    def _failed_event(self, claim: PersistentVolumeClaim, storage_class: StorageClass, reason: Exception) -> None:
        text = failed_text(storage_class.metadata.name, reason)
        self._events.warning(refer(CLAIMS, claim), "ProvisioningFailed", text)


def failed_text(storage_class: str, reason: object) -> str:
    return f'failed to provision volume with StorageClass "{storage_class}": {reason}'
