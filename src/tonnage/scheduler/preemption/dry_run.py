"""Preemption dry run: where a pod would fit without less important pods.

Sans-I/O; it never blocks. The scheduler's own filters test a node without some of its pods: their requests, ports,
limits, ReadWriteOncePod claims, and the capacity that their ephemeral volumes free. Source: k/k
plugins/defaultpreemption; the search ends when a tenth of the nodes, and at least 100, are candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import matching, names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.pods import CSIVolumeSource, Pod
from tonnage.kubernetes.api.policy import NEVER, PodDisruptionBudget
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.provisioning.capacity.published import NO_BOUND, Offers, PublishedCapacity
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.framework.nodes import Placement
from tonnage.scheduler.framework.plugin import HELPED, Diagnosis
from tonnage.scheduler.framework.pod_info import AffinityTerms, Ask, claim_uses, inline_uses
from tonnage.scheduler.framework.storage_objects import StorageObjects
from tonnage.scheduler.preemption.victims import Budget, PreemptionCandidate, best, choose, compile_budgets, priority

_ENOUGH, _SHARE = 100, 0.1
_MOST_LOOKED = 500
"""Maximum nodes with less important pods in one search; the next continues with others."""
Freed = Counter[tuple[str, bool]]
"""Freed bytes, by pool and whether they are of inline volumes; inline capacity is not free for claims."""


class Preemption:
    """Finds victims. budgets: all PodDisruptionBudgets."""

    def __init__(self, cycle: Cycle, budgets: Callable[[], Iterable[PodDisruptionBudget]] = lambda: ()) -> None:
        self._cycle, self._cluster, self._budgets = cycle, cycle.cluster, budgets
        self._start = 0
        self._infeasible: tuple[Diagnosis, int, int] | None = None

    def may(self, pod: Pod) -> bool:
        """Return whether the pod may preempt, and there are less important pods."""
        return pod.spec.preemption_policy != NEVER and self._cluster.residents.below(priority(pod))

    def find(self, ask: Ask, rejection: Diagnosis) -> PreemptionCandidate | None:
        """Return the best candidate for a rejected pod, None where nothing helps.

        Changes nothing.
        """
        if not self.may(ask.pod) or not rejection.causes & HELPED or self._is_infeasible(ask, rejection):
            return None
        found, all_looked = self._search(ask)
        if not found and all_looked:
            self._infeasible = rejection, priority(ask.pod), self._cluster.residents.generation
        return best(found) if found else None

    def _is_infeasible(self, ask: Ask, rejection: Diagnosis) -> bool:
        """Return whether an equal pod got no candidate and nothing changed since.

        The cycle caches rejections.
        """
        if self._infeasible is None:
            return False
        before, least, generation = self._infeasible
        same = before is rejection and generation == self._cluster.residents.generation
        return same and priority(ask.pod) <= least

    def _search(self, ask: Ask) -> tuple[list[PreemptionCandidate], bool]:
        """Return candidates, and whether all nodes were tested."""
        budgets = compile_budgets(self._budgets())
        columns, lower = self._cluster.columns, 0
        live = columns.live
        enough = max(_ENOUGH, int(len(live) * _SHARE))
        found: list[PreemptionCandidate] = []
        start = self._start % len(live)
        for index in range(len(live)):
            node = columns.names[live[(start + index) % len(live)]]
            if not any(priority(pod) < priority(ask.pod) for pod in self._cluster.residents.on(node)):
                continue
            lower += 1
            if (candidate := self.on(node, ask, budgets)) is not None:
                found.append(candidate)
            if len(found) >= enough or lower >= _MOST_LOOKED:
                self._start = start + index + 1
                return found, False
        return found, True

    def on(self, node: str, ask: Ask, budgets: Sequence[Budget] = ()) -> PreemptionCandidate | None:
        """Return the victims on one node.

        None if the deletion of all less important pods does not help.
        """
        lower = [pod for pod in self._cluster.residents.on(node) if priority(pod) < priority(ask.pod)]
        if not lower:
            return None
        with Supposed(self._cycle, node, ask) as supposed:
            return choose(node, lower, budgets, supposed)


class Supposed:
    """A node without some of its pods, until the end of the context; the caller must not await meanwhile."""

    def __init__(self, cycle: Cycle, node: str, ask: Ask) -> None:
        self._cycle, self._cluster, self._node, self._ask = cycle, cycle.cluster, node, ask
        self._slot = self._cluster.columns.slots[node]
        self._offers = self._cluster.published.on(node)
        self._gone: dict[str, tuple[Placement, Freed, AffinityTerms | None]] = {}
        self._freed: Freed = Counter()

    def __enter__(self) -> Supposed:
        return self

    def __exit__(self, *_: object) -> None:
        for uid in list(self._gone):
            self._restore(uid)
        self._cluster.published.suppose(self._node, self._offers)

    def take(self, pod: Pod) -> None:
        """Simulate the deletion of a pod."""
        uid, columns = pod.metadata.uid, self._cluster.columns
        placement = columns.placed.get(uid)
        if placement is None:
            return
        freed = given_back(pod, self._offers, self._cluster.objects)
        self._gone[uid] = placement, freed, self._cluster.topology_pairs.lift(uid)
        columns.lift(uid)
        self._free(freed, 1)

    def put_back(self, pod: Pod) -> None:
        """Undo the simulated deletion of a pod."""
        self._restore(pod.metadata.uid)

    def _restore(self, uid: str) -> None:
        found = self._gone.pop(uid, None)
        if found is not None:
            placement, freed, terms = found
            self._cluster.columns.place(uid, self._node, placement.demand, placement.volumes, placement.claims)
            if terms is not None:
                alive = not self._cluster.residents.is_going(uid)
                self._cluster.topology_pairs.place(uid, self._slot, terms, alive=alive)
            self._free(freed, -1)

    def _free(self, freed: Freed, sign: int) -> None:
        for pool, size in freed.items():
            self._freed[pool] += sign * size
        self._cluster.published.suppose(self._node, relieved(self._offers, self._freed))

    def fits(self) -> bool:
        """Return whether the pod fits now."""
        return self._cycle.fits_on(self._ask, self._slot)


def relieved(offers: Offers, freed: Freed) -> Offers:
    """Return offers with freed bytes added."""
    if not any(freed.values()):
        return offers
    return {name: tuple(_relieved(offer, freed) for offer in some) for name, some in offers.items()}


def _relieved(offer: PublishedCapacity, freed: Freed) -> PublishedCapacity:
    """Return an offer with freed bytes.

    The maximum volume size grows only if it equals the free bytes: otherwise it is a rule, or the pool is in pieces.
    """
    pool_key = offer.pool or offer.storage_class
    claims, inline = freed[pool_key, False], freed[pool_key, True]
    if offer.inline is not None:  # inline capacity gets its own bytes again
        offer = replace(offer, inline=offer.inline + claims + inline)
        inline = 0
    more = claims + inline
    if not more or offer.capacity >= NO_BOUND:
        return offer
    maximum = offer.maximum + more if offer.maximum >= offer.capacity else offer.maximum
    return replace(offer, capacity=offer.capacity + more, maximum=maximum)


PoolKey = str
"""A pool's label, or the class if a node's capacity objects have no such label."""
_DELETE = "Delete"


def given_back(pod: Pod, offers: Offers, objects: StorageObjects) -> Freed:
    """Return the storage that is freed when the pod goes.

    That of its ephemeral claims with reclaim policy Delete, and of its inline volumes once it has started; published
    capacity does not include these before. A volume whose pool is not known frees nothing.
    """
    freed: Freed = Counter()
    for claim in own_claims(pod, objects):
        size, storage_class = _takes(claim, objects)
        if size and (pool_key := _pool_key(offers, storage_class)):
            freed[pool_key, False] += size
    for volume in pod.spec.volumes if not inline_uses(pod) else ():
        if volume.csi is not None:
            freed += _inline(volume.csi, offers)
    return freed


def own_claims(pod: Pod, objects: StorageObjects) -> Iterator[PersistentVolumeClaim]:
    """Return the ephemeral claims of the pod."""
    for use in claim_uses(pod):
        claim = objects.claims.get(use.key)
        if claim is not None and use.ephemeral and claim.metadata.controller_uid() == pod.metadata.uid:
            yield claim


def _takes(claim: PersistentVolumeClaim, objects: StorageObjects) -> tuple[int, str]:
    """Return bytes that the claim frees, and its class; 0 for a volume that stays."""
    name = matching.class_name(claim)
    volume = objects.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
    storage_class = objects.classes.get(name)
    if volume is not None:
        policy = volume.spec.persistent_volume_reclaim_policy
    else:
        policy = storage_class.reclaim_policy if storage_class is not None else ""
    if policy != _DELETE:
        return 0, name
    return (matching.capacity(volume) if volume is not None else matching.requested(claim)), name


def _pool_key(offers: Offers, storage_class: str) -> PoolKey:
    """Return the pool of a class's volumes, "" for none or several."""
    pool_keys = {offer.pool or offer.storage_class for offer in offers.get(storage_class, ())}
    return pool_keys.pop() if len(pool_keys) == 1 else ""


def _inline(source: CSIVolumeSource, offers: Offers) -> Freed:
    """Return what an inline volume of ours uses.

    Of the pool that it names, else the default or the only one.
    """
    driver = names.pool_driver(source.driver)
    ours = [offer for some in offers.values() for offer in some if offer.driver == driver and offer.pool]
    pools = {offer.pool for offer in ours}
    pool = source.volume_attributes.get("pool", "")
    if not pool and not source.volume_attributes.get("kind"):
        default = {offer.pool for offer in ours if offer.is_default} or pools
        pool = next(iter(default)) if len(default) == 1 else ""
    try:
        size = to_bytes(source.volume_attributes.get("size", "0"))
    except InvalidError:
        return Counter()
    return Counter({(pool, True): size} if pool in pools else {})
