"""Claims that do not fit are sent back to the scheduler, all of a pod together, with the reason.

A pod that fits nowhere must cause no storm: its claims are held ever longer before they go back (patience.py), and may
still be booked meanwhile when room comes up, or go back early when another node has room.

A sibling that was already made pins the pod here. It is given back (its claim deleted) only under the guard of
admission-policies.md 4: while another claim of the pod, which only this agent can make, is unbound and refused, the
scheduler cannot place the pod, so nothing uses the sibling; the refusal is held until the deletion is seen done.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tonnage.aio.clock import Clock
from tonnage.aio.tasks import KeyedLocks
from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, PODS
from tonnage.api.pods import Pod
from tonnage.api.quantity import from_bytes
from tonnage.api.storage import StorageClass
from tonnage.controllers.binding import change
from tonnage.controllers.drivers import NodeScope, is_ephemeral
from tonnage.controllers.elsewhere import Elsewhere
from tonnage.controllers.hold_back import LONGEST, HoldBack
from tonnage.controllers.ledger import Ledger, Promise, Shortage, Stage
from tonnage.controllers.patience import LOOK_FROM, PATIENT_FROM, Patience, stay
from tonnage.controllers.sending import withdrawals
from tonnage.controllers.siblings import Group
from tonnage.errors import ApiConflict, ApiNotFound
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
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
        hold_back: HoldBack,
        is_made: Callable[[PersistentVolumeClaim], bool],
    ) -> None:
        self._client, self._events = client, events
        self._is_made = is_made
        self._hold_back = hold_back
        self._claims, self._classes = claims, classes
        self._ledger, self._scope, self._clock = ledger, scope, clock
        self._patience = Patience(clock)
        self._elsewhere = Elsewhere(client, ledger, scope, self._patience)
        self._locks = KeyedLocks()
        self._going: dict[str, int] = {}  # uid -> how often it will have gone back
        self._leaving: dict[str, dict[str, str]] = {}  # group -> key -> uid of siblings being given back
        self._withdrawn = metrics.WITHDRAWN.labels(scope.node)

    def leaving(self, group: Group) -> bool:
        """Whether siblings of the group are being given back: it goes back whole, whatever room comes up."""
        return group.id in self._leaving

    async def refuse(self, group: Group, shortage: Shortage | None, why: str = "") -> float | None:
        """Send the unmade claims of the group back, or say in how many seconds to come again. May be repeated.

        shortage None: the driver itself had no room, or why says what else keeps it away. Raises ApiError, Unavailable.
        """
        async with self._locks.hold(group.id):
            pending = self._pending(group)
            self._ledger.refuse(c.metadata.uid for c in pending)
            attempt = 1 + max((withdrawals(c) for c in pending), default=0)
            if wait := self._wait_for_sibling(group):
                return wait
            if not self.leaving(group) and (hold := await self._hold(group, pending, shortage, attempt)) > 0:
                return hold
            self._ledger.release(c.metadata.uid for c in pending)
            if not await self._gave_back(group, pending):
                return _LOOK_AGAIN
            if wait := self._wait_for_sibling(group):  # one was booked after all while we looked
                return wait
            if sent := await self._send_all(pending):
                self._tell(group, sent, attempt, why or await self._reason(shortage, attempt))
            self._leaving.pop(group.id, None)
            self._patience.over(group.id)
            return None

    def is_going(self, claim: PersistentVolumeClaim) -> bool:
        """Whether the claim is being sent back, or was and the watch does not show it yet: whatever room comes up, a
        volume made for it now would be bound here, and its siblings elsewhere."""
        return withdrawals(claim) < self._going.get(claim.metadata.uid, 0)

    def left(self, uid: str) -> None:
        """The claim is no longer sent here."""
        self._going.pop(uid, None)

    def settled(self, group: Group) -> None:
        """The group has its room after all."""
        self._patience.over(group.id)

    def _pending(self, group: Group) -> list[PersistentVolumeClaim]:
        found = (self._claims.get(key) for key in group.claims)
        return [c for c in found if c is not None and self._is_pending(c) and not self.is_going(c)]

    def _is_pending(self, claim: PersistentVolumeClaim) -> bool:
        promise = self._ledger.get(claim.metadata.uid)
        under_way = promise is not None and promise.stage in (Stage.CREATING, Stage.MADE)
        return not claim.spec.volume_name and not claim.metadata.deleting and not under_way and not self._is_made(claim)

    def _wait_for_sibling(self, group: Group) -> float:
        """Seconds to wait for a sibling whose volume is just being made, 0 for none. It pins the pod here, however long
        it takes: did the others go back before it can be given back, the pod would be stuck. One that is made will be
        bound: sent back it would be bound here all the same, and its siblings elsewhere."""
        claims = [c for key in group.claims if (c := self._claims.get(key)) is not None and not c.spec.volume_name]
        if all(self._is_pending(c) or c.metadata.deleting for c in claims):
            return 0.0
        promises = [p for c in claims if (p := self._ledger.get(c.metadata.uid)) is not None]
        now = self._clock.monotonic()
        waited = now - min((p.seen for p in promises), default=now)
        return min(_LONGEST_WAIT_FOR_SIBLING, max(_WAIT_FOR_SIBLING, waited / 10))

    async def _hold(
        self, group: Group, pending: Sequence[PersistentVolumeClaim], shortage: Shortage | None, attempt: int
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
        self, group: Group, claim: PersistentVolumeClaim, promises: Sequence[Promise], shortage: Shortage, attempt: int
    ) -> bool:
        """Whether the node keeps its room for these claims; told when that begins."""
        is_new = not self._ledger.kept()
        kept = await self._hold_back.keeps(promises, attempt - 1)
        if kept and is_new:
            sizes = f"{describe(shortage.sizes)}; free {from_bytes(shortage.free)}"
            text = f"{self._where(shortage)} keeps what becomes free for the volumes of this pod ({sizes})"
            self._events.normal(group.pod or refer(CLAIMS, claim), "RoomKept", text)
        return kept

    def _tell(self, group: Group, sent: Sequence[PersistentVolumeClaim], attempt: int, reason: str) -> None:
        self._withdrawn.inc(len(sent))
        about = group.pod or refer(CLAIMS, sent[0])
        log.info("claims withdrawn group=%s claims=%d attempt=%d reason=%s", group.id, len(sent), attempt, reason)
        self._events.normal(about, "Withdrawn", reason)

    async def _send_all(self, pending: Sequence[PersistentVolumeClaim]) -> list[PersistentVolumeClaim]:
        """Those that went back."""
        self._going.update({c.metadata.uid: withdrawals(c) + 1 for c in pending})
        kept = {c.metadata.uid for c in pending}
        try:
            for claim in pending:
                if await self._send(claim):
                    kept.discard(claim.metadata.uid)
        finally:
            for uid in kept:
                self._going.pop(uid, None)
        return [c for c in pending if c.metadata.uid not in kept]

    async def _send(self, claim: PersistentVolumeClaim) -> bool:
        patched = False

        def back(now: PersistentVolumeClaim) -> dict[str, Any] | None:
            nonlocal patched
            meta = now.metadata
            patched = not now.spec.volume_name and self._scope.has_claim(meta)
            if not patched:
                return None
            annotations = {names.SELECTED_NODE: None, names.WITHDRAWN: str(withdrawals(now) + 1)}
            return {"metadata": {"annotations": annotations, "labels": {names.NODE_LABEL: None}}}

        try:
            await change(self._client, CLAIMS, claim, back)
        except (ApiNotFound, ApiConflict):  # gone, or made anew: the new one has not been sent here
            return False
        return patched

    async def _reason(self, shortage: Shortage | None, attempt: int) -> str:
        if shortage is None:
            return f"node {self._scope.node}: the driver has no room for a volume of this pod; choosing a node again"
        sizes = describe(shortage.sizes)
        if attempt >= PATIENT_FROM and (largest := await self._elsewhere.largest(shortage)) is not None:
            return f"no node has room for all volumes of this pod ({sizes}; largest free {from_bytes(largest)})"
        return f"{self._where(shortage)} {_lack(shortage)}; choosing a node again"

    def _where(self, shortage: Shortage) -> str:
        kind, _, name = shortage.source.room.partition("/")
        return f"{kind} {name} of node {self._scope.node}"

    # Giving back what is made already

    async def _gave_back(self, group: Group, pending: Sequence[PersistentVolumeClaim]) -> bool:
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

    def _may_go(self, claim: PersistentVolumeClaim, group: Group) -> bool:
        if claim.metadata.deleting:
            return False
        if is_ephemeral(claim):
            return group.pod is not None and claim.metadata.controller_uid() == group.pod.uid
        storage_class = self._classes.get(claim.spec.storage_class_name or "")
        return storage_class is not None and storage_class.parameters.get(names.ROLLBACK) == "true"

    async def _guarded(
        self, group: Group, made: Sequence[PersistentVolumeClaim], pending: Sequence[PersistentVolumeClaim]
    ) -> bool:
        """Live reads: a refused claim still keeps the pod from its node, and nobody uses what is made."""
        if not any([await self._is_ours_alone(claim) for claim in pending]):
            return False
        used = {c.metadata.name for c in made}
        pods = await self._pods(group)
        return not any(p.spec.node_name and used & set(p.claim_names()) for p in pods)

    async def _pods(self, group: Group) -> list[Pod]:
        if group.pod is None or any(not _of_pod(key, group) for key in group.claims):
            return (await self._client.list(PODS, group.namespace)).items
        try:
            return [await self._client.get(PODS, group.pod.name, group.namespace)]
        except ApiNotFound:
            return []

    async def _is_ours_alone(self, claim: PersistentVolumeClaim) -> bool:
        try:
            now = await self._client.get(CLAIMS, claim.metadata.name, claim.metadata.namespace)
        except ApiNotFound:
            return False
        meta = now.metadata
        same = meta.uid == claim.metadata.uid and not meta.deleting and not now.spec.volume_name
        return same and meta.annotations.get(names.SELECTED_NODE) == self._scope.node

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


def _lack(shortage: Shortage) -> str:
    need, sizes = sum(shortage.sizes), describe(shortage.sizes)
    if need > shortage.free:
        lacks = f"lacks {from_bytes(need - shortage.free)} for the volumes of this pod"
        return f"{lacks} ({sizes}; free {from_bytes(shortage.free)})"
    return f"has no single place for the largest volume of this pod ({sizes}; largest {from_bytes(shortage.largest)})"


def _of_pod(key: str, group: Group) -> bool:
    return group.pod is not None and key.startswith(f"{group.namespace}/{group.pod.name}-")
