"""Checks of capacity tiers: node labels, and one capacity object for each class and tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.quantity import to_bytes
from tonnage.capacity import tier
from tonnage.errors import InvalidError
from tonnage.ops.cluster_snapshot import Published, View
from tonnage.ops.doctor.finding import Finding, fail, few, ok, warn

_CHECK = "tiers"


def is_kept(view: View, found: Published) -> bool:
    """Whether this installation's controller keeps the object, for a tier or as a class's notice."""
    value = found.metadata.labels.get(names.TIER, "")
    here = found.metadata.namespace == view.namespace
    return here and bool(value) and found.metadata.name == tier.object_name(found.storage_class_name, value)


def standing(view: View) -> frozenset[str]:
    """Names of the objects that stand for tiers."""
    return frozenset(c.metadata.name for c in view.capacities if is_kept(view, c))


def is_in(node: Node, storage_class: str, there: frozenset[str]) -> bool:
    """Whether the object of a node's tier publishes capacity for a class. there: the tiers' objects."""
    value = node.metadata.labels.get(names.tier_label(storage_class), "")
    return bool(tier.of_label(value)) and tier.object_name(storage_class, value) in there


def check(view: View) -> Iterator[Finding]:
    """Tier labels of nodes without a driver, and objects whose capacity is not that of their tier."""
    if {"csistoragecapacities", "csinodes", "nodes"} & view.refused.keys():
        return
    yield from _labels(view)
    kept = [c for c in view.capacities if is_kept(view, c)]
    faults = list(_objects(kept))
    yield from faults
    if kept and not faults:
        yield ok(_CHECK, "objects", _summary(view))


def _labels(view: View) -> Iterator[Finding]:
    serving = set(view.serving)
    for node in view.nodes:
        keys = sorted(tier.labels_of(node.metadata.labels))
        if keys and node.metadata.name not in serving:
            name = node.metadata.name
            text = f"it has tier labels ({few(keys)}), and no driver runs there: pods may be scheduled there"
            todo = f"start its agent, or `kubectl label node {name} {' '.join(f'{key}-' for key in keys)}`"
            yield warn(_CHECK, name, text, todo)


def _objects(kept: list[Published]) -> Iterator[Finding]:
    for found in kept:
        value = found.metadata.labels[names.TIER]
        promised = [found.capacity or "0", found.maximum_volume_size or "0"]
        try:
            wrong = [text for text in promised if to_bytes(text) != to_bytes(value)]
        except InvalidError:
            wrong = promised
        if wrong:
            text = f"class {found.storage_class_name}: the object of tier {value} has {', '.join(wrong)}"
            todo = f"kubectl -n {found.metadata.namespace} delete csistoragecapacity {found.metadata.name}: the"
            yield fail(_CHECK, found.key, text, f"{todo} controller recreates it")


def _summary(view: View) -> str:
    told = []
    for storage_class in view.ours:
        key = names.tier_label(storage_class.metadata.name)
        counts = Counter(n.metadata.labels[key] for n in view.nodes if key in n.metadata.labels)
        ordered = sorted(counts.items(), key=lambda pair: -tier.of_label(pair[0]))
        nodes = ", ".join(f"{count} at least {value}" for value, count in ordered) or "no node"
        told.append(f"{storage_class.metadata.name}: {nodes}")
    return f"nodes in capacity tiers ({'; '.join(told)})"
