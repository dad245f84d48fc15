"""Claim group of a pod: its search, and the reservation of capacity for all its claims, or none.

An ephemeral claim names its pod, and the pod names its claims: one GET for each pod, whose volumes never change. Our
scheduler marks a single claim, which needs no GET. For a plain claim, the waiting pods are searched; without one, the
claim-group annotation names the other claims.

The state machine of a claim group decides; this module acts. Claims that are held get their reservation if capacity
becomes free. Claims whose group has an infeasible claim stay here unserved: no other node would serve it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from tonnage.base.aio.tasks import KeyedLocks
from tonnage.base.errors import InvalidError, PreconditionError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim, PersistentVolumeClaimSpec
from tonnage.kubernetes.api.kinds import CLAIMS, PODS
from tonnage.kubernetes.api.matching import default_class
from tonnage.kubernetes.api.meta import ObjectReference, OwnerReference
from tonnage.kubernetes.api.origin import is_copy, is_populated
from tonnage.kubernetes.api.pods import Pod, claim_name
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.kubernetes.client.client import refer
from tonnage.node.provisioner import reschedule
from tonnage.node.provisioner import state as machine
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.provisioner.create import ExistingVolumes, is_pending
from tonnage.node.provisioner.rejection import Feasibility, class_of, report, report_siblings
from tonnage.node.provisioner.state import ClaimEvent, GroupRound, PodClaimGroup
from tonnage.provisioning.capacity.ledger import Shortfall, Stage
from tonnage.provisioning.claims.bind import find, reschedules_of
from tonnage.provisioning.claims.data_source import SourceOnOtherNode, content_of
from tonnage.provisioning.claims.node_scope import CapacitySource, pod_owner

_REMEMBERED = 512
_AGAIN = 0.001
"""Seconds: something changed during the check."""
T = TypeVar("T")


@dataclass(frozen=True)
class _PodClaims:
    """Claims of one pod, by key.

    templates: key -> spec of its ephemeral volume. Claims with a data source are not in it; they are read.
    """

    group: str
    pod: ObjectReference | None
    claims: tuple[str, ...]
    templates: Mapping[str, PersistentVolumeClaimSpec]


class GroupFinder:
    """Finds the group of a claim; remembers pods."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._pods: OrderedDict[str, _PodClaims | None] = OrderedDict()
        self._claimants: OrderedDict[str, list[_PodClaims]] = OrderedDict()

    async def of(self, claim: PersistentVolumeClaim) -> PodClaimGroup:
        """Return the group of a claim. Raises: ApiError, UnavailableError."""
        meta = claim.metadata
        owner = pod_owner(claim)
        if owner is not None and names.annotation(meta.annotations, names.SINGLE_CLAIM) == meta.uid:
            return _single(claim)
        if owner is not None:
            pod = await self._pod(owner, meta.namespace)
            is_used = pod is not None and claim.key in pod.claims  # an owner need not use the claim that it owns
            return await self._of_pod(meta.namespace, pod) if pod is not None and is_used else _single(claim)
        if self._class(claim.spec) is not None:
            groups = [await self._of_pod(meta.namespace, pod) for pod in await self._users(claim)]
            if groups:
                return next((group for group in groups if not group.missing), groups[0])
        together = {n.strip() for n in names.annotation(meta.annotations, names.CLAIM_GROUP).split(",")} - {""}
        if not together:
            return _single(claim)
        members = sorted(together | {meta.name})
        keys = tuple(f"{meta.namespace}/{name}" for name in members)
        return await self._of_pod(meta.namespace, _PodClaims(f"{meta.namespace}/{','.join(members)}", None, keys, {}))

    async def confirm(self, group: PodClaimGroup) -> tuple[tuple[str, ...], int]:
        """Return missing claims that the pod needs, and their max reschedules.

        Reads the API server. Without a waiting pod, no claim is missing.

        Raises: ApiError, UnavailableError.
        """
        needed, most = [], 0
        for key in group.missing if group.pod is not None else ():
            claim = await self._read(key)
            if claim is None or self._will_come(claim):
                needed.append(key)
                most = max(most, reschedules_of(claim) if claim is not None else 0)
        return tuple(needed), most

    async def _of_pod(self, namespace: str, pod: _PodClaims) -> PodClaimGroup:
        """Sort a pod's claims into present, missing and clones."""
        present, missing, copies = set(), dict[str, PersistentVolumeClaimSpec](), []
        for key in pod.claims:
            if is_there(self._node.claims.get(key)):
                present.add(key)
            elif key in pod.templates:
                if self._class(pod.templates[key]) is not None:
                    missing[key] = pod.templates[key]
            elif (claim := await self._read(key)) is not None:
                if self._will_come(claim):
                    missing[key] = claim.spec
                copies += [claim] if is_copy(claim) else []
        coming = tuple(need for spec in missing.values() if (need := self._need(spec)) is not None)
        return PodClaimGroup(
            pod.group, namespace, pod.pod, pod.claims, frozenset(present), tuple(missing), tuple(copies), coming
        )

    async def _read(self, key: str) -> PersistentVolumeClaim | None:
        namespace, _, name = key.partition("/")
        return await find(self._node.client, CLAIMS, name, namespace)

    async def _users(self, claim: PersistentVolumeClaim) -> list[_PodClaims]:
        """Return the pods that wait for a plain claim.

        Read once each time that the claim gets this node. A StatefulSet's pod is found by its name, as its claims are
        named TEMPLATE-POD.
        """
        meta = claim.metadata
        turn = f"{meta.uid} {reschedules_of(claim)}"
        if turn not in self._claimants:
            words = meta.name.split("-")
            pods: list[Pod] = []
            for at in range(1, len(words) - 1) if words[-1].isdecimal() else ():
                pod = await find(self._node.client, PODS, "-".join(words[at:]), meta.namespace)
                if pod is not None and meta.name in pod.claim_names():
                    pods = [pod]
                    break
            else:
                pods = (await self._node.client.list(PODS, meta.namespace, fields="spec.nodeName=")).items
            users = (p for p in pods if meta.name in p.claim_names() and not p.metadata.deleting and not p.terminated)
            _remember(self._claimants, turn, [_claims_of(p) for p in users])
        return self._claimants[turn]

    async def _pod(self, owner: OwnerReference, namespace: str) -> _PodClaims | None:
        if owner.uid in self._pods:
            self._pods.move_to_end(owner.uid)
            return self._pods[owner.uid]
        pod = await find(self._node.client, PODS, owner.name, namespace)
        # Another uid: the owner is gone and another pod has its name. Garbage collection deletes the claim.
        found = _claims_of(pod) if pod is not None and pod.metadata.uid == owner.uid else None
        _remember(self._pods, owner.uid, found)
        return found

    def _will_come(self, claim: PersistentVolumeClaim) -> bool:
        """Return whether a claim without this node will get it.

        True for one of our claims without a volume, or one that will be created again. If the claim has another node
        now, one of the claims must be rescheduled before the pod fits either node.
        """
        if is_populated(claim):
            return False
        return (not claim.spec.volume_name or claim.metadata.deleting) and self._class(claim.spec) is not None

    def _class(self, spec: PersistentVolumeClaimSpec) -> StorageClass | None:
        """Return the class if it is late binding and of one of our drivers."""
        name = spec.storage_class_name
        found = default_class(self._node.classes) if name is None else self._node.classes.get(name)
        driver = self._node.drivers.get(found.provisioner) if found is not None and found.late else None
        return found if driver is not None and found is not None and not driver.publishes_ahead(found) else None

    def _need(self, spec: PersistentVolumeClaimSpec) -> tuple[CapacitySource, int] | None:
        storage_class = self._class(spec)
        driver = self._node.drivers.get(storage_class.provisioner) if storage_class is not None else None
        if storage_class is None or driver is None:
            return None
        try:
            return driver.source(storage_class), to_bytes(spec.resources.requests["storage"])
        except (KeyError, InvalidError):
            return None


def is_there(claim: PersistentVolumeClaim | None) -> bool:
    """Return whether a claim of the node's cache will stay.

    A deleted claim is created again before its pod can start. A volume populator's claim belongs to no group.
    """
    return claim is not None and not claim.metadata.deleting and not is_populated(claim)


def _claims_of(pod: Pod) -> _PodClaims:
    meta, templates = pod.metadata, {}
    for volume in pod.spec.volumes:
        spec = volume.ephemeral.volume_claim_template.spec if volume.ephemeral is not None else None
        if spec is not None and spec.data_source_ref is None and spec.data_source is None:
            templates[f"{meta.namespace}/{claim_name(meta.name, volume)}"] = spec
    keys = tuple(f"{meta.namespace}/{name}" for name in pod.claim_names())
    return _PodClaims(meta.uid, refer(PODS, pod), keys, templates)


def _single(claim: PersistentVolumeClaim) -> PodClaimGroup:
    meta = claim.metadata
    owner = pod_owner(claim)
    pod = ObjectReference("v1", "Pod", meta.namespace, owner.name, owner.uid) if owner is not None else None
    return PodClaimGroup(pod.uid if pod else meta.uid, meta.namespace, pod, (claim.key,), frozenset((claim.key,)))


def _remember(known: OrderedDict[str, T], key: str, value: T) -> None:
    known[key] = value
    while len(known) > _REMEMBERED:
        known.popitem(last=False)


# Reservation


class GroupReserver:
    """Reserves all claims of a group, or has them rescheduled; one decision at a time for each group."""

    def __init__(self, node: NodeContext) -> None:
        self._node, self._finder = node, GroupFinder(node)
        self._feasibility, self._existing = Feasibility(node), ExistingVolumes(node)
        self._locks = KeyedLocks()

    async def reserve(self, creation: machine.Creation) -> machine.Wait | machine.Reserved:
        """Reserve the claim's group, or return when to check it again.

        A class that binds late has selected-node set on all claims of the group. Idempotent.

        Raises: ApiError, UnavailableError.
        """
        node, claim = self._node, creation.claim
        uid = claim.metadata.uid
        await node.readings.first(creation.driver)
        if node.ledger.get(uid) is None:  # it left during the wait
            return machine.Wait(machine.LOOK_EVERY)
        found = await self._finder.of(claim)
        async with self._locks.hold(found.id):
            here = self._here(found)
            if len(here) > 1 and await self._is_infeasible(here):
                return machine.Wait(machine.LOOK_EVERY)
            if len(found.claims) > 1 and (away := await self._away([*filter(is_copy, here), *found.copies])):
                node.table.of(uid).go_away(away)
            group = node.table.group(found.id, [c.metadata.uid for c in here])
            late = creation.storage_class.late
            return await self._decide(GroupRound(found, group, found.missing if late else ()), uid, late=late)

    async def _decide(self, round_: GroupRound, uid: str, *, late: bool) -> machine.Wait | machine.Reserved:
        node, found = self._node, round_.found
        while True:
            reservation = node.ledger.get(uid)
            if reservation is None or reservation.stage is Stage.CREATED:
                return machine.Wait(machine.LOOK_EVERY)
            if reservation.stage in (Stage.RESERVED, Stage.CREATING):
                return machine.Reserved()
            here = self._here(found)
            if late and not found.present <= {c.key for c in here if is_there(c)}:
                return machine.Wait(_AGAIN)  # one has left
            self._observe(round_, here)
            if round_.shortfall is not None and await self._find_existing(round_.uids):
                continue
            is_missing, confirmed = bool(round_.missing), round_.is_confirmed
            decision = round_.group.decide(
                round_.members, round_.now, missing=is_missing, fits=round_.fits, confirmed=confirmed
            )
            if decision.move is machine.GroupMove.CONFIRM:
                round_.missing, round_.reschedules = await self._finder.confirm(found)
                round_.is_confirmed = True
            elif decision.move is machine.GroupMove.RESCHEDULE:
                await self._reschedule(round_, [round_.pending[u] for u in decision.uids], decision.reschedules)
            elif (result := await self._run(round_, decision)) is not None:
                return result

    def _observe(self, round_: GroupRound, here: Sequence[PersistentVolumeClaim]) -> None:
        """Update the round from the caches and the ledger."""
        node, now = self._node, self._node.clock.monotonic()
        round_.now, round_.uids = now, [c.metadata.uid for c in here]
        round_.missing = tuple(key for key in round_.missing if not is_there(node.claims.get(key)))
        round_.pending = {c.metadata.uid: c for c in here if is_pending(node, c)}
        round_.members = [self._member(c, now) for c in round_.pending.values()]
        round_.is_rejected = round_.group.rollback is not None or any(self._is_on_hold(u) for u in round_.uids)
        is_open = round_.missing and not round_.is_rejected
        round_.shortfall = node.ledger.lacks(round_.uids, round_.found.coming) if is_open else None

    async def _run(self, round_: GroupRound, decision: machine.GroupDecision) -> machine.Wait | machine.Reserved | None:
        """Wait, reserve the group, or reject it; return None to decide again."""
        node, shortfall = self._node, round_.shortfall
        if decision.move is machine.GroupMove.WAIT:
            event = ClaimEvent.SIBLINGS_MISSING if round_.missing else ClaimEvent.WATCH_BEHIND
            node.table.happened(round_.pending, event)
            return machine.Wait(decision.recheck_at - round_.now)
        if decision.move is machine.GroupMove.RESERVE and not round_.is_rejected:
            shortfall = node.ledger.reserve(round_.uids)
            if shortfall is None:
                round_.group.reserved(round_.members)
                round_.group.search.end()
                node.table.happened(round_.pending, ClaimEvent.RESERVED)
                return machine.Reserved(tuple(round_.uids))
            if await self._find_existing(round_.uids):
                return None
        node.table.happened((u for u in round_.pending if node.ledger.get(u)), ClaimEvent.REJECTED)
        return await self._reject(round_, shortfall, decision)

    async def _reject(
        self, round_: GroupRound, shortfall: Shortfall | None, decision: machine.GroupDecision
    ) -> machine.Wait | None:
        """Hold the group, or reject it; return None to decide again."""
        node, found, group = self._node, round_.found, round_.group
        is_overdue = decision.move is machine.GroupMove.REJECT and round_.is_confirmed
        holds = (state.hold for state in node.table.of_all(round_.uids))
        why = next((hold.why for hold in holds if hold is not None and hold.why), "")
        if is_overdue and round_.fits:
            why = reschedule.overdue(node, round_.missing)
        try:
            ready = await reschedule.prepare(node, round_, shortfall, why, is_patient=not is_overdue)
        finally:
            node.table.remember(found.id, group)
        if isinstance(ready, machine.Wait):
            node.table.happened(round_.pending, ClaimEvent.REJECTED)
            return machine.Wait(min(ready.seconds, decision.recheck_at - round_.now))
        is_missing, now = bool(round_.missing), node.clock.monotonic()
        group.reject(round_.members, now, missing=is_missing, at_least=round_.reschedules, reason=ready)
        node.table.join(round_.pending, found.id)
        return None

    async def _reschedule(self, round_: GroupRound, claims: Sequence[PersistentVolumeClaim], reschedules: int) -> None:
        node, group, uids = self._node, round_.group, [c.metadata.uid for c in claims]
        node.ledger.reject(uids)
        node.table.happened(uids, ClaimEvent.RESCHEDULE)
        done, failure = await reschedule.send_back(node, group, claims, reschedules)
        for uid in (c.metadata.uid for c in done):
            if node.ledger.get(uid) is not None:  # else the watch shows it already
                group.patched(uid, node.clock.monotonic())
                node.table.happened([uid], ClaimEvent.PATCHED)
        if done and group.report(reschedules):
            reschedule.report(node, round_.found, done, reschedules, group.reason)
        if failure is not None:
            raise failure

    async def _find_existing(self, uids: Iterable[str]) -> bool:
        """Return whether one of these claims has a volume already, which the ledger did not know."""
        found = False
        for reserved in self._node.ledger.needing(uids):
            if await self._existing.has(reserved.source.driver, reserved.uid):
                self._node.ledger.exists(reserved.uid)
                found = True
        return found

    def _here(self, found: PodClaimGroup) -> list[PersistentVolumeClaim]:
        """Return claims of the group with this node.

        A volume populator's claims need nothing of this node: their volumes are created for claims of its own.
        """
        claims = map(self._node.claims.get, found.claims)
        return [c for c in claims if c is not None and not is_populated(c)]

    def _member(self, claim: PersistentVolumeClaim, now: float) -> machine.Member:
        reserved = self._node.ledger.get(claim.metadata.uid)
        return machine.Member(claim.metadata.uid, reschedules_of(claim), reserved.seen if reserved is not None else now)

    async def _away(self, copies: Iterable[PersistentVolumeClaim]) -> str:
        """Return why the pod cannot be on this node, or "".

        True reasons are copies whose source is on another node. "" also where that is not known.
        """
        for claim in copies:
            with suppress(InvalidError, PreconditionError):
                found = class_of(self._node, claim)
                if found is None:
                    continue
                content = await content_of(self._node.client, claim, found[1], self._node.scope.label)
                if isinstance(content, SourceOnOtherNode):
                    return content.reason
        return ""

    async def _is_infeasible(self, claims: Sequence[PersistentVolumeClaim]) -> bool:
        """Return whether one of the claims is infeasible.

        Then none is served, and Events report it on all.
        """
        found = await self._feasibility.first_fault(claims)
        if found is None:
            return False
        cause, message = found
        uids = [c.metadata.uid for c in claims]
        self._node.ledger.reject(uids)
        self._node.table.happened(uids, ClaimEvent.POD_INFEASIBLE)
        await report(self._node, cause, message)
        report_siblings(self._node, [c for c in claims if c is not cause], cause)
        return True

    def _is_on_hold(self, uid: str) -> bool:
        """Return whether the driver still has insufficient storage for the claim.

        Decided from known results, without another call.
        """
        state, reserved = self._node.table.claims.get(uid), self._node.ledger.get(uid)
        if state is None or reserved is None:
            return state is not None and state.hold is not None
        return state.is_on_hold(self._node.ledger.free(reserved.source), self._node.clock.monotonic())
