"""Checks of driver registration: CSINode, topology, labels, the start-up taint."""

from __future__ import annotations

from collections.abc import Iterator

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.storage import CSINode
from tonnage.tools.ops.cluster_snapshot import View, is_ready
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn

_CHECK = "registration"


def check(view: View) -> Iterator[Finding]:
    """Check each node that has an agent, or whose kubelet has registered the driver."""
    if {"nodes", "csinodes"} & view.rejected.keys():
        return
    csi = {c.metadata.name: c for c in view.csi_nodes}
    expected = {p.spec.node_name for p in view.agents if p.spec.node_name and not p.metadata.deleting}
    good = []
    for node in view.nodes:
        name = node.metadata.name
        yield from _pools(node, is_served=name in expected | set(view.serving))
        if name not in expected | set(view.serving):
            continue
        found = list(_node(view, node, csi.get(name)))
        yield from found
        if not found:
            good.append(name)
    if good:
        yield ok(_CHECK, few(good), f"the driver is registered with its topology key on {len(good)} nodes")
    elif not expected and not view.serving:
        text = f"no kubelet lists driver {names.DRIVER}"
        yield fail(_CHECK, "nodes", text, "install agents, or find out why they have no pods")


def _node(view: View, node: Node, csi: CSINode | None) -> Iterator[Finding]:
    name = node.metadata.name
    entry = csi.driver(names.DRIVER) if csi is not None else None
    pod = view.agent_of(name)
    restart = f"kubectl -n {view.namespace} delete pod {pod.metadata.name}" if pod else "restart its agent"
    if entry is None:
        if pod is not None and is_ready(pod):
            text = f"the agent runs, but the kubelet does not list {names.DRIVER}: pods with volumes cannot start there"
            todo = f"search the kubelet's log for {names.DRIVER}; is --kubelet its folder? Then {restart}"
        else:
            text, todo = f"the kubelet does not list {names.DRIVER}, as its agent is not ready", "see agents"
        yield fail(_CHECK, name, text, todo)
        return
    if entry.node_id != name:
        text = f"the driver reports node ID {entry.node_id!r}"
        yield fail(_CHECK, name, text, "NODE_NAME of the agent must be the node's name, as the DaemonSet sets it")
    wanted = names.label_value(name)
    label = node.metadata.labels.get(names.TOPOLOGY_NODE)
    if names.TOPOLOGY_NODE not in entry.topology_keys:
        keys = few(entry.topology_keys) or "none"
        yield fail(_CHECK, name, f"topology keys are {keys}, without {names.TOPOLOGY_NODE}", restart)
    elif label != wanted:
        text = f"label {names.TOPOLOGY_NODE} is {label or 'missing'}, must be {wanted}: no capacity counts there"
        yield fail(_CHECK, name, text, f"kubectl label node {name} --overwrite {names.TOPOLOGY_NODE}={wanted}")
    if any(taint.key == names.STARTUP_TAINT for taint in node.spec.taints):
        text = f"taint {names.STARTUP_TAINT} remains, though the driver is registered: no new pods are scheduled there"
        yield fail(_CHECK, name, text, f"see the agent's log; kubectl taint node {name} {names.STARTUP_TAINT}-")
    yield from _volume_limit(view, name, entry.allocatable.count if entry.allocatable else None)


def _pools(node: Node, *, is_served: bool) -> Iterator[Finding]:
    """Report the condition of the node's pools, also one that an agent has left that runs no more."""
    name = node.metadata.name
    found = next((c for c in node.status.conditions if c.type == names.POOL_UNAVAILABLE), None)
    if found is None or found.status != "True":
        return
    if is_served:
        yield fail("pools", name, found.message, "see docs/tasks/replace-disk.md")
    else:
        text = f"it has no agent, and the condition {found.type} of a former one"
        yield warn("pools", name, text, "remove the condition: docs/tasks/uninstall.md")


def _volume_limit(view: View, name: str, most: int | None) -> Iterator[Finding]:
    label = names.label_value(name)
    used = sum(v.metadata.labels.get(names.NODE_LABEL) == label for v in view.our_volumes)
    if most is not None and used >= most:
        text = f"{used} volumes, and its limit is {most}: no more pods with volumes are scheduled there"
        yield warn(_CHECK, name, text, "raise maxVolumes in the node's file, or remove volumes")
