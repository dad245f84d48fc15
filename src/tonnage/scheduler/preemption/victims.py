"""Which pods have to go so that a more important one fits on a node, and which node is the one to choose. Pure.

Source: k/k pkg/scheduler/framework/preemption and plugins/defaultpreemption (SelectVictimsOnNode,
pickOneNodeForPreemption), util.MoreImportantPod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tonnage.api.pods import Pod
from tonnage.api.policy import PodDisruptionBudget
from tonnage.api.selectors import Selector, from_label_selector
from tonnage.errors import Invalid

_NOT_STARTED = "~"  # later than any time
_OFFSET = 1 << 31


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node, the pods that would have to go there (the most important first), and how many of them break a budget."""

    node: str
    victims: tuple[Pod, ...]
    violations: int = 0


class Room(Protocol):
    """A node that pods can be taken from and put back to, to see whether another one fits then."""

    def take(self, pod: Pod) -> None:
        """See it as gone."""

    def put_back(self, pod: Pod) -> None:
        """See it as there again."""

    def fits(self) -> bool:
        """Whether the pod in question fits now."""


def priority(pod: Pod) -> int:
    """Its priority as a number."""
    return pod.spec.priority or 0


def importance(pod: Pod) -> tuple[int, str]:
    """Sorts pods, the most important first: of equal priority those that have run for longer."""
    return -priority(pod), pod.status.start_time or _NOT_STARTED


def choose(node: str, lower: Iterable[Pod], budgets: Sequence[Budget], room: Room) -> Candidate | None:
    """The victims on one node, or None when it does not help that all of them go.

    All go; then as many as possible come back, those first whose budget would be broken, and of these the most
    important first. So no pod is a victim that could stay beside the others that stay. room is left without victims.
    """
    potential = sorted(lower, key=importance)
    for pod in potential:
        room.take(pod)
    if not potential or not room.fits():
        return None
    breaking, others = split(potential, budgets)
    spared = {pod.metadata.uid for pod in (*breaking, *others) if _comes_back(pod, room)}
    victims = tuple(pod for pod in potential if pod.metadata.uid not in spared)
    if not victims:
        return None
    return Candidate(node, victims, sum(pod.metadata.uid not in spared for pod in breaking))


def _comes_back(pod: Pod, room: Room) -> bool:
    room.put_back(pod)
    if room.fits():
        return True
    room.take(pod)
    return False


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget, compiled. disrupted: names of pods that it has let go already."""

    namespace: str
    selector: Selector
    allowed: int
    disrupted: Collection[str]

    def covers(self, pod: Pod) -> bool:
        """Whether the pod's going would be counted."""
        meta = pod.metadata
        if meta.namespace != self.namespace or not meta.labels or meta.name in self.disrupted:
            return False
        return self.selector.matches(meta.labels)


def compile_budgets(budgets: Iterable[PodDisruptionBudget]) -> list[Budget]:
    """Budgets for choose(); those that select nothing, or cannot be read, are left out."""
    found = []
    for budget in budgets:
        selector = budget.spec.selector
        if selector is None or not (selector.match_labels or selector.match_expressions):
            continue
        try:
            compiled = from_label_selector(selector)
        except Invalid:
            continue
        status = budget.status
        found.append(Budget(budget.metadata.namespace, compiled, status.disruptions_allowed, status.disrupted_pods))
    return found


def split(pods: Iterable[Pod], budgets: Sequence[Budget]) -> tuple[list[Pod], list[Pod]]:
    """Pods whose going would break a budget, if all of them went in this order; and the others."""
    left = [budget.allowed for budget in budgets]
    breaking, others = list[Pod](), list[Pod]()
    for pod in pods:
        covering = [index for index, budget in enumerate(budgets) if budget.covers(pod)]
        for index in covering:
            left[index] -= 1
        (breaking if any(left[index] < 0 for index in covering) else others).append(pod)
    return breaking, others


def best(candidates: Sequence[Candidate]) -> Candidate:
    """The node to choose: fewest broken budgets; least important victim at the top; lowest priorities together; fewest
    victims; latest start of the most important ones; the first. candidates is not empty."""
    cheapest = min(map(_cost, candidates))
    return max((c for c in candidates if _cost(c) == cheapest), key=_start)


def _cost(candidate: Candidate) -> tuple[int, int, int, int]:
    priorities = [priority(pod) for pod in candidate.victims]
    return candidate.violations, max(priorities), sum(p + _OFFSET for p in priorities), len(priorities)


def _start(candidate: Candidate) -> str:
    """When the first of its most important victims started."""
    top = max(map(priority, candidate.victims))
    return min(importance(pod)[1] for pod in candidate.victims if priority(pod) == top)
