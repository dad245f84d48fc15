"""Why a pod is on no node: what stands against it everywhere, what each node lacks, and what to do. Sans-I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from tonnage.api.pods import Pod
from tonnage.api.policy import PodDisruptionBudget
from tonnage.scheduler.ask import Ask, compile_ask
from tonnage.scheduler.cluster import Cluster
from tonnage.scheduler.cycle import NO_NODES, Refusal
from tonnage.scheduler.helps import hold_for_others, tell
from tonnage.scheduler.lacks import Lack, Look, Room
from tonnage.scheduler.status import POD_SCHEDULED
from tonnage.scheduler.volumes import IMMEDIATE, IN_USE, NO_VOLUMES, Stop

_HELP = {
    IMMEDIATE: "see why its claims have no volumes: `kubectl describe pvc`; a class with volumeBindingMode "
    "WaitForFirstConsumer waits for the pod",
    IN_USE: "delete the pod that uses the claim, or give the claim access mode ReadWriteOnce",
}


class NodeAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What one node says of the pod. lacks: what the node lacks. A pod whose claims are at fault fits nowhere."""

    node: str
    fits: bool
    lacks: list[str]
    claims: list[Room]


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """node: where the pod is, "" for nowhere. everywhere: what stands against it on any node. message: what the
    scheduler of the box tells of it. unchecked: what was not looked at. read: when that was (RFC 3339). todo: what a
    person can do. told: what the pod's condition says, written by whichever scheduler looks after it. priorities:
    whether preemption would help, and for whom room is held."""

    namespace: str
    pod: str
    node: str = ""
    everywhere: list[str] = []
    message: str = ""
    told: str = ""
    unchecked: list[str] = []
    nodes: list[NodeAnswer] = []
    priorities: list[str] = []
    read: str = ""
    todo: str = ""


def explain(
    cluster: Cluster,
    pod: Pod,
    *,
    written: Mapping[str, str],
    scheduler: str = "",
    read: str = "",
    pods: Iterable[Pod] = (),
    budgets: Iterable[PodDisruptionBudget] = (),
    faults: Sequence[Lack] = (),
) -> Explanation:
    """Look at all nodes; afterwards the cluster counts the room that is held for others.

    written: key of a capacity object -> when it was written. read: when all was read. scheduler: the only one there is
    (that of a box), which refuses by name what it does not support; "" for any: these things are not looked at. pods:
    all there are, for room that is held for some. budgets: all. faults: what is wrong with the pod's claims, so that it
    fits on no node whatever that has. Raises Invalid for a pod or claim that cannot be read.
    """
    meta = pod.metadata
    if pod.spec.node_name or pod.terminated:
        where = f"it is on node {pod.spec.node_name}" if pod.spec.node_name else f"it is {pod.status.phase}"
        todo = f"nothing: {where}; `kubectl -n {meta.namespace} describe pod {meta.name}` says the rest"
        return Explanation(meta.namespace, meta.name, pod.spec.node_name, read=read, todo=todo)
    ask = compile_ask(pod)
    everywhere = [*faults, *_before_nodes(ask, scheduler)]
    unchecked: list[str] = []
    if ask.unsupported and not scheduler:
        unchecked.append(ask.unsupported.removesuffix(" not supported by this scheduler"))
        ask = replace(ask, unsupported="")
    held = hold_for_others(cluster, pod, pods)
    outcome, volumes = cluster.cycle.decide(ask), cluster.volumes.sort_out(ask)
    keeps = bool(faults)
    if isinstance(volumes, Stop):
        everywhere.append(Lack(volumes.message, "" if faults else _about_claims(volumes, cluster)))
        volumes, keeps = NO_VOLUMES, True
    look = Look(cluster, ask, volumes, written)
    found = {slot: list(look.lacks(slot)) for slot in cluster.columns.live}
    nodes = [
        NodeAnswer(
            cluster.columns.names[slot], not lacks and not keeps, [lack.text for lack in lacks], look.rooms(slot)
        )
        for slot, lacks in found.items()
    ]
    return Explanation(
        meta.namespace,
        meta.name,
        everywhere=[lack.text for lack in everywhere],
        message=outcome.message if isinstance(outcome, Refusal) else "",
        told=next((c.message for c in pod.status.conditions if c.type == POD_SCHEDULED and c.status == "False"), ""),
        unchecked=unchecked,
        nodes=sorted(nodes, key=lambda answer: answer.node),
        priorities=tell(cluster, ask, outcome, budgets=budgets, held=held),
        read=read,
        todo=_todo(everywhere, nodes, list(found.values()), unchecked),
    )


def _before_nodes(ask: Ask, scheduler: str) -> list[Lack]:
    """What keeps the pod from being looked at."""
    spec, found = ask.pod.spec, list[Lack]()
    if ask.pod.metadata.deleting:
        found.append(Lack("the pod is being deleted", "nothing: it is going away"))
    if spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in spec.scheduling_gates)
        found.append(Lack(f"spec.schedulingGates: {gates}", f"whoever set the gates has to take them away: {gates}"))
    if scheduler and spec.scheduler_name != scheduler:
        todo = f"make the pod anew with schedulerName {scheduler}"
        found.append(Lack(f"there is no scheduler {spec.scheduler_name}", todo))
    if scheduler and ask.unsupported:
        found.append(Lack(ask.unsupported, "make the pod anew without that"))
    return found


def _about_claims(stop: Stop, cluster: Cluster) -> str:
    if stop.awaited:
        return "wait a moment: the claim is made for the pod"
    if stop.unready and cluster.objects.classes.get(stop.unready) is None:
        return f"make the StorageClass {stop.unready}, or name one of `kubectl get storageclasses` in the claim"
    if stop.message.endswith("not found"):
        return "make the claim, or correct its name in the pod"
    return _HELP.get(stop.message, "make the pod anew once its claim is in order: `kubectl describe pvc`")


def _todo(
    everywhere: Sequence[Lack], nodes: Sequence[NodeAnswer], lacks: Sequence[Sequence[Lack]], unchecked: Sequence[str]
) -> str:
    """The one line: what stands everywhere, else what the nearest node lacks."""
    if everywhere:
        return "; then ".join(lack.todo for lack in everywhere if lack.todo)
    if not nodes:
        return f"add a node: {NO_NODES}"
    if fitting := [answer.node for answer in nodes if answer.fits]:
        if unchecked:
            return f"see {', '.join(unchecked)} of the pod: nothing else keeps it from {fitting[0]}"
        told = f"{fitting[0]} fits" if len(fitting) == 1 else f"{len(fitting)} nodes fit, {fitting[0]} is one"
        return f"wait a moment: {told}; if it stays, `kubectl get events` tells what its scheduler says"
    nearest = min(range(len(nodes)), key=lambda i: (len(lacks[i]), max(lack.missing for lack in lacks[i])))
    return f"nearest is {nodes[nearest].node}: " + "; and ".join(lack.todo for lack in lacks[nearest])
