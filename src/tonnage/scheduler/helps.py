"""What is told of a pod's priority when it is asked why it is on no node: whether preemption would help, and what room
is held for whom."""

from __future__ import annotations

from collections.abc import Iterable

from tonnage.api.pods import Pod
from tonnage.api.policy import NEVER, PodDisruptionBudget
from tonnage.scheduler.ask import Ask, compile_ask
from tonnage.scheduler.cluster import Cluster
from tonnage.scheduler.cycle import Decision, Refusal
from tonnage.scheduler.nominated import Nominations
from tonnage.scheduler.preemption import HELPED, Preemption
from tonnage.scheduler.victims import priority

_NAMED = 5


def hold_for_others(cluster: Cluster, pod: Pod, pods: Iterable[Pod]) -> list[Pod]:
    """Count the room that is held for other pods, as far as it stands against this one; those pods. Raises Invalid."""
    nominations, found = Nominations(cluster), []
    for other in pods:
        waits = other.status.nominated_node_name and not other.spec.node_name and not other.metadata.deleting
        if waits and other.metadata.uid != pod.metadata.uid and priority(other) >= priority(pod):
            nominations.hold(compile_ask(other), other.status.nominated_node_name, 0.0)
            found.append(other)
    return found


def tell(
    cluster: Cluster,
    ask: Ask,
    outcome: Decision | Refusal,
    *,
    budgets: Iterable[PodDisruptionBudget] = (),
    held: Iterable[Pod] = (),
) -> list[str]:
    """Sentences about a pod without node; nothing when one fits. held: pods that room is held for."""
    said = [f"room is held on {p.status.nominated_node_name} for pod {p.key}" for p in held]
    if node := ask.pod.status.nominated_node_name:
        said.append(f"room is held on {node} for this pod: it goes there once all of it is free")
    elif isinstance(outcome, Refusal) and outcome.causes & HELPED:
        said.append(_preemption(cluster, ask, outcome, list(budgets)))
    return said


def _preemption(cluster: Cluster, ask: Ask, refusal: Refusal, budgets: list[PodDisruptionBudget]) -> str:
    own = priority(ask.pod)
    if not cluster.residents.below(own):
        return f"preemption would not help: no pod on a node has a lower priority than this one ({own})"
    if ask.pod.spec.preemption_policy == NEVER:
        return "preemption is not tried: the pod's preemptionPolicy is Never"
    found = Preemption(cluster, lambda: budgets).find(ask, refusal)
    if found is None:
        return f"preemption would not help: not without all pods of a priority below {own} either"
    keys = [victim.key for victim in found.victims]
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    broken = f" (budgets would be broken by {found.violations} of them)" if found.violations else ""
    return f"preemption helps: {', '.join(keys[:_NAMED])}{more} would have to leave {found.node}{broken}"
