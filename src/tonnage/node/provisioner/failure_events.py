"""Events for infeasible claims: on the claim and on its waiting pods.

Users look at the pod first, and no other Event is there: the scheduler has found a node and waits. The Event is
repeated while the error lasts, since Events expire. The more claims a pod has, the longer the interval, for less than
one write a minute in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tonnage.aio.clock import Clock
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, PODS
from tonnage.api.meta import ObjectReference
from tonnage.errors import TonnageError
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.node.provisioner.claim_group import pod_owner

AGAIN = 250.0
"""Minimum seconds between two Events of the same text."""
_SECONDS_A_CLAIM = 120.0
"""Each claim of a pod emits two Events: on itself and on the pod."""
REASON = "ProvisioningFailed"


@dataclass(frozen=True, slots=True)
class _Told:
    """uid: of the pod that owns the claim, else of the claim. at: monotonic seconds."""

    pod: str
    message: str
    at: float


class Refusals:
    """Emits failure Events; remembers them for each claim until left()."""

    def __init__(self, client: Client, events: EventRecorder, clock: Clock) -> None:
        self._client, self._events, self._clock = client, events, clock
        self._told: dict[str, _Told] = {}

    async def tell(self, claim: PersistentVolumeClaim, message: str) -> None:
        """Emit why the claim cannot be served, and repeat it at intervals. Idempotent."""
        if not self._is_news(claim, message):
            return
        self._events.warning(refer(CLAIMS, claim), REASON, message)
        for pod in await self._pods(claim):
            self._events.warning(pod, REASON, f"claim {claim.metadata.name}: {message}")

    def tell_siblings(self, siblings: Sequence[PersistentVolumeClaim], cause: PersistentVolumeClaim) -> None:
        """Emit that these claims wait for another claim of the pod. Idempotent."""
        message = f"no volume is made while claim {cause.metadata.name} of the same pod cannot have one: see its events"
        for claim in siblings:
            if not claim.spec.volume_name and self._is_news(claim, message):
                self._events.warning(refer(CLAIMS, claim), REASON, message)

    def left(self, uid: str) -> None:
        """Forget a claim that is gone or has another node."""
        self._told.pop(uid, None)

    def _is_news(self, claim: PersistentVolumeClaim, message: str) -> bool:
        uid, now = claim.metadata.uid, self._clock.monotonic()
        owner = pod_owner(claim)
        pod = owner.uid if owner is not None else uid
        told = self._told.get(uid)
        if told is not None and told.message == message:
            alike = sum(each.pod == pod for each in self._told.values())
            if now < told.at + max(AGAIN, _SECONDS_A_CLAIM * alike):
                return False
        self._told[uid] = _Told(pod, message, now)
        return True

    async def _pods(self, claim: PersistentVolumeClaim) -> list[ObjectReference]:
        """Return pods that wait for the claim; none if they cannot be read now."""
        meta = claim.metadata
        if (owner := pod_owner(claim)) is not None:
            return [ObjectReference("v1", "Pod", meta.namespace, owner.name, owner.uid)]
        try:
            pods = (await self._client.list(PODS, meta.namespace)).items
        except TonnageError:
            return []
        return [refer(PODS, p) for p in pods if not p.spec.node_name and meta.name in p.claim_names()]
