"""Candidate nodes of a class: published capacity less assumed claims.

For controllers that choose nodes themselves. Nodes that are not ready or are cordoned are no candidates, nor those that
the class's allowedTopologies exclude.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.meta import LabelSelector
from tonnage.api.quantity import to_bytes
from tonnage.api.selectors import NodeMatcher, Selector, from_label_selector
from tonnage.api.storage import CSIStorageCapacity, StorageClass
from tonnage.capacity import tier
from tonnage.capacity.assumed import Promises
from tonnage.capacity.node_template import is_template
from tonnage.kube.cache import Cache

_BY_CLASS = "offers: capacity by class"
_BY_TOPOLOGY = "offers: capacity by class and label of nodes"
_BY_LABEL = "offers: nodes by label"
_BAD_TAINTS = (names.UNREACHABLE_TAINT, names.NOT_READY_TAINT)


class NodeCapacity(NamedTuple):
    """Bytes of a node for a class: in all, and for one volume.

    held: bytes of assumed claims.
    """

    free: int
    largest: int
    node: str
    room: str
    held: int


class _Said(NamedTuple):
    """Content of a capacity object.

    pair: a label that all of its nodes have, "" for none.
    """

    free: int
    largest: int
    counted: int | None
    room: str
    pair: str
    selector: Selector


class Offers:
    """Capacity of nodes, from the caches and the assumed claims."""

    def __init__(self, capacities: Cache[CSIStorageCapacity], nodes: Cache[Node], promises: Promises) -> None:
        self._capacities, self._nodes, self._promises = capacities, nodes, promises
        self._said: dict[str, _Said] = {}
        capacities.on_change(self._changed)
        capacities.add_index(_BY_CLASS, lambda capacity: (capacity.storage_class_name,))
        capacities.add_index(_BY_TOPOLOGY, _topology)
        nodes.add_index(_BY_LABEL, lambda node: [f"{k}={v}" for k, v in node.metadata.labels.items()])

    def published(self, storage_class: str) -> list[CSIStorageCapacity]:
        """Return all capacity objects of the class for existing nodes."""
        found = self._capacities.by(_BY_CLASS, storage_class)
        return [obj for obj in found if obj.node_topology is not None and not is_template(obj)]

    def of(self, storage_class: StorageClass, reach: NodeMatcher | None = None) -> Iterator[NodeCapacity]:
        """Return the capacity of each usable node for the class.

        reach: only these nodes.
        """
        name = storage_class.metadata.name
        for published in self.published(name):
            said = self._read(published)
            for node in self._nodes.by(_BY_LABEL, said.pair) if said.pair else list(self._nodes):
                labels, node_name = node.metadata.labels, node.metadata.name
                if reach is not None and not reach(labels, node_name):
                    continue
                if said.selector.matches(labels) and is_usable(node) and _allowed(node, storage_class):
                    promised = self._promises.open(node_name, said.room, said.counted)
                    yield NodeCapacity(said.free - promised, said.largest - promised, node_name, said.room, promised)

    def _changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        if old is not None:
            self._said.pop(old.key, None)

    def _read(self, published: CSIStorageCapacity) -> _Said:
        """Read an object once: all objects of a class are read for every claim."""
        known = self._said.get(published.key)
        if known is None:
            known = self._said[published.key] = _said(published)
        return known

    def room(self, storage_class: str, node: str) -> str:
        """Return the pool of a class on a node, "" where that is not known."""
        found = self._nodes.get(node)
        labels = found.metadata.labels if found is not None else {}
        for pair in labels.items():
            for published in self._capacities.by(_BY_TOPOLOGY, _joined(storage_class, *pair)):
                if from_label_selector(published.node_topology or LabelSelector()).matches(labels):
                    return _room(published)
        return ""


def _said(published: CSIStorageCapacity) -> _Said:
    topology = published.node_topology or LabelSelector()
    key, value = next(iter(topology.match_labels.items()), ("", ""))
    free, largest = numbers(published)
    pair = f"{key}={value}" if key else ""
    return _Said(free, largest, published.counted, _room(published), pair, from_label_selector(topology))


def _room(published: CSIStorageCapacity) -> str:
    """Return an object's pool.

    A tier names none: a claim assumed there counts in all pools of the node.
    """
    labels = published.metadata.labels
    return "" if tier.is_tier(published) else labels.get(names.POOL_LABEL, published.storage_class_name)


def _topology(capacity: CSIStorageCapacity) -> Iterable[str]:
    labels = capacity.node_topology.match_labels if capacity.node_topology is not None else {}
    return [_joined(capacity.storage_class_name, *pair) for pair in labels.items()]


def _joined(storage_class: str, key: str, value: str) -> str:
    return f"{storage_class} {key}={value}"


def numbers(capacity: CSIStorageCapacity) -> tuple[int, int]:
    """Return free bytes in all and for one volume.

    A missing number is taken from the other; without both, 0.
    """
    whole, largest = capacity.capacity, capacity.maximum_volume_size
    free = to_bytes(whole or largest or "0")
    return free, min(free, to_bytes(largest)) if largest else free


def is_usable(node: Node) -> bool:
    """Return whether the node is ready and not cordoned."""
    return not node.spec.unschedulable and not any(t.key in _BAD_TAINTS for t in node.spec.taints)


def _allowed(node: Node, storage_class: StorageClass) -> bool:
    terms = storage_class.allowed_topologies
    labels = node.metadata.labels
    return not terms or any(all(labels.get(e.key) in e.values for e in term.match_label_expressions) for term in terms)
