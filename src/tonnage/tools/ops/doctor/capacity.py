"""Checks of capacity objects: one for each node and class, as its agent writes it, or one for a tier.

The scheduler trusts all of them, also foreign ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.provisioning.capacity import tier
from tonnage.provisioning.capacity.object import managed_by, object_name
from tonnage.tools.ops.cluster_snapshot import Published, View
from tonnage.tools.ops.doctor.finding import Finding, fail, few, ok, warn

_CHECK, _TIERS = "capacity", "tiers"
_NUMBERS = ("capacity", "maximumVolumeSize")
_WRITER = "tonnage"
"""How agents begin to call themselves."""


def check(view: View) -> Iterator[Finding]:
    """Missing, foreign and changed objects; full nodes."""
    if {"csistoragecapacities", "csinodes", "nodes"} & view.rejected.keys():
        return
    nodes = {n.metadata.name: n for n in view.nodes}
    wanted = {
        object_name(names.DRIVER, c.metadata.name, name): (nodes[name], c)
        for name in view.serving
        if name in nodes
        for c in view.ours
        if c.allows({names.TOPOLOGY_NODE: names.label_value(name)})
    }
    there = {c.metadata.name for c in view.capacities if _is_managed(view, c)}  # objects that stand for tiers
    tiered = {key for key, (node, c) in wanted.items() if _is_in(node, c.metadata.name, there)}
    here = {c.metadata.name: c for c in view.capacities if c.metadata.namespace == view.namespace}
    faults = [*_imagined(view), *_strange(view, set(wanted)), *_missing(view, wanted, here.keys() | tiered)]
    for name, (node, storage_class) in wanted.items():
        if name in here:
            faults += _object(view, here[name], node, storage_class)
    yield from faults
    yield from _full(wanted, here)
    if wanted and not faults:
        own = [node.metadata.name for key, (node, _) in wanted.items() if key in here]
        yield ok(_CHECK, "objects", f"{len(own)} objects on {len(set(own))} nodes are as their agents write them")


def _imagined(view: View) -> Iterator[Finding]:
    """Real nodes that have the label of those which the cluster autoscaler imagines."""
    for node in view.nodes:
        if names.TEMPLATE_NODE in node.metadata.labels:
            name = node.metadata.name
            text = f"its label {names.TEMPLATE_NODE} is for template nodes: the scheduler may exceed its capacity"
            yield fail(_CHECK, name, text, f"kubectl label node {name} {names.TEMPLATE_NODE}-")


def _missing(view: View, wanted: dict[str, tuple[Node, StorageClass]], here: Set[str]) -> Iterator[Finding]:
    lacking: dict[str, list[str]] = {}
    for name in wanted.keys() - here:
        node, storage_class = wanted[name]
        lacking.setdefault(node.metadata.name, []).append(storage_class.metadata.name)
    for node_name, classes in sorted(lacking.items()):
        why = "its agent is down" if view.is_down(node_name) else "its agent publishes none"
        text = (
            f"no capacity is published for {few(sorted(classes))} ({why}): no pod with such volumes is scheduled there"
        )
        yield fail(_CHECK, node_name, text, f"see agents and access; {_log(view, node_name)}")


def _strange(view: View, wanted: set[str]) -> Iterator[Finding]:
    """Objects for our classes that no agent of this installation writes: the scheduler counts them as well."""
    ours = {c.metadata.name for c in view.ours}
    for found in view.capacities:
        meta = found.metadata
        if found.storage_class_name not in ours or (meta.namespace == view.namespace and meta.name in wanted):
            continue
        if _is_managed(view, found):
            continue
        text = f"no agent of namespace {view.namespace} writes it, for class {found.storage_class_name}: "
        text += "pods may be scheduled where no volume can be created"
        yield fail(_CHECK, found.key, text, f"kubectl -n {meta.namespace} delete csistoragecapacity {meta.name}")


def _object(view: View, found: Published, node: Node, storage_class: StorageClass) -> Iterator[Finding]:
    wrong = list(_differences(found, node, storage_class))
    if strangers := [w for w in found.writers(*_NUMBERS) if not w.startswith(_WRITER)]:
        wrong.append(f"its numbers were written by {few(strangers)}, not by the agent")
    if not wrong:
        return
    name = node.metadata.name
    text = f"class {storage_class.metadata.name} on {name}: {'; '.join(wrong)}"
    todo = (
        f"kubectl -n {found.metadata.namespace} delete csistoragecapacity {found.metadata.name}: the agent creates it"
    )
    down = ", once it runs: it is down" if view.is_down(name) else " anew"
    yield fail(_CHECK, found.key, text, f"{todo}{down}")


def _differences(found: Published, node: Node, storage_class: StorageClass) -> Iterator[str]:
    meta, name = found.metadata, node.metadata.name
    value = names.label_value(name)
    if found.storage_class_name != storage_class.metadata.name:
        yield f"it is for class {found.storage_class_name}"
    labels = found.node_topology.match_labels if found.node_topology else {}
    if labels != {names.TOPOLOGY_NODE: value} or (found.node_topology and found.node_topology.match_expressions):
        yield f"it counts for nodes with {labels or 'no label'} instead of {names.TOPOLOGY_NODE}={value}"
    for label, right in (
        (names.CAPACITY_DRIVER, names.DRIVER),
        (names.CAPACITY_MANAGED_BY, managed_by(name)),
        (names.NODE_LABEL, value),
    ):
        if meta.labels.get(label) != right:
            yield f"label {label} is {meta.labels.get(label) or 'missing'}"
    if not any(o.kind == "Node" and o.uid == node.metadata.uid for o in meta.owner_references):
        yield "it has no owner reference to its Node, so it would outlive the Node"
    try:
        amount = to_bytes(found.capacity or "0")
    except InvalidError as failure:
        yield str(failure)
        return
    if amount > 0 and meta.annotations.get(names.REASON):
        yield f"it has capacity, and a reason why the class is not served: {meta.annotations[names.REASON]}"


def _full(wanted: dict[str, tuple[Node, StorageClass]], here: dict[str, Published]) -> Iterator[Finding]:
    full: dict[str, list[str]] = {}
    for name, (node, storage_class) in wanted.items():
        found = here.get(name)
        if found is not None and found.capacity in (None, "0") and not found.metadata.annotations.get(names.REASON):
            full.setdefault(storage_class.metadata.name, []).append(node.metadata.name)
    for class_name, nodes in sorted(full.items()):
        text = f"class {class_name}: no capacity left on {few(sorted(nodes))}"
        yield warn(_CHECK, class_name, text, "remove volumes (tonnage volumes list on the node), or add disks")


def _log(view: View, node: str) -> str:
    pod = view.agent_of(node)
    return f"kubectl -n {view.namespace} logs {pod.metadata.name}" if pod else "see its agent's log"


def _is_managed(view: View, found: Published) -> bool:
    """Whether this installation's controller keeps the object, for a tier or as a class's notice."""
    value = found.metadata.labels.get(names.TIER, "")
    here = found.metadata.namespace == view.namespace
    return here and bool(value) and found.metadata.name == tier.object_name(found.storage_class_name, value)


def _is_in(node: Node, storage_class: str, there: Set[str]) -> bool:
    """Whether the object of a node's tier publishes capacity for a class. there: the tiers' objects."""
    value = node.metadata.labels.get(names.tier_label(storage_class), "")
    return bool(tier.of_label(value)) and tier.object_name(storage_class, value) in there


def check_tiers(view: View) -> Iterator[Finding]:
    """Tier labels of nodes without a driver, and objects whose capacity is not that of their tier."""
    if {"csistoragecapacities", "csinodes", "nodes"} & view.rejected.keys():
        return
    yield from _labels(view)
    managed = [c for c in view.capacities if _is_managed(view, c)]
    faults = list(_tier_objects(managed))
    yield from faults
    if managed and not faults:
        yield ok(_TIERS, "objects", _summary(view))


def _labels(view: View) -> Iterator[Finding]:
    serving = set(view.serving)
    for node in view.nodes:
        keys = sorted(tier.labels_of(node.metadata.labels))
        if keys and node.metadata.name not in serving:
            name = node.metadata.name
            text = f"it has tier labels ({few(keys)}), and no driver runs there: pods may be scheduled there"
            todo = f"start its agent, or `kubectl label node {name} {' '.join(f'{key}-' for key in keys)}`"
            yield warn(_TIERS, name, text, todo)


def _tier_objects(managed: list[Published]) -> Iterator[Finding]:
    for found in managed:
        value = found.metadata.labels[names.TIER]
        published = [found.capacity or "0", found.maximum_volume_size or "0"]
        try:
            wrong = [text for text in published if to_bytes(text) != to_bytes(value)]
        except InvalidError:
            wrong = published
        if wrong:
            text = f"class {found.storage_class_name}: the object of tier {value} has {', '.join(wrong)}"
            todo = f"kubectl -n {found.metadata.namespace} delete csistoragecapacity {found.metadata.name}: the"
            yield fail(_TIERS, found.key, text, f"{todo} controller recreates it")


def _summary(view: View) -> str:
    lines = []
    for storage_class in view.ours:
        key = names.tier_label(storage_class.metadata.name)
        counts = Counter(n.metadata.labels[key] for n in view.nodes if key in n.metadata.labels)
        ordered = sorted(counts.items(), key=lambda pair: -tier.of_label(pair[0]))
        nodes = ", ".join(f"{count} at least {value}" for value, count in ordered) or "no node"
        lines.append(f"{storage_class.metadata.name}: {nodes}")
    return f"nodes in capacity tiers ({'; '.join(lines)})"
