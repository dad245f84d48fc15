"""Indexes by node labels: objects that a node reaches, and nodes with a label.

Nearly every capacity object and local PV selects one value of one label and is in that label's bucket. A node reads the
buckets of its own labels. Objects that select otherwise are tested for every node.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tonnage.kubernetes.api.core import NodeSelector
from tonnage.kubernetes.api.meta import LabelSelector, SelectorRequirement
from tonnage.kubernetes.api.selectors import NodeMatcher, from_label_selector, node_matcher

T = TypeVar("T")
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reach:
    """Nodes that reach an object.

    `matches` decides. labels: its buckets, if any.
    """

    matches: NodeMatcher
    buckets: tuple[tuple[str, str], ...] = ()


EVERYWHERE = Reach(lambda labels, name: True)


def reach_of_labels(selector: LabelSelector) -> Reach:
    """Return the reach of an object's nodeTopology; empty: every node.

    Raises: InvalidError.
    """
    compiled = from_label_selector(selector)
    pair = next(iter(selector.match_labels.items()), None)
    buckets = (pair,) if pair is not None else _buckets(selector.match_expressions)
    return Reach(lambda labels, name: compiled.matches(labels), buckets)


def reach_of_nodes(selector: NodeSelector | None) -> Reach:
    """Return the reach of a PV's node affinity; None: every node. Raises: InvalidError."""
    if selector is None:
        return EVERYWHERE
    buckets: list[tuple[str, str]] = []
    for term in selector.node_selector_terms:
        found = _buckets(term.match_expressions)
        if not found:
            return Reach(node_matcher(selector))
        buckets += found
    return Reach(node_matcher(selector), tuple(dict.fromkeys(buckets)))


def _buckets(expressions: list[SelectorRequirement]) -> tuple[tuple[str, str], ...]:
    expression = next((e for e in expressions if e.operator == "In"), None)
    return tuple((expression.key, value) for value in expression.values) if expression is not None else ()


class ByTopology(Generic[T]):
    """Objects with their reach, in the order of a sort key."""

    def __init__(self, order: Callable[[T], tuple[int, str]]) -> None:
        self._order = order
        self._buckets: dict[str, dict[str, list[T]]] = {}
        self._others: list[T] = []

    def __bool__(self) -> bool:
        return bool(self._buckets or self._others)

    def add(self, thing: T, reach: Reach) -> None:
        """Add an object."""
        for bucket in self._lists(reach):
            insort(bucket, thing, key=self._order)

    def remove(self, thing: T, reach: Reach) -> None:
        """Remove an object that was added with the same reach."""
        for bucket in self._lists(reach):
            bucket.remove(thing)
        for key, value in reach.buckets:
            if (values := self._buckets.get(key)) is not None and not values.get(value):
                values.pop(value, None)
                if not values:
                    del self._buckets[key]

    def _lists(self, reach: Reach) -> Iterator[list[T]]:
        if not reach.buckets:
            yield self._others
        for key, value in reach.buckets:
            yield self._buckets.setdefault(key, {}).setdefault(value, [])

    def near(self, labels: Labels) -> Iterator[list[T]]:
        """Iterate over ordered lists with all objects that the labels may reach.

        They may contain more, or duplicates.
        """
        for key, values in self._buckets.items():
            if (value := labels.get(key)) is not None and (bucket := values.get(value)):
                yield bucket
        if self._others:
            yield self._others


class NodeLabels:
    """Labels of existing nodes, indexed by those that were asked for."""

    def __init__(self) -> None:
        self._labels: dict[str, Labels] = {}
        self._tracked: dict[str, dict[str, set[str]]] = {}

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all nodes."""
        return iter(list(self._labels))

    def get(self, node: str) -> Labels | None:
        """Return a node's labels, None if there is no such node."""
        return self._labels.get(node)

    def put(self, node: str, labels: Labels | None) -> None:
        """Add or change a node; None removes it."""
        old = self._labels.pop(node, {})
        for key, values in self._tracked.items():
            if (value := old.get(key)) is not None:
                values.get(value, set()).discard(node)
            if labels is not None and (value := labels.get(key)) is not None:
                values.setdefault(value, set()).add(node)
        if labels is not None:
            self._labels[node] = labels

    def with_label(self, key: str, value: str) -> Collection[str]:
        """Return names of the nodes with that label.

        The first call for a key iterates over all nodes.
        """
        values = self._tracked.get(key)
        if values is None:
            values = self._tracked[key] = {}
            for name, labels in self._labels.items():
                if (found := labels.get(key)) is not None:
                    values.setdefault(found, set()).add(name)
        return values.get(value, ())
