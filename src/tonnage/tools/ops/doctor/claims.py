"""Checks of claims that wait too long, each with the reason and the next step.

A claim without capacity is a warning: nothing is broken. A claim that waits for a part of the installation is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator

from tonnage.base.aio.clock import time_of
from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.matching import class_name, requested
from tonnage.kubernetes.api.origin import is_populated, reference
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.provisioning.capacity.node_template import published_faults
from tonnage.provisioning.claims.bind import reschedules_of
from tonnage.provisioning.claims.growth import Growth, growth_of, problem_of
from tonnage.scheduler.framework.pod_info import UNSUPPORTED
from tonnage.scheduler.plugins.volume_binding import NO_CLASS
from tonnage.tools.ops.cluster_snapshot import View
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn
from tonnage.tools.ops.doctor.installation import leader

_CHECK = "claims"
PATIENCE = 30.0
"""Seconds that a claim may wait before the check reports it."""


def check(view: View) -> Iterator[Finding]:
    """Each claim of ours that waits, is to be resized, has lost its volume, or is not deleted."""
    if "persistentvolumeclaims" in view.rejected:
        return
    claims = view.our_claims
    found = [finding for claim in claims for finding in _claim(view, claim)]
    yield from found
    if not found:
        bound = sum(claim.status.phase == "Bound" for claim in claims)
        yield ok(_CHECK, "claims", f"{bound} of {len(claims)} are bound, none waits too long")


def _claim(view: View, claim: PersistentVolumeClaim) -> Iterator[Finding]:
    meta = claim.metadata
    if claim.status.phase == "Lost":
        text = f"its PersistentVolume {claim.spec.volume_name} does not exist"
        todo = "on its node: tonnage volumes orphans, then adopt; without its data: delete the claim"
        yield fail(_CHECK, meta.key, text, todo)
    elif meta.deleting:
        if _age(view, meta.deletion_timestamp) > PATIENCE:
            yield _leaving(view, claim)
    elif (growth := growth_of(claim)) is not None:
        yield _growing(claim, growth, problem_of(claim))
    elif not claim.spec.volume_name and _age(view, meta.creation_timestamp) > PATIENCE:
        yield from _waiting(view, claim)


def _leaving(view: View, claim: PersistentVolumeClaim) -> Finding:
    meta = claim.metadata
    users = [p.metadata.name for p in _users(view, claim) if not p.terminated]
    if users:
        text = f"its deletion waits for the end of pods {few(users)}"
        return warn(_CHECK, meta.key, text, f"kubectl -n {meta.namespace} delete pod {' '.join(users)}")
    text = f"its deletion waits for finalizers {few(meta.finalizers) or 'none'}"
    todo = "find the controllers of these finalizers; kubernetes.io/pvc-protection: its pods"
    return warn(_CHECK, meta.key, text, todo)


def _growing(claim: PersistentVolumeClaim, growth: Growth, problem: str) -> Finding:
    text = f"it waits to grow {growth.text}" + (f": {problem}" if problem else "")
    todo = "the message says what to do" if problem else "see its Events, and the log of the agent on its node"
    return warn(_CHECK, claim.key, text, todo)


def _waiting(view: View, claim: PersistentVolumeClaim) -> Iterator[Finding]:
    node = claim.metadata.annotations.get(names.SELECTED_NODE, "")
    storage_class = next(c for c in view.ours if c.metadata.name == class_name(claim))
    source = reference(claim)
    if source is not None and is_populated(claim) and (node or not storage_class.late):
        text = f"a volume populator provides its volume (data source {source.kind}.{source.api_group} {source.name})"
        yield warn(_CHECK, claim.key, text, f"see whether a populator for {source.kind} runs, and its Events")
    elif node:
        yield _sent(view, claim, node)
    elif not storage_class.late:
        if not leader(view):
            text = "its class binds immediately, and there is no leading controller to choose a node"
            yield fail(_CHECK, claim.key, text, "see controller")
        else:
            yield _without_capacity(view, claim, "no node is selected yet")
    elif users := [p for p in _users(view, claim) if not p.terminated]:
        yield _unscheduled(view, claim, users[0])


def _sent(view: View, claim: PersistentVolumeClaim, node: str) -> Finding:
    """A claim with selected-node, whose agent must create the volume."""
    meta = claim.metadata
    if node not in view.node_names and "nodes" not in view.rejected:
        text = f"selected node {node} does not exist"
        todo = f"kubectl -n {meta.namespace} annotate pvc {meta.name} {names.SELECTED_NODE}-"
        return fail(_CHECK, meta.key, text, todo)
    if view.is_down(node):
        return fail(_CHECK, meta.key, f"selected node {node}: its agent is not ready", "see agents")
    if node not in view.serving and "csinodes" not in view.rejected:
        return fail(_CHECK, meta.key, f"selected node {node}: it has no driver", "see registration")
    if meta.labels.get(names.NODE_LABEL, "") != names.label_value(node) and view.scopes() != {"all"}:
        text = f"selected node {node}: the claim lacks its label, so its agent may not see it"
        return fail(_CHECK, meta.key, text, "see node-labels")
    if error := _reported(view, claim):
        return warn(
            _CHECK, meta.key, f"node {node} cannot create its volume: {error}", "correct what the message names"
        )
    if waits := _waits_for(view, claim, node):
        return warn(_CHECK, meta.key, f"it has waited on node {node} for longer than a minute: {waits[0]}", waits[1])
    pod = view.agent_of(node)
    log = f"kubectl -n {view.namespace} logs {pod.metadata.name}" if pod else "its log"
    return fail(_CHECK, meta.key, f"selected node {node}: its agent has emitted no Event for the claim", f"see {log}")


def _waits_for(view: View, claim: PersistentVolumeClaim, node: str) -> tuple[str, str] | None:
    """Reason why a claim with selected-node has no volume, and the next step; None if its group has none."""
    meta = claim.metadata
    there = {c.metadata.name: c for c in view.claims if c.metadata.namespace == meta.namespace}
    for pod in (p for p in _users(view, claim) if not p.spec.node_name and not p.terminated):
        group = [there[name] for name in pod.claim_names() if name in there]
        elsewhere = [
            f"{c.metadata.name} (node {c.metadata.annotations.get(names.SELECTED_NODE) or 'none'})"
            for c in group
            if not c.spec.volume_name and c.metadata.annotations.get(names.SELECTED_NODE) != node
        ]
        if elsewhere:
            text = f"claims {few(elsewhere)} of pod {pod.metadata.name} are missing: a claim group is created together"
            return text, f"kubectl -n {meta.namespace} describe pod {pod.metadata.name}"
        if times := max((reschedules_of(c) for c in group), default=0):
            own = [c for c in view.capacities if c.metadata.labels.get(names.NODE_LABEL) == names.label_value(node)]
            free = next((c.capacity or "0" for c in own if c.storage_class_name == class_name(claim)), "0")
            asks = ", ".join(c.spec.resources.requests.get("storage", "?") for c in group if not c.spec.volume_name)
            text = f"insufficient storage for all volumes of pod {pod.metadata.name} ({asks}; {free} published)"
            return f"{text}; rescheduled {times} times", "ask for less, remove other volumes, or add disks"
    return None


def _unscheduled(view: View, claim: PersistentVolumeClaim, pod: Pod) -> Finding:
    """The scheduler has not chosen."""
    said = [c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"]
    text = said[0].message if said else ""
    if not text:
        why = f"pod {pod.metadata.name} is handled by no scheduler (schedulerName {pod.spec.scheduler_name})"
        if pod.spec.node_name:
            why = f"pod {pod.metadata.name} was assigned to node {pod.spec.node_name} without a scheduler"
            return fail(_CHECK, claim.key, why, "the controller sets selected-node on its claims: see controller")
        return warn(_CHECK, claim.key, why, "start that scheduler, or create the pod with another schedulerName")
    if any(words in text for words in ("free storage", "CSIStorageCapacity", NO_CLASS)):
        return _without_capacity(view, claim, f"pod {pod.metadata.name} fits on no node")
    todo = f"kubectl -n {pod.metadata.namespace} describe pod {pod.metadata.name}: the cause is not its volumes"
    if pod.spec.resource_claims and UNSUPPORTED in text:
        todo = "create the pod with the cluster's own scheduler, which places pods with resource claims"
    return warn(_CHECK, claim.key, f"pod {pod.metadata.name} is not scheduled: {' '.join(text.split())[:300]}", todo)


def _without_capacity(view: View, claim: PersistentVolumeClaim, begin: str) -> Finding:
    """Compare a claim with published capacity."""
    name = class_name(claim)
    objects = [c for c in view.capacities if c.storage_class_name == name and c.node_topology is not None]
    if not objects:
        text = f"{begin}: no node publishes capacity for class {class_name(claim)}"
        return fail(_CHECK, claim.key, text, "see capacity and agents")
    if faults := published_faults(objects):
        return fail(_CHECK, claim.key, f"{begin}: {'; '.join(sorted(faults))}", "see classes")
    try:
        asked = requested(claim)
        capacities = {c.metadata.labels.get(names.NODE_LABEL, c.key): _largest(c.maximum_volume_size, c.capacity)
                 for c in objects}  # fmt: skip
    except InvalidError as failure:
        return fail(_CHECK, claim.key, f"{begin}: {failure}", "see capacity")
    node, free = max(capacities.items(), key=lambda item: item[1])
    text = (
        f"{begin}: it asks for {from_bytes(asked)}, and the largest published capacity is {from_bytes(free)} ({node})"
    )
    if asked <= free:
        text += "; its pod has more volumes, or needs something else that this node lacks"
    return warn(_CHECK, claim.key, text, "ask for less, remove other volumes, or add disks")


def _largest(most: str | None, free: str | None) -> int:
    available = to_bytes(free or "0")
    return min(available, to_bytes(most)) if most is not None else available


def _reported(view: View, claim: PersistentVolumeClaim) -> str:
    """The last warning about the claim."""
    events = [e for e in view.events.get(claim.metadata.uid, ()) if e.type == "Warning"]
    last = max(events, key=lambda e: e.last_timestamp or e.metadata.creation_timestamp or "", default=None)
    return " ".join(last.message.split())[:300] if last is not None else ""


def _users(view: View, claim: PersistentVolumeClaim) -> list[Pod]:
    meta = claim.metadata
    return [p for p in view.pods if p.metadata.namespace == meta.namespace and meta.name in p.claim_names()]


def _age(view: View, since: str | None) -> float:
    began = time_of(since)
    return view.now - began if began is not None else 0.0
