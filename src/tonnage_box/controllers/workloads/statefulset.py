"""StatefulSet controller: numbered pods, each with its own claims (pkg/controller/statefulset).

Watched: StatefulSets, their pods, and deleted claims (a new pod may wait for that, a pending one lacks it). The next
step is computed as a plan without I/O. OrderedReady: a pod is created when all before it are available, and deleted
when all after it are gone. Parallel: all at once. Updates run from the highest number down to the partition.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import ApiAlreadyExistsError, ApiError, PreconditionError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, CONTROLLER_REVISIONS, PODS, STATEFUL_SETS, Kind
from tonnage.kubernetes.api.meta import KubeObject, OwnerReference, to_builtins
from tonnage.kubernetes.api.number import whole
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import ControllerRevision, RollingUpdate, StatefulSet
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import patch_object, write_status
from tonnage_box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage_box.controllers.podcontrol.expectations import Dependents
from tonnage_box.controllers.podcontrol.history import RevisionHistory, revision_of, template_of
from tonnage_box.controllers.podcontrol.pod_control import BURST, PodControl, in_dying_namespace
from tonnage_box.controllers.podcontrol.pod_status import is_available, is_ready, next_available
from tonnage_box.controllers.podcontrol.pod_template import owner_reference, pod_of, scaled
from tonnage_box.controllers.podcontrol.ref_manager import owner_keys
from tonnage_box.controllers.podcontrol.rejected import Replacements

NAME = "statefulset"


DELETE = "Delete"


PARALLEL, ON_DELETE = "Parallel", "OnDelete"


@dataclass(frozen=True)
class StatefulSetPlan:
    """Ordinals of pods to create, each with its revision, pods to delete, and pending pods, which may lack claims."""

    create: Sequence[tuple[int, str]] = ()
    delete: Sequence[Pod] = ()
    pending: Sequence[Pod] = ()


@dataclass(frozen=True)
class SetRevisions:
    """Names of the current and the update revision."""

    current: str
    update: str


def ordinal(set_name: str, pod_name: str) -> int | None:
    """The number of a pod by its name `<set>-<number>`, None for any other name."""
    prefix, _, number = pod_name.rpartition("-")
    found = whole(number) if prefix == set_name else None
    return found if str(found) == number else None


def ordinals(stateful: StatefulSet) -> range:
    """The numbers that it is to have."""
    start = stateful.spec.ordinals.start
    return range(start, start + stateful.spec.replicas)


def numbered(stateful: StatefulSet, pods: Sequence[Pod]) -> dict[int, Pod]:
    """Its pods by number."""
    found = ((ordinal(stateful.metadata.name, pod.metadata.name), pod) for pod in pods)
    return {number: pod for number, pod in found if number is not None}


def condemned(stateful: StatefulSet, pods: Sequence[Pod]) -> list[Pod]:
    """Pods whose numbers are not wanted any more, the highest first."""
    wanted = ordinals(stateful)
    return [pod for number, pod in sorted(numbered(stateful, pods).items(), reverse=True) if number not in wanted]


def plan(stateful: StatefulSet, pods: Sequence[Pod], revisions: SetRevisions, now: float) -> StatefulSetPlan:
    """The next step. Empty: the pods must change by themselves, or all is done."""
    if stateful.metadata.deleting:
        return StatefulSetPlan()
    there = numbered(stateful, pods)
    return _SetView(stateful, there, condemned(stateful, pods), revisions, now).plan()


@dataclass(frozen=True)
class _SetView:
    stateful: StatefulSet
    there: Mapping[int, Pod]
    condemned: Sequence[Pod]
    revisions: SetRevisions
    now: float

    def plan(self) -> StatefulSetPlan:
        in_order = self.stateful.spec.pod_management_policy != PARALLEL
        create, delete, pending = [], [], []
        for number in self.looked_at(in_order=in_order):
            pod = self.there.get(number)
            if self.well(pod):
                continue
            if pod is None:
                create.append((number, self.revision_for(number)))
            elif pod.status.phase == "Pending":
                pending.append(pod)
            elif pod.terminated and not pod.metadata.deleting:  # recreated after its deletion
                delete.append(pod)
            if in_order:
                return StatefulSetPlan(create, delete, pending)
        going, settled = self.shrink(in_order=in_order)
        delete += going
        if settled and not (in_order and going) and self.stateful.spec.update_strategy.type != ON_DELETE:
            delete += [pod for pod in self.outdated() if pod not in delete]
        return StatefulSetPlan(create, delete, pending)

    def looked_at(self, *, in_order: bool) -> Iterable[int]:
        """Wanted numbers, rising. Parallel: those of the pods that are there, and of the first BURST that are not."""
        wanted = ordinals(self.stateful)
        if in_order:  # the caller ends at the first pod that is not well
            return wanted
        absent = (number for number in wanted if number not in self.there)
        return sorted([*(number for number in self.there if number in wanted), *itertools.islice(absent, BURST)])

    def well(self, pod: Pod | None) -> bool:
        """Whether a pod is there, stays, and is available."""
        if pod is None or pod.metadata.deleting or pod.status.phase != "Running":
            return False
        return is_available(pod, self.stateful.spec.min_ready_seconds, self.now)

    def revision_for(self, number: int) -> str:
        """The revision of a pod: below the partition the old one, also for recreated pods."""
        strategy = self.stateful.spec.update_strategy
        held = strategy.type != ON_DELETE and number < self.first_updated()
        return self.revisions.current if held else self.revisions.update

    def first_updated(self) -> int:
        rolling = self.stateful.spec.update_strategy.rolling_update or RollingUpdate()
        return self.stateful.spec.ordinals.start + rolling.partition

    def shrink(self, *, in_order: bool) -> tuple[list[Pod], bool]:
        """Condemned pods to delete now, and whether updates may continue at the same time."""
        if not in_order:
            return [pod for pod in self.condemned if not pod.metadata.deleting], True
        if not self.condemned:
            return [], True
        last = self.condemned[0]
        sick = [pod for pod in self.condemned if not is_ready(pod)]
        if last.metadata.deleting or (sick and last not in sick):
            wait = last.metadata.deleting or sick[-1].metadata.deleting
            return ([] if wait else [sick[-1]]), False
        return [last], False

    def outdated(self) -> list[Pod]:
        """Pods of an old template that may go now: from the highest number down, few at a time."""
        wanted = ordinals(self.stateful)
        most = self.most_missing()
        budget = most - len(wanted) + sum(self.well(pod) for number, pod in self.there.items() if number in wanted)
        turns = range(max(wanted.start, self.first_updated()), wanted.stop)
        chosen: list[Pod] = []
        sick, above = 0, turns.stop
        for number in sorted((number for number in self.there if number in turns), reverse=True):
            pod, well = self.there[number], self.well(self.there[number])
            sick += above - number - 1 + (not well)  # with those between that are not there
            above = number
            if pod.metadata.deleting or revision_of(pod) == self.revisions.update:
                continue
            if not well and sick <= most:  # missing anyway, and its turn
                chosen.append(pod)
            elif well and budget > 0:
                chosen.append(pod)
                budget -= 1
            else:
                break
        return chosen

    def most_missing(self) -> int:
        rolling = self.stateful.spec.update_strategy.rolling_update or RollingUpdate()
        if rolling.max_unavailable is None:
            return 1
        return max(1, scaled(rolling.max_unavailable, self.stateful.spec.replicas, up=True))


def status(
    stateful: StatefulSet, pods: Sequence[Pod], revisions: SetRevisions, now: float, collisions: int | None
) -> dict[str, Any]:
    """The status to write."""
    every = list(numbered(stateful, pods).values())
    ready = [pod for pod in every if pod.status.phase == "Running" and is_ready(pod) and not pod.metadata.deleting]
    staying = [pod for pod in every if not pod.metadata.deleting]
    updated = sum(revision_of(pod) == revisions.update for pod in staying)
    current, held = revisions.current, sum(revision_of(pod) == revisions.current for pod in staying)
    rolls = stateful.spec.update_strategy.type != ON_DELETE
    if rolls and updated == len(ready) == len(every) == stateful.spec.replicas:
        current, held = revisions.update, updated
    return {
        "observedGeneration": stateful.metadata.generation,
        "replicas": len(every),
        "readyReplicas": len(ready),
        "availableReplicas": sum(is_available(pod, stateful.spec.min_ready_seconds, now) for pod in ready),
        "currentReplicas": held,
        "updatedReplicas": updated,
        "currentRevision": current,
        "updateRevision": revisions.update,
        "collisionCount": collisions,
    }


def claim_names(stateful: StatefulSet, pod_name: str) -> dict[str, str]:
    """Template -> claim, for one pod."""
    templates = (t["metadata"]["name"] for t in stateful.spec.volume_claim_templates)
    return {name: f"{name}-{pod_name}" for name in templates}


def claim_of(stateful: StatefulSet, template: dict[str, Any], name: str) -> dict[str, Any]:
    """A claim of the template, to be created. It has the labels that the set selects by."""
    meta = template.get("metadata") or {}
    made: dict[str, Any] = {
        "name": name,
        "labels": {**(meta.get("labels") or {}), **stateful.spec.selector.match_labels},
    }
    if meta.get("annotations"):
        made["annotations"] = dict(meta["annotations"])
    if stateful.spec.persistent_volume_claim_retention_policy.when_deleted == DELETE:
        made["ownerReferences"] = [owner_reference(STATEFUL_SETS, stateful)]
    return {"metadata": made, "spec": copy.deepcopy(template.get("spec") or {})}


def owners(
    stateful: StatefulSet, pod: Pod, refs: Sequence[OwnerReference], *, wanted: bool
) -> list[dict[str, Any]] | None:
    """The owners that a claim of the pod is to have, None when it has them. wanted: the pod's number is.

    A claim that somebody else controls is left alone.
    """
    set_uid, pod_uid = stateful.metadata.uid, pod.metadata.uid
    ours = [ref for ref in refs if ref.uid in (set_uid, pod_uid) or _is_pod(ref, pod.metadata.name)]
    others = [ref for ref in refs if ref not in ours]
    if any(ref.controller for ref in others):
        return None
    policy = stateful.spec.persistent_volume_claim_retention_policy
    want: KubeObject | None = None
    kind: Kind[Any] = STATEFUL_SETS
    if not wanted and policy.when_scaled == DELETE:
        want, kind = pod, PODS
    elif policy.when_deleted == DELETE:
        want = stateful
    if [ref.uid for ref in ours] == ([want.metadata.uid] if want is not None else []):
        return None
    remaining = [to_builtins(ref) for ref in others]
    return remaining if want is None else [*remaining, owner_reference(kind, want)]


def is_stale(claim: PersistentVolumeClaim, pod_name: str) -> bool:
    """Whether the claim belongs to a deleted earlier pod of that name; a new pod must not use it."""
    return claim.metadata.deleting or any(_is_pod(ref, pod_name) for ref in claim.metadata.owner_references)


def _is_pod(ref: OwnerReference, name: str) -> bool:
    return (ref.api_version, ref.kind, ref.name) == ("v1", "Pod", name)


class Claims:
    """Writes the claims of a StatefulSet's pods: `<template>-<pod>`, and their retention policy (KEP-1847).

    A claim's owner references say when the garbage collector deletes it. Owned by the set, it is deleted with the set;
    owned by a pod that is no longer needed, with that pod; without owner it stays.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._events = context.client, context.events
        self._claims = Dependents(context.informers.of(CLAIMS))

    async def ensure(self, stateful: StatefulSet, pod_name: str) -> None:
        """Make the claims that a pod lacks, before it is made.

        Raises: PreconditionError (a claim is still being deleted; that causes the next reconcile) and ApiError.
        """
        for claim in await self._make(stateful, pod_name):
            if is_stale(claim, pod_name):
                raise PreconditionError(f"claim {claim.key} of an earlier pod {pod_name} is being deleted")

    async def complete(self, stateful: StatefulSet, pod: Pod) -> None:
        """Make the claims that a pending pod has lost.

        Raises: PreconditionError (a claim is still being deleted; that causes the next reconcile) and ApiError.
        """
        for claim in await self._make(stateful, pod.metadata.name):
            if claim.metadata.deleting:
                raise PreconditionError(f"claim {claim.key} of the pending pod {pod.metadata.name} is being deleted")

    async def _make(self, stateful: StatefulSet, pod_name: str) -> list[PersistentVolumeClaim]:
        """Make those of a pod's claims that are not there; the others."""
        there = []
        for template in stateful.spec.volume_claim_templates:
            name = f"{template['metadata']['name']}-{pod_name}"
            found = self._claims.get(f"{stateful.metadata.namespace}/{name}")
            if found is None:
                await self._create(stateful, template, name)
            else:
                there.append(found)
        return there

    async def _create(self, stateful: StatefulSet, template: dict[str, Any], name: str) -> None:
        about = refer(STATEFUL_SETS, stateful)
        body = claim_of(stateful, template, name)
        try:
            self._claims.wrote(await self._client.create(CLAIMS, body, stateful.metadata.namespace))
        except ApiAlreadyExistsError:  # made by hand beforehand, or our cache is behind: it is used as it is
            return
        self._events.normal(about, "SuccessfulCreate", f"Created claim: {name}")

    async def set_owners(self, stateful: StatefulSet, pod: Pod, *, wanted: bool) -> None:
        """Set owners of a pod's claims by the retention policy. Idempotent. Raises: ApiError."""
        for name in claim_names(stateful, pod.metadata.name).values():
            claim = self._claims.get(f"{stateful.metadata.namespace}/{name}")
            if claim is None or claim.metadata.deleting:
                continue
            refs = owners(stateful, pod, claim.metadata.owner_references, wanted=wanted)
            if refs is not None:
                patch = {"metadata": {"ownerReferences": refs or None}}
                self._claims.wrote(await patch_object(self._client, CLAIMS, claim, patch))


class StatefulSetController(Reconciler[str]):
    """Creates, updates and deletes the pods of each StatefulSet. Keys are `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._clock = context.client, context.clock
        informers = context.informers
        self._sets = informers.of(STATEFUL_SETS).cache
        self._control = PodControl(context, STATEFUL_SETS, fits=_is_member)
        self._claims = Claims(context)
        self._replacements = Replacements(context.clock)
        self._revisions = RevisionHistory(context, STATEFUL_SETS)
        super().__init__(NAME, backoff=Backoff(initial=0.005, maximum=60.0))
        self.watch(context.informers.of(STATEFUL_SETS), own_key)
        # No revision is made before all that are there are known.
        self.watch(informers.of(CONTROLLER_REVISIONS), lambda old, new: ())
        concerned = owner_keys(STATEFUL_SETS, self._sets, lambda s: s.spec.selector)
        self.watch(informers.of(PODS), concerned)
        self.watch(informers.of(CLAIMS), self._claim_gone)

    async def reconcile(self, key: str) -> float | None:
        """Do the next step, then write the status. Idempotent. Raises: TonnageError."""
        stateful = self._sets.get(key)
        if stateful is None:
            return None
        pods = await self._control.claim(stateful, stateful.spec.selector)
        if stateful.metadata.deleting:
            return None
        update, collisions = await self._revisions.ensure(stateful)
        shown = stateful.status.current_revision
        current = next((r for r in self._revisions.of(stateful) if r.metadata.name == shown), update)
        pair = SetRevisions(current.metadata.name, update.metadata.name)
        waits: Exception | None = None
        later: float | None = None
        try:
            later = await self._do(stateful, pods, {pair.current: current, pair.update: update}, pair)
        except (ApiError, PreconditionError) as failure:
            waits = failure
        pods = self._control.owned(stateful.metadata.uid)
        wanted = status(stateful, pods, pair, self._clock.time(), collisions)
        await write_status(self._client, STATEFUL_SETS, stateful, wanted)
        if isinstance(waits, ApiError) and not in_dying_namespace(waits):
            raise waits
        await self._revisions.trim(stateful, {pair.current, pair.update, *map(revision_of, pods)})
        self._replacements.forget(pods)
        ready = next_available(pods, stateful.spec.min_ready_seconds, self._clock.time())
        return min((seconds for seconds in (later, ready) if seconds is not None), default=None)

    async def _do(
        self,
        stateful: StatefulSet,
        pods: Sequence[Pod],
        revisions: dict[str, ControllerRevision],
        pair: SetRevisions,
    ) -> float | None:
        """Write the next step; seconds until a rejected pod may be replaced."""
        wanted = ordinals(stateful)
        for number, pod in numbered(stateful, pods).items():
            await self._claims.set_owners(stateful, pod, wanted=number in wanted)
        todo = plan(stateful, pods, pair, self._clock.time())
        steps = [partial(self._create, stateful, number, revisions[revision]) for number, revision in todo.create]
        steps += [partial(self._claims.complete, stateful, pod) for pod in todo.pending]
        waiting: PreconditionError | None = None
        for step in steps:
            try:
                await step()
            except PreconditionError as failure:  # its claim has yet to go; the others need not wait
                waiting = failure
        alike = [pod for pod in todo.delete if revision_of(pod) == pair.update]  # so is what would replace them
        due, later = self._replacements.split(alike)
        await self._control.delete_many(stateful, [*due, *(pod for pod in todo.delete if pod not in alike)])
        if waiting is not None:
            raise waiting
        return later

    async def _create(self, stateful: StatefulSet, number: int, revision: ControllerRevision) -> None:
        body = pod_body(stateful, number, revision)
        await self._claims.ensure(stateful, body["metadata"]["name"])
        await self._control.create(stateful, body)

    def _claim_gone(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[str]:
        """A pod may have waited for its predecessor's claim to go, or has lost its own before it ran."""
        if old is None or new is not None:
            return
        for stateful in self._sets:
            meta = stateful.metadata
            if meta.namespace == old.metadata.namespace and any(
                ordinal(prefix, old.metadata.name) is not None for prefix in claim_names(stateful, meta.name).values()
            ):
                yield stateful.key


def _is_member(stateful: KubeObject, pod: Pod) -> bool:
    return ordinal(stateful.metadata.name, pod.metadata.name) is not None


def pod_body(stateful: StatefulSet, number: int, revision: ControllerRevision) -> dict[str, Any]:
    """The pod of a number and revision, to be created: its name, its host name, its claims."""
    name = f"{stateful.metadata.name}-{number}"
    owner = owner_reference(STATEFUL_SETS, stateful)
    body = pod_of(template_of(revision), owner, name=name)
    body["metadata"].setdefault("labels", {}).update(
        {
            names.CONTROLLER_REVISION_HASH: revision.metadata.name,
            names.POD_NAME: name,
            names.POD_INDEX: str(number),
        }
    )
    spec = body["spec"]
    spec["hostname"] = name
    if stateful.spec.service_name:
        spec["subdomain"] = stateful.spec.service_name
    claims = claim_names(stateful, name)
    volumes = [copy.deepcopy(v) for v in spec.get("volumes") or () if v["name"] not in claims]
    volumes += [{"name": v, "persistentVolumeClaim": {"claimName": claim}} for v, claim in claims.items()]
    if volumes:
        spec["volumes"] = volumes
    return body
