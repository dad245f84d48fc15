"""VolumeBinding: PreFilter, Filter, Score and Reserve of a pod's volumes.

PreFilter returns what stops the pod on all nodes, Filter the nodes where all volumes fit. PreBind writes. Source: k/k
pkg/scheduler/framework/plugins/volumebinding and nodevolumelimits (docs/reference/kubernetes/scheduler.md). One
difference: capacity is compared for all claims of the pod together, less reservations. A claim with a selected node is
not compared again: its bytes are reserved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tonnage.kubernetes.api import matching, names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.selectors import NodeMatcher
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.provisioning.capacity.pool_fit import allot, fit_together
from tonnage.provisioning.capacity.published import NO_BOUND, PublishedStorage
from tonnage.scheduler.framework.nodes import Columns
from tonnage.scheduler.framework.plugin import (
    NO_VOLUMES,
    Check,
    CycleState,
    NodeFilter,
    PodVolumes,
    Reasons,
    RejectionCause,
    SchedulingDecision,
    Sieve,
    Stop,
    Unbound,
    VolumePlan,
)
from tonnage.scheduler.framework.pod_info import Ask, ClaimUse
from tonnage.scheduler.framework.storage_objects import StaticVolumes, StorageObjects, reach_of
from tonnage.scheduler.plugins.inline_volumes import NO_INLINE, InlineShortfall, shortages
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy, Shares, Take, storage_score

CONFLICT = "node(s) had volume node affinity conflict"
NO_VOLUME = "node(s) didn't find available persistent volumes to bind"
NO_SOURCE = "node(s) did not have the data source of a claim"
NO_STORAGE = "node(s) did not have enough free storage"
NO_CLASS = "node(s) could not make volumes of the StorageClass"
"""Replaces NO_STORAGE where a node publishes an error of the class, or no driver exists."""
VOLUME_GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"
IN_USE = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
_FITS: Reasons = ()


class VolumeBinding:
    """Plugin of a pod's claims and inline volumes. strategy: scoring of nodes that fit."""

    def __init__(
        self,
        objects: StorageObjects,
        columns: Columns,
        published: PublishedStorage,
        static: StaticVolumes,
        strategy: ScoringStrategy = ScoringStrategy.LEAST_ALLOCATED,
    ) -> None:
        self._objects, self._columns = objects, columns
        self._published, self._static = published, static
        self.strategy = strategy

    # PreFilter

    def pre_filter(self, state: CycleState) -> Stop | None:
        """Check the pod's claims. Raises: InvalidError."""
        ask = state.ask
        found = self._sort_out(ask) if ask.claims else NO_VOLUMES
        if isinstance(found, Stop):
            return found
        state.volumes = replace(found, inline=ask.demand.inline) if ask.demand.inline else found
        return None

    def _sort_out(self, ask: Ask) -> PodVolumes | Stop:
        bound: list[PersistentVolumeClaim] = []
        unbound: list[Unbound] = []
        for use in ask.claims:
            claim = self._usable(use, ask.pod)
            if isinstance(claim, Stop):
                return claim
            if matching.is_bound(claim):
                bound.append(claim)
                continue
            storage_class = self._objects.classes.get(matching.class_name(claim))
            if storage_class is None or not matching.is_delayed(claim, storage_class):
                return Stop(IMMEDIATE, unready=matching.class_name(claim))
            unbound.append(self._compile(claim, storage_class))
        if any(self._used_elsewhere(claim) for claim in (*bound, *(u.claim for u in unbound))):
            return Stop(IN_USE, RejectionCause.EXCLUSIVE)
        return self._assemble(bound, sorted(unbound, key=lambda u: (u.size, u.claim.metadata.name)))

    def _usable(self, use: ClaimUse, pod: Pod) -> PersistentVolumeClaim | Stop:
        claim = self._objects.claims.get(use.key)
        if claim is None:
            if use.ephemeral:
                text = f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{use.name}"'
                return Stop(text, awaited=True)
            return Stop(f'persistentvolumeclaim "{use.name}" not found')
        if claim.status.phase == "Lost":
            return Stop(
                f'persistentvolumeclaim "{use.name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
            )
        if claim.metadata.deleting:
            return Stop(f'persistentvolumeclaim "{use.name}" is being deleted')
        if use.ephemeral and claim.metadata.controller_uid() != pod.metadata.uid:
            return Stop(f"PVC {use.key} was not created for pod {pod.key} (pod is not owner)")
        return claim

    def _used_elsewhere(self, claim: PersistentVolumeClaim) -> bool:
        alone = names.READ_WRITE_ONCE_POD in claim.spec.access_modes
        return alone and bool(self._columns.claim_users.get(claim.key))

    def _compile(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> Unbound:
        size = matching.requested(claim)
        selected = claim.metadata.annotations.get(names.SELECTED_NODE) or self._published.node_of(claim.metadata.uid)
        return Unbound(
            claim,
            size,
            storage_class,
            selected,
            searched=not selected and self._static.may_serve(claim),
            provisionable=matching.is_provisionable(storage_class),
            measured=bool(size) and not selected and self._is_measured(storage_class),
            allowed=(lambda labels, node: storage_class.allows(labels)) if storage_class.allowed_topologies else None,
            source=self._source(claim),
        )

    def _is_measured(self, storage_class: StorageClass) -> bool:
        """Return whether published capacity decides where the class's volumes fit.

        A CSIDriver's name has no slash. A provisioner of FlexVolumes may have one: then it counts what is published,
        and where nothing is, another program may be that provisioner.
        """
        driver = self._objects.drivers.get(storage_class.provisioner)
        if driver is not None:
            return driver.spec.storage_capacity
        is_flex = storage_class.provisioner in names.FLEX_PROVISIONERS
        return is_flex and self._published.has_offers(storage_class.metadata.name)

    def _source(self, claim: PersistentVolumeClaim) -> NodeMatcher | None:
        """Return the nodes of a copy's source.

        None while the source is not bound: it may be a claim of the same pod.
        """
        origin = self._objects.origin_of(claim)
        return origin.reach if origin is not None else None

    def _assemble(self, bound: list[PersistentVolumeClaim], unbound: list[Unbound]) -> PodVolumes:
        matchers, missing, used = [], False, []
        for claim in bound:
            volume = self._objects.volumes.get(claim.spec.volume_name)
            if volume is None:
                missing = True
                continue
            if volume.spec.node_affinity is not None:
                matchers.append(reach_of(volume).matches)
            if volume.spec.csi is not None:
                used.append((volume.spec.csi.driver, claim.key))
        used += [(u.storage_class.provisioner, u.claim.key) for u in unbound if u.provisionable]
        simple = all(u.provisionable and not (u.searched or u.selected or u.allowed or u.source) for u in unbound)
        alike = simple and not matchers and not missing
        return PodVolumes(
            tuple(matchers),
            tuple(unbound),
            missing,
            tuple(used),
            tuple((u.storage_class.key, u.size) for u in unbound) if alike else None,
            simple,
            _needs(unbound),
            VolumePlan((), tuple(unbound)),
        )

    # Filter

    def filter(self, state: CycleState) -> list[NodeFilter]:
        """Return a filter that plans the volumes on each node that fits; none if any node does.

        Its reasons may be of cause STORAGE or BINDING.
        """
        volumes = state.volumes
        if not _is_plain(volumes):
            check, sieve = self._check_fully(state), None
        elif volumes.needs:
            check, sieve = self._check_capacity(volumes), self._sieve_capacity(volumes)
        else:
            check, sieve = None, None
        if volumes.inline:
            check, sieve = self._check_inline(volumes, check), None
        if check is None:
            return []
        if sieve is None:
            return [NodeFilter.one_by_one(RejectionCause.STORAGE, check)]
        return [NodeFilter(RejectionCause.STORAGE, check, sieve)]

    def _check_inline(self, volumes: PodVolumes, check: Check | None) -> Check:
        def checked(slot: int) -> Reasons:
            if self.inline_shortages(volumes, slot):
                return (NO_INLINE,)
            return check(slot) if check is not None else _FITS

        return checked

    def inline_shortages(self, volumes: PodVolumes, slot: int) -> list[InlineShortfall]:
        """Return a node's pools that lack capacity for the pod's inline volumes."""
        offers = self._published.on(self._columns.names[slot])
        return shortages(offers, volumes.inline, volumes.needs, self._columns.inline[slot])

    def _check_capacity(self, volumes: PodVolumes) -> Check:
        on, node_names, needs, lacks = self._published.on, self._columns.names, volumes.needs, (NO_STORAGE,)
        return lambda slot: _FITS if fit_together(on(node_names[slot]), needs) else lacks

    def _sieve_capacity(self, volumes: PodVolumes) -> Sieve | None:
        """Return a fast filter for claims of one class, None for others."""
        needs, on, node_names = volumes.needs, self._published.on, self._columns.names
        (storage_class, largest), total = needs[0], sum(size for _, size in needs)
        if any(other != storage_class for other, _ in needs):
            return None

        def sieve(slots: Sequence[int]) -> Sequence[int]:
            found = []
            for slot in slots:
                offers = on(node_names[slot]).get(storage_class, ())
                if len(offers) == 1:  # the usual case, for a hundred nodes for each pod
                    offer = offers[0]
                    taken = offer.outstanding
                    if total <= offer.capacity - taken and (
                        largest <= offer.maximum - taken or largest <= offer.largest
                    ):
                        found.append(slot)
                elif fit_together({storage_class: offers}, needs):
                    found.append(slot)
            return found

        return sieve

    def _check_fully(self, state: CycleState) -> Check:
        def check(slot: int) -> Reasons:
            plan = self._plan_fully(state.volumes, slot)
            if not isinstance(plan, VolumePlan):
                return plan
            state.plans[slot] = plan
            return _FITS

        return check

    def _plan_fully(self, volumes: PodVolumes, slot: int) -> VolumePlan | Reasons:
        labels, node = self._columns.labels[slot], self._columns.names[slot]
        reasons: list[str] = [VOLUME_GONE] if volumes.missing else []
        if not all(matches(labels, node) for matches in volumes.bound):
            reasons.append(CONFLICT)
        plan = self._plan(volumes, slot)
        if isinstance(plan, str):
            reasons.append(plan)
        return plan if isinstance(plan, VolumePlan) and not reasons else tuple(reasons)

    def _plan(self, volumes: PodVolumes, slot: int) -> VolumePlan | str:
        labels, node = self._columns.labels[slot], self._columns.names[slot]
        if any(u.selected not in ("", node) for u in volumes.unbound):
            return NO_VOLUME
        if any(u.source is not None and not u.source(labels, node) for u in volumes.unbound):
            return NO_SOURCE
        found: list[tuple[PersistentVolumeClaim, PersistentVolume]] = []
        chosen: set[str] = set()
        made: list[Unbound] = []
        for unbound in volumes.unbound:
            claim = unbound.claim
            volume = self._static.find(claim, unbound.size, labels, node, chosen) if unbound.searched else None
            if volume is not None:
                found.append((claim, volume))
                chosen.add(volume.metadata.name)
            elif not unbound.provisionable or (unbound.allowed is not None and not unbound.allowed(labels, node)):
                return NO_VOLUME
            else:
                made.append(unbound)
        needs = _needs(made)
        if needs and not fit_together(self._published.on(node), needs):
            return NO_STORAGE
        return VolumePlan(tuple(found), tuple(made))

    # Score

    def storage_scores(self, state: CycleState, slots: Sequence[int], shares: Shares) -> list[float]:
        """Return scores of the strategy, [] if cpu and memory come first or there is nothing to compare."""
        if self.strategy is ScoringStrategy.LEAST_ALLOCATED:
            return []
        found = []
        for slot in slots:
            pools, static = self.takes(state.plan(slot), self._columns.names[slot])
            found.append(storage_score(self.strategy, pools, static, shares(slot)))
        return [one for one in found if one is not None] if None not in found else []

    def takes(self, plan: VolumePlan, node: str) -> tuple[list[Take], list[Take]]:
        """Return what a plan uses on a node: of each pool, and of each existing PV."""
        found = [(matching.requested(claim), matching.capacity(volume)) for claim, volume in plan.found]
        return allot(self._published.on(node), _needs(plan.made)) or [], found

    def most_left(self, state: CycleState) -> Callable[[int], tuple[int, int]] | Callable[[int], int]:
        """Return a function for comparing nodes that are equal otherwise.

        Existing PVs that exceed the requests least, then most free bytes for the pod's classes.
        """
        left = self._left(state.volumes)
        return left if state.volumes.simple else lambda slot: (-state.plan(slot).waste, left(slot))

    def _left(self, volumes: PodVolumes) -> Callable[[int], int]:
        classes = {storage_class for storage_class, _ in volumes.needs}
        if not classes:
            return lambda slot: NO_BOUND
        on, node_names = self._published.on, self._columns.names

        def left(slot: int) -> int:
            offers, least = on(node_names[slot]), NO_BOUND
            for storage_class in classes:
                most = 0
                for offer in offers.get(storage_class, ()):
                    free = offer.capacity - offer.outstanding
                    if free > most:  # max() costs as much as all the rest
                        most = free
                if most < least:
                    least = most
            return least

        return left

    # Reserve

    def reserve(self, decision: SchedulingDecision) -> None:
        """Assume PVs, and reserve capacity for new volumes."""
        for claim, volume in decision.plan.found:
            self._static.assume(volume.metadata.name, claim.metadata.uid)
        for made in decision.plan.made:
            if not made.selected:  # else reserved when its node was selected
                self._published.reserve(made.claim.metadata.uid, decision.node, made.storage_class.key, made.size)

    def unreserve(self, decision: SchedulingDecision) -> None:
        """Release the PVs and the capacity.

        Claims whose node is selected stay reserved until they are rescheduled.
        """
        self.post_bind(decision)
        for made in decision.plan.made:
            uid = made.claim.metadata.uid
            if not made.selected and self._published.version_of(uid) is None:
                self._published.drop(uid)

    def post_bind(self, decision: SchedulingDecision) -> None:
        """Forget assumed PVs: they are written as the claims'."""
        for claim, volume in decision.plan.found:
            self._static.release(volume.metadata.name, claim.metadata.uid)


def _is_plain(volumes: PodVolumes) -> bool:
    """Return whether all volumes are to be provisioned, on any node with capacity."""
    return volumes.simple and not volumes.bound and not volumes.missing


def _needs(unbound: Iterable[Unbound]) -> tuple[tuple[str, int], ...]:
    measured = [(u.storage_class.key, u.size) for u in unbound if u.measured]
    return tuple(sorted(measured, key=lambda need: -need[1]))
