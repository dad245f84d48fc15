"""Rescheduling of a claim group that does not fit its node.

Claims that no node fits must not cause a storm of writes. They are held ever longer before they are rescheduled.
Meanwhile they are reserved if capacity becomes free here, or rescheduled early if another node has capacity.

A claim of the group whose volume exists pins the pod to this node. It is rolled back (the claim is deleted) only under
a guard: another claim of the pod, which only this agent can provision, is unbound and rejected. The scheduler then
cannot place the pod, so nothing uses the volume. The rejection holds until the deletion is complete.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import Any

from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, PODS
from tonnage.api.origin import is_populated
from tonnage.api.pods import Pod
from tonnage.api.quantity import from_bytes
from tonnage.api.storage import StorageClass
from tonnage.capacity.ledger import ClaimReservation, Ledger, Shortfall, Stage
from tonnage.capacity.tier import PATIENT_FROM
from tonnage.claims.bind import change
from tonnage.claims.node_scope import NodeScope, is_ephemeral
from tonnage.claims.selected_node import withdrawals
from tonnage.errors import ApiConflict, ApiNotFound, TonnageError
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.node.provisioner.claim_group import PodClaimGroup
from tonnage.node.provisioner.other_nodes import Elsewhere
from tonnage.node.provisioner.reschedule_backoff import LOOK_FROM, Patience, stay
from tonnage.node.provisioner.starvation import LONGEST, StarvationGuard
from tonnage.observe import metrics

log = logging.getLogger(__name__)
_LOOK_AGAIN = 5.0
"""Seconds after which a deletion without a watch event is checked."""
_WAIT_FOR_SIBLING, _LONGEST_WAIT_FOR_SIBLING = 0.05, 5.0


class Withdrawal:
    """Reschedules claims.

    is_made: whether a claim has its volume, though it may not be bound yet.
    """

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        claims: Cache[PersistentVolumeClaim],
        classes: Cache[StorageClass],
        ledger: Ledger,
        scope: NodeScope,
        clock: Clock,
        starvation_guard: StarvationGuard,
        is_made: Callable[[PersistentVolumeClaim], bool],
    ) -> None:
        self._client, self._events = client, events
        self._is_made = is_made
        self._starvation_guard = starvation_guard
        self._claims, self._classes = claims, classes
        self._ledger, self._scope, self._clock = ledger, scope, clock
        self._patience = Patience(clock)
        self._elsewhere = Elsewhere(client, ledger, scope, self._patience)
        self._leaving: dict[str, dict[str, str]] = {}  # group -> key -> uid of claims that are being rolled back
        self._withdrawn = metrics.WITHDRAWN.labels(scope.node)

    def leaving(self, group: PodClaimGroup) -> bool:
        """Return whether claims of the group are being rolled back.

        The whole group is then rescheduled, even if capacity becomes free.
        """
        return group.id in self._leaving

    async def prepare(
        self,
        group: PodClaimGroup,
        pending: Sequence[PersistentVolumeClaim],
        shortage: Shortfall | None,
        *,
        patient: bool,
        why: str = "",
    ) -> float | str:
        """Return seconds to wait, or the reason to reschedule now.

        patient: whether the group may be held. Idempotent. shortage None: the driver itself had insufficient storage,
        or `why` is another cause.

        Raises: ApiError, Unavailable.
        """
        self._ledger.refuse(c.metadata.uid for c in pending)
        attempt = 1 + max((withdrawals(c) for c in pending), default=0)
        if wait := self._wait_for_sibling(group):
            return wait
        if patient and not self.leaving(group) and (hold := await self._hold(group, pending, shortage, attempt)) > 0:
            return hold
        self._ledger.release(c.metadata.uid for c in pending)
        if not await self._gave_back(group, pending):
            return _LOOK_AGAIN
        reason = why or await self._reason(shortage, attempt)
        return self._wait_for_sibling(group) or reason  # one may have been reserved after all during the reads

    async def send_back(
        self, group: PodClaimGroup, claims: Sequence[PersistentVolumeClaim], reschedules: int, patched: Container[str]
    ) -> tuple[list[PersistentVolumeClaim], TonnageError | None]:
        """Remove selected-node and write the reschedules. Idempotent.

        Returns the claims that are now rescheduled, and the first failure. patched: uids that were patched before,
        though the watch does not show it.
        """
        self._leaving.pop(group.id, None)
        self._patience.over(group.id)
        done, failures = [], []
        for claim in claims:
            try:
                if await self._send(claim, reschedules, live=claim.metadata.uid in patched):
                    self._withdrawn.inc()
                done.append(claim)
            except TonnageError as failure:
                failures.append(failure)
        return done, next(iter(failures), None)

    def overdue(self, missing: Sequence[str]) -> str:
        """Return the reason for claims whose group did not get this node."""
        claims = ", ".join(key.partition("/")[2] for key in missing)
        return f"node {self._scope.node}: {claims} of this pod did not get this node too; rescheduling"

    def tell(
        self, group: PodClaimGroup, claims: Sequence[PersistentVolumeClaim], reschedules: int, reason: str
    ) -> None:
        """Emit on the pod why its claims are rescheduled."""
        log.info(
            "claims rescheduled group=%s claims=%d attempt=%d reason=%s", group.id, len(claims), reschedules, reason
        )
        self._events.normal(group.pod or refer(CLAIMS, claims[0]), "Rescheduled", reason)

    def settled(self, group: PodClaimGroup) -> None:
        """Record that the group has its capacity."""
        self._patience.over(group.id)

    def is_pending(self, claim: PersistentVolumeClaim) -> bool:
        """Return whether the claim may be rescheduled: no volume, and none under way."""
        promise = self._ledger.get(claim.metadata.uid)
        under_way = promise is not None and promise.stage in (Stage.CREATING, Stage.CREATED)
        return not claim.spec.volume_name and not claim.metadata.deleting and not under_way and not self._is_made(claim)

    def _wait_for_sibling(self, group: PodClaimGroup) -> float:
        """Return seconds to wait for a creation under way, 0 for none.

        It pins the pod to this node, however long it takes. If the others were rescheduled before it can be rolled
        back, the pod would be stuck. A created volume is bound here even if its claim is rescheduled, with the others
        elsewhere.
        """
        claims = [c for key in group.claims if (c := self._claims.get(key)) is not None and not c.spec.volume_name]
        if all(self.is_pending(c) or c.metadata.deleting for c in claims):
            return 0.0
        promises = [p for c in claims if (p := self._ledger.get(c.metadata.uid)) is not None]
        now = self._clock.monotonic()
        waited = now - min((p.seen for p in promises), default=now)
        return min(_LONGEST_WAIT_FOR_SIBLING, max(_WAIT_FOR_SIBLING, waited / 10))

    async def _hold(
        self, group: PodClaimGroup, pending: Sequence[PersistentVolumeClaim], shortage: Shortfall | None, attempt: int
    ) -> float:
        """Return seconds until the group is rescheduled or checked, 0 for now."""
        promises = [p for c in pending if (p := self._ledger.get(c.metadata.uid)) is not None]
        if not promises:
            return 0.0
        kept = shortage is not None and await self._keep(group, pending[0], promises, shortage, attempt)
        if attempt < PATIENT_FROM and not kept:
            return 0.0
        stays = stay(attempt, len(pending), self._ledger.shared_by(p.source.room for p in promises))
        stays = max(stays, LONGEST) if kept else stays
        left = min(p.seen for p in promises) + stays - self._clock.monotonic()
        if left <= 0 or stays < LOOK_FROM:
            return max(0.0, left)
        if await self._elsewhere.has_room(group, pending, stays):
            return 0.0
        return min(left, max(self._patience.next_look(group.id), _WAIT_FOR_SIBLING))

    async def _keep(
        self,
        group: PodClaimGroup,
        claim: PersistentVolumeClaim,
        promises: Sequence[ClaimReservation],
        shortage: Shortfall,
        attempt: int,
    ) -> bool:
        """Return whether the starvation guard holds for these claims.

        Emits an Event when it begins.
        """
        is_new = not self._ledger.kept()
        kept = await self._starvation_guard.keeps(promises, attempt - 1)
        if kept and is_new:
            sizes = f"{describe(shortage.sizes)}; free {from_bytes(shortage.free)}"
            text = f"{self._where(shortage)}: capacity that becomes free is reserved for this pod ({sizes})"
            self._events.normal(group.pod or refer(CLAIMS, claim), "CapacityReserved", text)
        return kept

    async def _send(self, claim: PersistentVolumeClaim, reschedules: int, *, live: bool) -> bool:
        """Reschedule a claim; return whether this call did it.

        False if the claim has the number already, is gone or has another node. live: read it first.
        """
        now = await self._live(claim) if live else claim
        if now is None:
            return False
        patched = False

        def back(now: PersistentVolumeClaim) -> dict[str, Any] | None:
            nonlocal patched
            meta = now.metadata
            patched = not now.spec.volume_name and self._scope.has_claim(meta) and withdrawals(now) < reschedules
            if not patched:
                return None
            annotations = {names.SELECTED_NODE: None, names.RESCHEDULES: str(reschedules)}
            annotations |= names.former(meta.annotations, names.RESCHEDULES)
            return {"metadata": {"annotations": annotations, "labels": {names.NODE_LABEL: None}}}

        try:
            await change(self._client, CLAIMS, now, back)
        except ApiNotFound:
            return False
        except ApiConflict:
            if (await self._live(claim)) is None:  # created again: the new claim does not have this node
                return False
            raise
        return patched

    async def _live(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim | None:
        """Return the same claim by a live read, None if it is gone."""
        try:
            now = await self._client.get(CLAIMS, claim.metadata.name, claim.metadata.namespace)
        except ApiNotFound:
            return None
        return now if now.metadata.uid == claim.metadata.uid else None

    async def _reason(self, shortage: Shortfall | None, attempt: int) -> str:
        if shortage is None:
            return f"insufficient storage on node {self._scope.node}: the driver has none for this pod; rescheduling"
        if attempt >= PATIENT_FROM and (largest := await self._elsewhere.largest(shortage)) is not None:
            return f"insufficient storage on all nodes: {_need(shortage)}, at most {from_bytes(largest)} free"
        return f"insufficient storage on {self._where(shortage)}: {_lack(shortage)}; rescheduling"

    def _where(self, shortage: Shortfall) -> str:
        kind, _, name = shortage.source.room.partition("/")
        return f"node {self._scope.node}, {kind} {name}"

    # Rollback of created volumes

    async def _gave_back(self, group: PodClaimGroup, pending: Sequence[PersistentVolumeClaim]) -> bool:
        """Return whether no claim is left to roll back.

        Deletes those that may be deleted; False while a deletion is under way.
        """
        leaving = self._leaving.get(group.id)
        if leaving is None:
            made = [c for key in group.claims if (c := self._claims.get(key)) and c.spec.volume_name]
            going = [c for c in made if c.metadata.deleting]  # by us before a restart, or by somebody else
            chosen = [c for c in made if self._may_go(c, group)]
            if chosen and not (pending and await self._guarded(group, chosen, pending)):
                chosen = []
            if not chosen and not going:
                return True
            leaving = self._leaving[group.id] = {c.key: c.metadata.uid for c in (*going, *chosen)}
            if not all([await self._give_back(claim) for claim in chosen]):
                del self._leaving[group.id]
                return False
        for key, uid in list(leaving.items()):
            if not await self._is_there(key, uid):
                del leaving[key]
        return not leaving

    def _may_go(self, claim: PersistentVolumeClaim, group: PodClaimGroup) -> bool:
        if claim.metadata.deleting or is_populated(claim):  # populating it again may take long
            return False
        if is_ephemeral(claim):
            return group.pod is not None and claim.metadata.controller_uid() == group.pod.uid
        storage_class = self._classes.get(claim.spec.storage_class_name or "")
        return storage_class is not None and storage_class.parameters.get(names.ROLLBACK) == "true"

    async def _guarded(
        self, group: PodClaimGroup, made: Sequence[PersistentVolumeClaim], pending: Sequence[PersistentVolumeClaim]
    ) -> bool:
        """Check the guard by live reads.

        True if a rejected claim still keeps the pod from its node, so nothing uses the created volumes.
        """
        if not any([await self._is_ours_alone(claim) for claim in pending]):
            return False
        used = {c.metadata.name for c in made}
        pods = await self._pods(group)
        return not any(p.spec.node_name and used & set(p.claim_names()) for p in pods)

    async def _pods(self, group: PodClaimGroup) -> list[Pod]:
        if group.pod is None or any(not _of_pod(key, group) for key in group.claims):
            return (await self._client.list(PODS, group.namespace)).items
        try:
            return [await self._client.get(PODS, group.pod.name, group.namespace)]
        except ApiNotFound:
            return []

    async def _is_ours_alone(self, claim: PersistentVolumeClaim) -> bool:
        now = await self._live(claim)
        if now is None or now.metadata.deleting or now.spec.volume_name:
            return False
        return now.metadata.annotations.get(names.SELECTED_NODE) == self._scope.node

    async def _give_back(self, claim: PersistentVolumeClaim) -> bool:
        """Delete a claim; return False if it changed and must be checked again."""
        meta = claim.metadata
        try:
            await self._client.delete(
                CLAIMS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )
        except ApiNotFound:
            return True
        except ApiConflict as failure:
            log.info("claim not rolled back yet claim=%s reason=%s", claim.key, failure)
            return False
        log.info("claim rolled back claim=%s", claim.key)
        return True

    async def _is_there(self, key: str, uid: str) -> bool:
        namespace, _, name = key.partition("/")
        try:
            return (await self._client.get(CLAIMS, name, namespace)).metadata.uid == uid
        except ApiNotFound:
            return False


def describe(sizes: Sequence[int]) -> str:
    """Format sizes for people: "2 x 20Gi, 1Gi"."""
    counted = sorted(Counter(sizes).items(), reverse=True)
    return ", ".join(f"{n} x {from_bytes(size)}" if n > 1 else from_bytes(size) for size, n in counted)


def _need(shortage: Shortfall) -> str:
    need = f"pod needs {from_bytes(sum(shortage.sizes))}"
    return f"{need} ({describe(shortage.sizes)})" if len(shortage.sizes) > 1 else need


def _lack(shortage: Shortfall) -> str:
    if sum(shortage.sizes) > shortage.free:
        return f"{_need(shortage)}, {from_bytes(shortage.free)} free"
    return f"{_need(shortage)}, maximum volume size {from_bytes(shortage.largest)}"


def _of_pod(key: str, group: PodClaimGroup) -> bool:
    return group.pod is not None and key.startswith(f"{group.namespace}/{group.pod.name}-")
