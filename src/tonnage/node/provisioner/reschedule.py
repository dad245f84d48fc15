"""Rescheduling of a claim group that does not fit its node.

Claims that no node fits must not cause a storm of writes. They are held ever longer before they are rescheduled.
Meanwhile they are reserved if capacity becomes free here, or rescheduled early if another node has capacity.

A claim of the group whose volume exists pins the pod to this node. It is rolled back only if its volume was never
staged, by the volume's record, and only under a guard: another claim of the pod, which only this agent can provision,
is unbound and rejected, so the scheduler cannot place the pod. An annotation says that the claim is rolled back. Then
the driver deletes the volume, which checks its record in the same call, then the claim is deleted; after a kill the
annotation makes the next agent go on. The rejection holds until the claim is gone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from tonnage.base.errors import ApiConflictError, ApiNotFoundError, TonnageError, UnavailableError
from tonnage.base.observe import metrics
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, PODS
from tonnage.kubernetes.api.matching import driver_volume
from tonnage.kubernetes.api.origin import is_populated
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.client.client import refer
from tonnage.node.provisioner import other_nodes, populator
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.provisioner.create import is_pending, read_claim, read_waiting
from tonnage.node.provisioner.state import (
    LOOK_FROM,
    ClaimGroup,
    GroupRound,
    PodClaimGroup,
    Wait,
    hold_time,
    is_rolled_back,
)
from tonnage.provisioning.capacity.ledger import ClaimReservation, Shortfall
from tonnage.provisioning.capacity.tier import PATIENT_FROM
from tonnage.provisioning.claims.bind import change, find, reschedules_of
from tonnage.provisioning.claims.node_scope import CapacitySource, DriverInfo, is_ephemeral

log = logging.getLogger(__name__)
_LOOK_AGAIN = 5.0
"""Seconds after which a deletion without a watch event is checked."""
_WAIT_FOR_SIBLING, _LONGEST_WAIT_FOR_SIBLING = 0.05, 5.0
LONGEST_GUARD = 1800.0
"""Maximum seconds of the starvation guard for one pod; then the pod is rescheduled."""


async def prepare(
    node: NodeContext, attempt: GroupRound, shortfall: Shortfall | None, why: str, *, is_patient: bool
) -> Wait | str:
    """Return when to check again, or the reason to reschedule now.

    shortfall None: the driver itself had insufficient storage, or `why` is another cause. is_patient: whether the group
    may be held. Idempotent.

    Raises: ApiError, UnavailableError.
    """
    node.ledger.reject(attempt.pending)
    if wait := _wait_for_sibling(node, attempt.found):
        return Wait(wait)
    if is_patient and attempt.group.rollback is None and (hold := await _hold(node, attempt, shortfall)) > 0:
        return Wait(hold)
    node.ledger.release(attempt.pending)
    if not await _roll_back(node, attempt):
        return Wait(_LOOK_AGAIN)
    reason = why or await _reason(node, attempt, shortfall)
    wait = _wait_for_sibling(node, attempt.found)  # one may have been reserved after all during the reads
    return Wait(wait) if wait else reason


async def send_back(
    node: NodeContext, group: ClaimGroup, claims: Sequence[PersistentVolumeClaim], reschedules: int
) -> tuple[list[PersistentVolumeClaim], TonnageError | None]:
    """Remove selected-node and write the reschedules. Idempotent.

    Returns the claims that are now rescheduled, and the first failure.
    """
    group.rollback, unseen = None, group.unseen
    group.search.end()
    done, failures = [], []
    for claim in claims:
        try:  # one that was patched before is read first, as the watch does not show it
            await populator.take_back(node, claim, group.reason)
            if await _send(node, claim, reschedules, live=claim.metadata.uid in unseen):
                metrics.RESCHEDULED.labels(node.scope.node).inc()
            done.append(claim)
        except TonnageError as failure:
            failures.append(failure)
    return done, next(iter(failures), None)


def overdue(node: NodeContext, missing: Sequence[str]) -> str:
    """Return the reason for claims whose group did not get this node."""
    claims = ", ".join(key.partition("/")[2] for key in missing)
    return f"node {node.scope.node}: {claims} of this pod did not get this node too; rescheduling"


def report(
    node: NodeContext, found: PodClaimGroup, claims: Sequence[PersistentVolumeClaim], reschedules: int, reason: str
) -> None:
    """Emit on the pod why its claims are rescheduled."""
    log.info("claims rescheduled group=%s claims=%d attempt=%d reason=%s", found.id, len(claims), reschedules, reason)
    node.events.normal(found.pod or refer(CLAIMS, claims[0]), "Rescheduled", reason)


def _wait_for_sibling(node: NodeContext, found: PodClaimGroup) -> float:
    """Return seconds to wait for a creation under way, 0 for none.

    It pins the pod to this node, however long it takes. If the others were rescheduled before it can be rolled back,
    the pod would be stuck. A created volume is bound here even if its claim is rescheduled, with the others elsewhere.
    """
    claims = [c for key in found.claims if (c := node.claims.get(key)) is not None and not c.spec.volume_name]
    if all(is_pending(node, c) or c.metadata.deleting for c in claims):
        return 0.0
    now = node.clock.monotonic()
    waited = now - min((p.seen for p in _reservations(node, claims)), default=now)
    return min(_LONGEST_WAIT_FOR_SIBLING, max(_WAIT_FOR_SIBLING, waited / 10))


def _reservations(node: NodeContext, claims: Sequence[PersistentVolumeClaim]) -> list[ClaimReservation]:
    return [p for c in claims if (p := node.ledger.get(c.metadata.uid)) is not None]


async def _hold(node: NodeContext, attempt: GroupRound, shortfall: Shortfall | None) -> float:
    """Return seconds until the group is rescheduled or checked, 0 for now."""
    pending = list(attempt.pending.values())
    reservations = _reservations(node, pending)
    if not reservations:
        return 0.0
    is_guarded = shortfall is not None and await _guard(node, attempt, shortfall, reservations)
    if attempt.number < PATIENT_FROM and not is_guarded:
        return 0.0
    objects = node.ledger.shared_by(p.source.pool_key for p in reservations)
    stays = hold_time(attempt.number, len(pending), objects)
    stays = max(stays, LONGEST_GUARD) if is_guarded else stays
    now, search = node.clock.monotonic(), attempt.group.search
    left = min(p.seen for p in reservations) + stays - now
    if left <= 0 or stays < LOOK_FROM:
        return max(0.0, left)
    if await other_nodes.have_capacity(node, attempt.found, pending, search):
        search.limit(node.clock.monotonic() + stays)
        return 0.0
    return min(left, max(search.next_check(node.clock.monotonic()), _WAIT_FOR_SIBLING))


async def _guard(
    node: NodeContext, attempt: GroupRound, shortfall: Shortfall, reservations: Sequence[ClaimReservation]
) -> bool:
    """Return whether the starvation guard holds for these claims.

    Emits an Event when it begins.
    """
    is_new = not node.ledger.guarded()
    if not await _can_guard(node, reservations, attempt.number - 1):
        return False
    if is_new:
        sizes = f"{describe(shortfall.sizes)}; free {from_bytes(shortfall.free)}"
        text = f"{_where(node, shortfall)}: capacity that becomes free is reserved for this pod ({sizes})"
        about = attempt.found.pod or refer(CLAIMS, next(iter(attempt.pending.values())))
        node.events.normal(about, "CapacityReserved", text)
    return True


async def _can_guard(node: NodeContext, reservations: Sequence[ClaimReservation], reschedules: int) -> bool:
    """Return whether the starvation guard holds for these claims of one pod. Idempotent.

    Begins the guard if it can. Opt-in: otherwise smaller pods may use all capacity that becomes free. The scheduler
    selected this node for the pod, so all but its storage fits: selectors, taints, cpu and memory. Whatever becomes
    free is reserved for the pod: published capacity excludes it, and no other claim gets it. One pod at a time for each
    node, and only one that fits the empty node. The guard ends when the pod has its capacity, is gone, may run
    elsewhere, or has waited too long.
    """
    ledger, uids = node.ledger, {p.uid for p in reservations}
    if not node.guard_after or reschedules < node.guard_after:
        return False
    if (guarded := ledger.guarded()) and not guarded & uids:
        return False
    for source in {p.source.pool_key: p.source for p in reservations}.values():
        needed = sum(p.size for p in reservations if p.source.pool_key == source.pool_key)
        if not guarded and needed > await _empty_size(node, source):
            return False
    if (others := ledger.guarded()) and not others & uids:  # during the call
        return False
    ledger.keep(uids)
    return True


async def _empty_size(node: NodeContext, source: CapacitySource) -> int:
    """Return bytes of an empty pool, 0 where that is not known."""
    driver = node.drivers.get(source.driver)
    if driver is None or not (driver.lists_volumes and driver.lists_capacity):
        return 0
    pool = source.pool_key.partition("/")[2] if driver.default_pool else ""
    segment = driver.segment if driver.topology else None
    try:
        free = await driver.client.get_capacity({"pool": pool} if pool else {}, topology=segment)
        volumes = await driver.client.list_volumes()
    except (CsiError, UnavailableError) as failure:
        log.warning("capacity not known driver=%s error=%s", driver.name, failure)
        return 0
    return free.available + sum(v.size for v in volumes if not pool or v.id.startswith(f"{pool}/"))


async def _send(node: NodeContext, claim: PersistentVolumeClaim, reschedules: int, *, live: bool) -> bool:
    """Reschedule a claim; return whether this call did it.

    False if the claim has the number already, is gone or has another node. live: read it first.
    """
    now = await read_claim(node, claim) if live else claim
    if now is None:
        return False
    patched = False

    def back(now: PersistentVolumeClaim) -> dict[str, Any] | None:
        nonlocal patched
        meta = now.metadata
        patched = not now.spec.volume_name and node.scope.has_claim(meta) and reschedules_of(now) < reschedules
        if not patched:
            return None
        annotations = {names.SELECTED_NODE: None, names.RESCHEDULES: str(reschedules)}
        annotations |= names.former(meta.annotations, names.RESCHEDULES)
        return {"metadata": {"annotations": annotations, "labels": {names.NODE_LABEL: None}}}

    try:
        await change(node.client, CLAIMS, now, back)
    except ApiNotFoundError:
        return False
    except ApiConflictError:
        if (await read_claim(node, claim)) is None:  # created again: the new claim does not have this node
            return False
        raise
    return patched


# Reasons


async def _reason(node: NodeContext, attempt: GroupRound, shortfall: Shortfall | None) -> str:
    if shortfall is None:
        return f"insufficient storage on node {node.scope.node}: the driver has none for this pod; rescheduling"
    if attempt.number >= PATIENT_FROM and (largest := await other_nodes.largest(node, shortfall)) is not None:
        return f"insufficient storage on all nodes: {_need(shortfall)}, at most {from_bytes(largest)} free"
    return f"insufficient storage on {_where(node, shortfall)}: {_lack(shortfall)}; rescheduling"


def _where(node: NodeContext, shortfall: Shortfall) -> str:
    kind, _, name = shortfall.source.pool_key.partition("/")
    return f"node {node.scope.node}, {kind} {name}"


def describe(sizes: Sequence[int]) -> str:
    """Format sizes for people: "2 x 20Gi, 1Gi"."""
    counted = sorted(Counter(sizes).items(), reverse=True)
    return ", ".join(f"{n} x {from_bytes(size)}" if n > 1 else from_bytes(size) for size, n in counted)


def _need(shortfall: Shortfall) -> str:
    need = f"pod needs {from_bytes(sum(shortfall.sizes))}"
    return f"{need} ({describe(shortfall.sizes)})" if len(shortfall.sizes) > 1 else need


def _lack(shortfall: Shortfall) -> str:
    if sum(shortfall.sizes) > shortfall.free:
        return f"{_need(shortfall)}, {from_bytes(shortfall.free)} free"
    return f"{_need(shortfall)}, maximum volume size {from_bytes(shortfall.largest)}"


# Rollback of created volumes


async def _roll_back(node: NodeContext, attempt: GroupRound) -> bool:
    """Return whether no claim is left to roll back.

    Deletes those that may be deleted; False while a deletion is under way.
    """
    found, group = attempt.found, attempt.group
    if group.rollback is None:
        created = [c for key in found.claims if (c := node.claims.get(key)) and c.spec.volume_name]
        going = [c for c in created if _is_going(c)]  # by us before a restart, or by somebody else
        chosen = [c for c in created if _may_delete(node, c, found) and await _is_unused(node, c)]
        if chosen and not (attempt.pending and await _is_guarded(node, found, chosen, attempt.pending.values())):
            chosen = []
        if not chosen and not going:
            return True
        group.rollback = [*going, *chosen]
        if not all([await _mark(node, claim) for claim in chosen]):
            group.rollback = None
            return False
    now = [await read_claim(node, claim) for claim in group.rollback]
    group.rollback = [claim for claim in now if claim is not None and _is_going(claim)]
    return not group.rollback


def _may_delete(node: NodeContext, claim: PersistentVolumeClaim, found: PodClaimGroup) -> bool:
    if _is_going(claim) or is_populated(claim):  # populating it again may take long
        return False
    if is_ephemeral(claim):
        return found.pod is not None and claim.metadata.controller_uid() == found.pod.uid
    if (made := _made(node, claim)) is None or not made[0].default_pool:
        return False  # another driver has no record that says whether a pod had the volume
    return _is_allowed(node, claim)


async def _is_guarded(
    node: NodeContext,
    found: PodClaimGroup,
    created: Sequence[PersistentVolumeClaim],
    pending: Iterable[PersistentVolumeClaim],
) -> bool:
    """Check the guard by live reads.

    True if a rejected claim still keeps the pod from its node, so nothing uses the created volumes.
    """
    if not any([await read_waiting(node, claim) for claim in pending]):
        return False
    used = {c.metadata.name for c in created}
    return not any(p.spec.node_name and used & set(p.claim_names()) for p in await _pods(node, found))


async def _pods(node: NodeContext, found: PodClaimGroup) -> list[Pod]:
    pod = found.pod
    if pod is None or any(not key.startswith(f"{found.namespace}/{pod.name}-") for key in found.claims):
        return (await node.client.list(PODS, found.namespace)).items
    now = await find(node.client, PODS, pod.name, found.namespace)
    return [now] if now is not None else []


def _is_allowed(node: NodeContext, claim: PersistentVolumeClaim) -> bool:
    """Return whether a claim may be deleted at all: its owner makes it again, or its class says so."""
    storage_class = node.classes.get(claim.spec.storage_class_name or "")
    is_loose = storage_class is not None and storage_class.parameters.get(names.ROLLBACK) == "true"
    return is_loose or is_ephemeral(claim)


def _is_going(claim: PersistentVolumeClaim) -> bool:
    return claim.metadata.deleting or is_rolled_back(claim)


def _made(node: NodeContext, claim: PersistentVolumeClaim) -> tuple[DriverInfo, str] | None:
    """Return the driver and the handle of a claim's volume, None where the PV of this node is not (yet) seen."""
    volume = node.volumes.get(claim.spec.volume_name)
    found = driver_volume(volume) if volume is not None else None
    driver = node.drivers.get(found[0]) if found is not None else None
    return (driver, found[1]) if driver is not None and found is not None else None


async def _is_unused(node: NodeContext, claim: PersistentVolumeClaim) -> bool:
    """Return whether no pod ever had the volume of a claim, as far as that is known."""
    if (made := _made(node, claim)) is None:
        return False
    driver, handle = made
    return not driver.default_pool or not await node.deletions.keeps_unused(driver, handle, copies=True)


async def _mark(node: NodeContext, claim: PersistentVolumeClaim) -> bool:
    """Begin the rollback of a claim; return False if it changed and must be checked again."""
    meta = claim.metadata
    note = {"metadata": {"annotations": {names.ROLLED_BACK: node.scope.node}}}
    try:
        await node.client.patch(
            CLAIMS, meta.name, note, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
        )
    except ApiNotFoundError:
        return True
    except ApiConflictError as failure:
        log.info("claim not rolled back yet claim=%s reason=%s", claim.key, failure)
        return False
    return True


async def finish_rollback(node: NodeContext, claim: PersistentVolumeClaim) -> None:
    """Delete the volume of a claim that is rolled back, then the claim, or take the annotation off again. Idempotent.

    Raises: ApiError, CsiError, UnavailableError, PreconditionError: it is repeated then.
    """
    now = await read_claim(node, claim)
    if now is None or now.metadata.deleting or not is_rolled_back(now):
        return
    if (made := _made(node, now)) is None:
        raise UnavailableError(f"claim {now.key}: its PersistentVolume of this node is not seen yet")
    driver, handle = made
    denied = "" if _is_allowed(node, now) else "neither its pod nor its class allows it"  # anybody may annotate a claim
    if (
        stays := denied
        or await _use(node, now)
        or await node.deletions.delete_unused(driver, handle, f"claim {now.key} is rolled back", copies=True)
    ):
        log.warning("claim not rolled back claim=%s reason=%s", now.key, stays)
        note = {"metadata": {"annotations": {names.ROLLED_BACK: None}}}
        with suppress(ApiNotFoundError):
            await node.client.patch(CLAIMS, now.metadata.name, note, now.metadata.namespace, uid=now.metadata.uid)
        return
    with suppress(ApiNotFoundError):
        await node.deletions.delete_claim(now, f"node {node.scope.node} cannot serve its pod's other claims")


async def _use(node: NodeContext, claim: PersistentVolumeClaim) -> str:
    """Return which pod has a node and names the claim, "" for none. It may be placed since the rollback began."""
    pods = (await node.client.list(PODS, claim.metadata.namespace)).items
    users = (p.key for p in pods if p.spec.node_name and claim.metadata.name in p.claim_names())
    return next((f"pod {key} has a node and uses it" for key in users), "")
