"""Explanation of a pod without a node: causes, shortfalls, advice.

Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.policy import NEVER, PodDisruptionBudget
from tonnage.scheduler.core.conditions import POD_SCHEDULED
from tonnage.scheduler.core.cycle import NO_NODES, Cycle
from tonnage.scheduler.framework.plugin import HELPED, CycleState, Diagnosis, SchedulingDecision, Stop
from tonnage.scheduler.framework.pod_info import Ask, compile_ask
from tonnage.scheduler.framework.storage_objects import StorageObjects
from tonnage.scheduler.plugins.volume_binding import IMMEDIATE, IN_USE
from tonnage.scheduler.preemption.dry_run import Preemption
from tonnage.scheduler.preemption.nominator import Nominations
from tonnage.scheduler.preemption.victims import priority
from tonnage.scheduler.shortfalls import Lack, NodeShortfall, ShortfallSearch

_HELP = {
    IMMEDIATE: "see why its claims have no volumes: `kubectl describe pvc`; a class with volumeBindingMode "
    "WaitForFirstConsumer waits for the pod",
    IN_USE: "delete the pod that uses the claim, or give the claim access mode ReadWriteOnce",
}


class NodeAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Result for one node.

    lacks: what the pod needs and the node lacks. A pod with invalid claims fits no node.
    """

    node: str
    fits: bool
    lacks: list[str]
    claims: list[NodeShortfall]


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Explanation of a pod.

    node: its node, "" for none. everywhere: causes on all nodes. message: text of the box's scheduler. unchecked: what
    was not checked. read: time of the read (RFC 3339). todo: what a person can do. condition: the pod's condition, by
    whichever scheduler handles it. priorities: whether preemption would help, and for whom capacity is reserved.
    """

    namespace: str
    pod: str
    node: str = ""
    everywhere: list[str] = []
    message: str = ""
    condition: str = ""
    unchecked: list[str] = []
    nodes: list[NodeAnswer] = []
    priorities: list[str] = []
    read: str = ""
    todo: str = ""


def explain(
    cycle: Cycle,
    pod: Pod,
    *,
    written: Mapping[str, str],
    scheduler: str = "",
    pods: Iterable[Pod] = (),
    budgets: Iterable[PodDisruptionBudget] = (),
    faults: Sequence[Lack] = (),
) -> Explanation:
    """Check all nodes; the cluster then counts capacity reserved for others.

    written: key of a capacity object -> time of its write. scheduler: the only one there is (a
    box's), which rejects by name what it does not support; "" for any: these causes are not checked. pods: all pods,
    for nominated nodes. budgets: all PodDisruptionBudgets. faults: errors of the pod's claims, for which no node fits.

    Raises: InvalidError for a pod or claim that cannot be read.
    """
    if pod.spec.node_name or pod.terminated:
        return _of_placed(pod)
    ask = compile_ask(pod)
    everywhere = [*faults, *_before_nodes(ask, scheduler)]
    unchecked: list[str] = []
    if ask.unsupported and not scheduler:
        unchecked.append(ask.unsupported.removesuffix(" not supported by this scheduler"))
        ask = replace(ask, unsupported="")
    columns, held = cycle.cluster.columns, hold_for_others(cycle, pod, pods)
    outcome, state = cycle.decide(ask), cycle.pre_filter(replace(ask, unsupported=""))
    keeps = bool(faults)
    if isinstance(state, Stop):
        everywhere.append(Lack(state.message, "" if faults else _about_claims(state, cycle.cluster.objects)))
        state, keeps = CycleState(ask), True
    look = ShortfallSearch(cycle, state, written)
    found = {slot: list(look.lacks(slot)) for slot in columns.live}
    nodes = [
        NodeAnswer(columns.names[slot], not lacks and not keeps, [lack.text for lack in lacks], look.shortfalls(slot))
        for slot, lacks in found.items()
    ]
    return Explanation(
        pod.metadata.namespace,
        pod.metadata.name,
        everywhere=[lack.text for lack in everywhere],
        message=outcome.message if isinstance(outcome, Diagnosis) else "",
        condition=next(
            (c.message for c in pod.status.conditions if c.type == POD_SCHEDULED and c.status == "False"), ""
        ),
        unchecked=unchecked,
        nodes=sorted(nodes, key=lambda answer: answer.node),
        priorities=tell(cycle, ask, outcome, budgets=budgets, held=held),
        todo=_todo(everywhere, nodes, list(found.values()), unchecked),
    )


def _of_placed(pod: Pod) -> Explanation:
    meta, node = pod.metadata, pod.spec.node_name
    where = f"it is on node {node}" if node else f"it is {pod.status.phase}"
    todo = f"nothing: {where}; `kubectl -n {meta.namespace} describe pod {meta.name}` says the rest"
    return Explanation(meta.namespace, meta.name, node, todo=todo)


def _before_nodes(ask: Ask, scheduler: str) -> list[Lack]:
    """Return causes for which the scheduler tests no node."""
    spec, found = ask.pod.spec, list[Lack]()
    if ask.pod.metadata.deleting:
        found.append(Lack("the pod is being deleted", "nothing: it is going away"))
    if spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in spec.scheduling_gates)
        found.append(Lack(f"spec.schedulingGates: {gates}", f"remove the scheduling gates: {gates}"))
    if scheduler and spec.scheduler_name != scheduler:
        todo = f"make the pod anew with schedulerName {scheduler}"
        found.append(Lack(f"there is no scheduler {spec.scheduler_name}", todo))
    if scheduler and ask.unsupported:
        found.append(Lack(ask.unsupported, "make the pod anew without that"))
    return found


def _about_claims(stop: Stop, objects: StorageObjects) -> str:
    if stop.awaited:
        return "wait a moment: the claim is made for the pod"
    if stop.unready and objects.classes.get(stop.unready) is None:
        return f"make the StorageClass {stop.unready}, or name one of `kubectl get storageclasses` in the claim"
    if stop.message.endswith("not found"):
        return "make the claim, or correct its name in the pod"
    return _HELP.get(stop.message, "make the pod anew once its claim is in order: `kubectl describe pvc`")


def _todo(
    everywhere: Sequence[Lack], nodes: Sequence[NodeAnswer], lacks: Sequence[Sequence[Lack]], unchecked: Sequence[str]
) -> str:
    """Return one sentence of advice: for all nodes, else for the nearest node."""
    if everywhere:
        return "; then ".join(lack.todo for lack in everywhere if lack.todo)
    if not nodes:
        return f"add a node: {NO_NODES}"
    if fitting := [answer.node for answer in nodes if answer.fits]:
        if unchecked:
            return f"see {', '.join(unchecked)} of the pod: nothing else keeps it from {fitting[0]}"
        text = f"{fitting[0]} fits" if len(fitting) == 1 else f"{len(fitting)} nodes fit, {fitting[0]} is one"
        return f"wait a moment: {text}; if it stays, `kubectl get events` tells what its scheduler says"
    nearest = min(range(len(nodes)), key=lambda i: (len(lacks[i]), max(lack.missing for lack in lacks[i])))
    return f"nearest is {nodes[nearest].node}: " + "; and ".join(lack.todo for lack in lacks[nearest])


_NAMED = 5


def hold_for_others(cycle: Cycle, pod: Pod, pods: Iterable[Pod]) -> list[Pod]:
    """Count capacity reserved for other pods, as it applies to this pod.

    Returns those pods. Raises: InvalidError.
    """
    nominations, found = Nominations(cycle, set()), []
    for other in pods:
        waits = other.status.nominated_node_name and not other.spec.node_name and not other.metadata.deleting
        if waits and other.metadata.uid != pod.metadata.uid and priority(other) >= priority(pod):
            nominations.hold(compile_ask(other), other.status.nominated_node_name, 0.0)
            found.append(other)
    return found


def tell(
    cycle: Cycle,
    ask: Ask,
    outcome: SchedulingDecision | Diagnosis,
    *,
    budgets: Iterable[PodDisruptionBudget] = (),
    held: Iterable[Pod] = (),
) -> list[str]:
    """Return sentences about a pod without a node; none when one fits.

    held: pods with reserved capacity.
    """
    said = [f"capacity on {p.status.nominated_node_name} is reserved for pod {p.key}" for p in held]
    if node := ask.pod.status.nominated_node_name:
        said.append(f"capacity on {node} is reserved for this pod: it runs there once all of it is free")
    elif isinstance(outcome, Diagnosis) and outcome.causes & HELPED:
        said.append(_preemption(cycle, ask, outcome, list(budgets)))
    return said


def _preemption(cycle: Cycle, ask: Ask, rejection: Diagnosis, budgets: list[PodDisruptionBudget]) -> str:
    own = priority(ask.pod)
    if not cycle.cluster.residents.below(own):
        return f"preemption would not help: no pod on a node has a lower priority than this one ({own})"
    if ask.pod.spec.preemption_policy == NEVER:
        return "preemption is not tried: the pod's preemptionPolicy is Never"
    found = Preemption(cycle, lambda: budgets).find(ask, rejection)
    if found is None:
        return f"preemption would not help: not without all pods of a priority below {own} either"
    keys = [victim.key for victim in found.victims]
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    broken = f" (budgets would be broken by {found.violations} of them)" if found.violations else ""
    return f"preemption helps: {', '.join(keys[:_NAMED])}{more} would have to leave {found.node}{broken}"
