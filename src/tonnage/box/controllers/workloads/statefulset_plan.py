"""StatefulSet plan: pods to create or delete next (pkg/controller/statefulset/stateful_set_control.go).

Pure. OrderedReady: a pod is created when all before it are available, and deleted when all after it are gone. Parallel:
all at once. Updates run from the highest number down to the partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage.api.number import whole
from tonnage.api.pods import Pod
from tonnage.api.workloads import RollingUpdate, StatefulSet
from tonnage.box.controllers.podcontrol.history import revision_of
from tonnage.box.controllers.podcontrol.pod_status import is_available, is_ready
from tonnage.box.controllers.podcontrol.pod_template import scaled

PARALLEL, ON_DELETE = "Parallel", "OnDelete"


@dataclass(frozen=True)
class StatefulSetPlan:
    """Ordinals of pods to create, each with its revision, and pods to delete."""

    create: Sequence[tuple[int, str]] = ()
    delete: Sequence[Pod] = ()


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
        create, delete = [], []
        for number in ordinals(self.stateful):
            pod = self.there.get(number)
            if self.well(pod):
                continue
            if pod is None:
                create.append((number, self.revision_for(number)))
            elif pod.terminated and not pod.metadata.deleting:  # recreated after its deletion
                delete.append(pod)
            if in_order:
                return StatefulSetPlan(create, delete)
        going, settled = self.shrink(in_order=in_order)
        delete += going
        if settled and not (in_order and going) and self.stateful.spec.update_strategy.type != ON_DELETE:
            delete += [pod for pod in self.outdated() if pod not in delete]
        return StatefulSetPlan(create, delete)

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
        budget = most - sum(not self.well(self.there.get(number)) for number in wanted)
        chosen: list[Pod] = []
        sick = 0
        for number in reversed(range(max(wanted.start, self.first_updated()), wanted.stop)):
            pod, well = self.there.get(number), self.well(self.there.get(number))
            sick += not well
            if pod is None or pod.metadata.deleting or revision_of(pod) == self.revisions.update:
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
