"""Choice of preemption victims on a node, and of the node. Pure.

Source: k/k pkg/scheduler/framework/preemption and plugins/defaultpreemption (SelectVictimsOnNode,
pickOneNodeForPreemption), util.MoreImportantPod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.policy import PodDisruptionBudget
from tonnage.kubernetes.api.selectors import Selector, from_label_selector

_NOT_STARTED = "~"  # later than any time
_OFFSET = 1 << 31


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A node, its victims (most important first), and how many violate a budget."""

    node: str
    victims: tuple[Pod, ...]
    violations: int = 0


class VictimCapacity(Protocol):
    """Interface of a node on which the deletion of pods is simulated."""

    def take(self, pod: Pod) -> None:
        """Simulate the deletion of a pod."""

    def put_back(self, pod: Pod) -> None:
        """Undo the simulated deletion."""

    def fits(self) -> bool:
        """Return whether the preempting pod fits now."""


def priority(pod: Pod) -> int:
    """Return a pod's priority as a number."""
    return pod.spec.priority or 0


def importance(pod: Pod) -> tuple[int, str]:
    """Return a sort key: most important first, then the longest running."""
    return -priority(pod), pod.status.start_time or _NOT_STARTED


def choose(
    node: str, lower: Iterable[Pod], budgets: Sequence[Budget], capacity: VictimCapacity
) -> PreemptionCandidate | None:
    """Return a node's victims, None if the deletion of all does not help.

    All are removed; then as many as possible return: first those whose deletion violates a budget, and of these the
    most important first. So no victim could stay with the others that stay. The node is restored without the victims.
    """
    potential = sorted(lower, key=importance)
    for pod in potential:
        capacity.take(pod)
    if not potential or not capacity.fits():
        return None
    breaking, others = split(potential, budgets)
    spared = {pod.metadata.uid for pod in (*breaking, *others) if _comes_back(pod, capacity)}
    victims = tuple(pod for pod in potential if pod.metadata.uid not in spared)
    if not victims:
        return None
    return PreemptionCandidate(node, victims, sum(pod.metadata.uid not in spared for pod in breaking))


def _comes_back(pod: Pod, capacity: VictimCapacity) -> bool:
    capacity.put_back(pod)
    if capacity.fits():
        return True
    capacity.take(pod)
    return False


@dataclass(frozen=True, slots=True)
class Budget:
    """A compiled PodDisruptionBudget.

    disrupted: names of pods that it has already allowed to evict.
    """

    namespace: str
    selector: Selector
    allowed: int
    disrupted: Collection[str]

    def covers(self, pod: Pod) -> bool:
        """Return whether the pod's deletion would count."""
        meta = pod.metadata
        if meta.namespace != self.namespace or not meta.labels or meta.name in self.disrupted:
            return False
        return self.selector.matches(meta.labels)


def compile_budgets(budgets: Iterable[PodDisruptionBudget]) -> list[Budget]:
    """Compile budgets for choose().

    Those that select nothing, or are invalid, are left out.
    """
    found = []
    for budget in budgets:
        selector = budget.spec.selector
        if selector is None or not (selector.match_labels or selector.match_expressions):
            continue
        try:
            compiled = from_label_selector(selector)
        except InvalidError:
            continue
        status = budget.status
        found.append(Budget(budget.metadata.namespace, compiled, status.disruptions_allowed, status.disrupted_pods))
    return found


def split(pods: Iterable[Pod], budgets: Sequence[Budget]) -> tuple[list[Pod], list[Pod]]:
    """Split pods by whether their deletion, in this order, violates a budget."""
    left = [budget.allowed for budget in budgets]
    breaking, others = list[Pod](), list[Pod]()
    for pod in pods:
        covering = [index for index, budget in enumerate(budgets) if budget.covers(pod)]
        for index in covering:
            left[index] -= 1
        (breaking if any(left[index] < 0 for index in covering) else others).append(pod)
    return breaking, others


def best(candidates: Sequence[PreemptionCandidate]) -> PreemptionCandidate:
    """Return the best candidate; candidates is not empty.

    In this order: fewest violated budgets; least important highest victim; lowest sum of priorities; fewest victims;
    latest start of the most important ones; the first.
    """
    cheapest = min(map(_cost, candidates))
    return max((c for c in candidates if _cost(c) == cheapest), key=_start)


def _cost(candidate: PreemptionCandidate) -> tuple[int, int, int, int]:
    priorities = [priority(pod) for pod in candidate.victims]
    return candidate.violations, max(priorities), sum(p + _OFFSET for p in priorities), len(priorities)


def _start(candidate: PreemptionCandidate) -> str:
    """Return when the first of its most important victims started."""
    top = max(map(priority, candidate.victims))
    return min(importance(pod)[1] for pod in candidate.victims if priority(pod) == top)
