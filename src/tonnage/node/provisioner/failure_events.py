"""Claims that can never have a volume as they are: told on the claim, and on the pods that wait for it.

A pod's page is where a user looks first, and nothing else would say it there: the scheduler has found a node and waits.
Told again now and then while it lasts, since Events expire; the more claims a pod has, the more seldom, so that all of
it stays less than a write a minute.
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
"""Seconds after which the same is told again, at the earliest."""
_SECONDS_A_CLAIM = 120.0
"""Of a pod's claims each tells twice: on itself and on the pod."""
REASON = "ProvisioningFailed"


@dataclass(frozen=True, slots=True)
class _Told:
    """pod: uid of the one that owns the claim, else the claim's own. at: monotonic seconds."""

    pod: str
    message: str
    at: float


class Refusals:
    """Tells. What was told of a claim is remembered until left()."""

    def __init__(self, client: Client, events: EventRecorder, clock: Clock) -> None:
        self._client, self._events, self._clock = client, events, clock
        self._told: dict[str, _Told] = {}

    async def tell(self, claim: PersistentVolumeClaim, message: str) -> None:
        """The claim cannot be served: message says why. Told at once, and again after a while. May be repeated."""
        if not self._is_news(claim, message):
            return
        self._events.warning(refer(CLAIMS, claim), REASON, message)
        for pod in await self._pods(claim):
            self._events.warning(pod, REASON, f"claim {claim.metadata.name}: {message}")

    def tell_siblings(self, siblings: Sequence[PersistentVolumeClaim], cause: PersistentVolumeClaim) -> None:
        """These claims of the same pod are not served because of that one. May be repeated."""
        message = f"no volume is made while claim {cause.metadata.name} of the same pod cannot have one: see its events"
        for claim in siblings:
            if not claim.spec.volume_name and self._is_news(claim, message):
                self._events.warning(refer(CLAIMS, claim), REASON, message)

    def left(self, uid: str) -> None:
        """The claim is gone, or another node's."""
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
        """Pods that wait for the claim; none when they cannot be learnt just now."""
        meta = claim.metadata
        if (owner := pod_owner(claim)) is not None:
            return [ObjectReference("v1", "Pod", meta.namespace, owner.name, owner.uid)]
        try:
            pods = (await self._client.list(PODS, meta.namespace)).items
        except TonnageError:
            return []
        return [refer(PODS, p) for p in pods if not p.spec.node_name and meta.name in p.claim_names()]
