"""Claims that do not fit are sent back to the scheduler, all of a pod together, with the reason.

A pod that fits nowhere must cause no storm: its claims are held ever longer before they go back (patience.py), and may
still be booked meanwhile when room comes up, or go back early when another node has room.

A sibling that was already made pins the pod here. It is given back (its claim deleted) only under a guard:
while another claim of the pod, which only this agent can make, is unbound and refused, the
scheduler cannot place the pod, so nothing uses the sibling; the refusal is held until the deletion is seen done.
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
"""Seconds after which a deletion that no watch told of is looked for."""
_WAIT_FOR_SIBLING, _LONGEST_WAIT_FOR_SIBLING = 0.05, 5.0


class Withdrawal:
    """Sends claims back. is_made: whether a claim has its volume, though it may not be bound to it yet."""

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
        self._leaving: dict[str, dict[str, str]] = {}  # group -> key -> uid of siblings being given back
        self._withdrawn = metrics.WITHDRAWN.labels(scope.node)

    def leaving(self, group: PodClaimGroup) -> bool:
        """Whether siblings of the group are being given back: it goes back whole, whatever room comes up."""
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
        """Make ready for the way back: seconds to wait before asking again, or the reason with which it goes now.

        patient: whether it may stay for a while. May be repeated. shortage None: the driver itself had no room, or why
        says what else keeps it away. Raises ApiError, Unavailable.
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
        return self._wait_for_sibling(group) or reason  # one may have been booked after all while we looked

    async def send_back(
        self, group: PodClaimGroup, claims: Sequence[PersistentVolumeClaim], reschedules: int, patched: Container[str]
    ) -> tuple[list[PersistentVolumeClaim], TonnageError | None]:
        """Patch these claims so that they have no node, and that many reschedules. Those for which that is now so, and
        the first failure. patched: uids of those that were, though the watch does not show it. May be repeated."""
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
        """Why claims go back whose siblings were not sent here."""
        claims = ", ".join(key.partition("/")[2] for key in missing)
        return f"node {self._scope.node}: {claims} of this pod did not get this node too; choosing a node again"

    def tell(
        self, group: PodClaimGroup, claims: Sequence[PersistentVolumeClaim], reschedules: int, reason: str
    ) -> None:
        """Say on the pod why its claims go back."""
        log.info("claims withdrawn group=%s claims=%d attempt=%d reason=%s", group.id, len(claims), reschedules, reason)
        self._events.normal(group.pod or refer(CLAIMS, claims[0]), "Rescheduled", reason)

    def settled(self, group: PodClaimGroup) -> None:
        """The group has its room after all."""
        self._patience.over(group.id)

    def is_pending(self, claim: PersistentVolumeClaim) -> bool:
        """Whether the claim may go back: it has no volume, and none is being made."""
        promise = self._ledger.get(claim.metadata.uid)
        under_way = promise is not None and promise.stage in (Stage.CREATING, Stage.CREATED)
        return not claim.spec.volume_name and not claim.metadata.deleting and not under_way and not self._is_made(claim)

    def _wait_for_sibling(self, group: PodClaimGroup) -> float:
        """Seconds to wait for a sibling whose volume is just being made, 0 for none. It pins the pod here, however long
        it takes: did the others go back before it can be given back, the pod would be stuck. One that is made will be
        bound: sent back it would be bound here all the same, and its siblings elsewhere."""
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
        """Seconds until the claims go back, or are to be looked at again; 0 when they go now."""
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
        """Whether the node keeps its room for these claims; told when that begins."""
        is_new = not self._ledger.kept()
        kept = await self._starvation_guard.keeps(promises, attempt - 1)
        if kept and is_new:
            sizes = f"{describe(shortage.sizes)}; free {from_bytes(shortage.free)}"
            text = f"{self._where(shortage)} keeps what becomes free for the volumes of this pod ({sizes})"
            self._events.normal(group.pod or refer(CLAIMS, claim), "CapacityReserved", text)
        return kept

    async def _send(self, claim: PersistentVolumeClaim, reschedules: int, *, live: bool) -> bool:
        """Whether the claim went back by this call: not when it has the number already, is gone or another node's.
        live: read it first."""
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
            if (await self._live(claim)) is None:  # made anew: the new one has not been sent here
                return False
            raise
        return patched

    async def _live(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim | None:
        """The same claim as it is now."""
        try:
            now = await self._client.get(CLAIMS, claim.metadata.name, claim.metadata.namespace)
        except ApiNotFound:
            return None
        return now if now.metadata.uid == claim.metadata.uid else None

    async def _reason(self, shortage: Shortfall | None, attempt: int) -> str:
        if shortage is None:
            return f"node {self._scope.node}: the driver has no room for a volume of this pod; choosing a node again"
        sizes = describe(shortage.sizes)
        if attempt >= PATIENT_FROM and (largest := await self._elsewhere.largest(shortage)) is not None:
            return f"no node has room for all volumes of this pod ({sizes}; largest free {from_bytes(largest)})"
        return f"{self._where(shortage)} {_lack(shortage)}; choosing a node again"

    def _where(self, shortage: Shortfall) -> str:
        kind, _, name = shortage.source.room.partition("/")
        return f"{kind} {name} of node {self._scope.node}"

    # Giving back what is made already

    async def _gave_back(self, group: PodClaimGroup, pending: Sequence[PersistentVolumeClaim]) -> bool:
        """Whether no sibling is left to give back. Deletes those that may go; false while a deletion goes on."""
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
        if claim.metadata.deleting or is_populated(claim):  # filling it anew may take long
            return False
        if is_ephemeral(claim):
            return group.pod is not None and claim.metadata.controller_uid() == group.pod.uid
        storage_class = self._classes.get(claim.spec.storage_class_name or "")
        return storage_class is not None and storage_class.parameters.get(names.ROLLBACK) == "true"

    async def _guarded(
        self, group: PodClaimGroup, made: Sequence[PersistentVolumeClaim], pending: Sequence[PersistentVolumeClaim]
    ) -> bool:
        """Live reads: a refused claim still keeps the pod from its node, and nobody uses what is made."""
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
        """Delete a claim; False when it changed since we looked, so that it must be looked at again."""
        meta = claim.metadata
        try:
            await self._client.delete(
                CLAIMS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )
        except ApiNotFound:
            return True
        except ApiConflict as failure:
            log.info("sibling not given back yet claim=%s reason=%s", claim.key, failure)
            return False
        log.info("sibling given back claim=%s", claim.key)
        return True

    async def _is_there(self, key: str, uid: str) -> bool:
        namespace, _, name = key.partition("/")
        try:
            return (await self._client.get(CLAIMS, name, namespace)).metadata.uid == uid
        except ApiNotFound:
            return False


def describe(sizes: Sequence[int]) -> str:
    """Sizes for people: "2 x 20Gi, 1Gi"."""
    counted = sorted(Counter(sizes).items(), reverse=True)
    return ", ".join(f"{n} x {from_bytes(size)}" if n > 1 else from_bytes(size) for size, n in counted)


def _lack(shortage: Shortfall) -> str:
    need, sizes = sum(shortage.sizes), describe(shortage.sizes)
    if need > shortage.free:
        lacks = f"lacks {from_bytes(need - shortage.free)} for the volumes of this pod"
        return f"{lacks} ({sizes}; free {from_bytes(shortage.free)})"
    return f"has no single place for the largest volume of this pod ({sizes}; largest {from_bytes(shortage.largest)})"


def _of_pod(key: str, group: PodClaimGroup) -> bool:
    return group.pod is not None and key.startswith(f"{group.namespace}/{group.pod.name}-")
