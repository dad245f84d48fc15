"""Gauges that are computed from objects when metrics are read, and cost nothing in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar
from weakref import WeakKeyDictionary, ref

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

T = TypeVar("T")


class Sums(Collector):
    """A gauge with two labels: one that objects share, and one for each counted thing.

    Objects are held weakly; those with one label are summed (a box has many nodes in one process).
    """

    def __init__(self, name: str, text: str, labels: tuple[str, str], *, registry: CollectorRegistry) -> None:
        self.name = name
        self._text, self._labels = text, labels
        self._counted: WeakKeyDictionary[object, tuple[str, Callable[[], Mapping[str, int]]]] = WeakKeyDictionary()
        registry.register(self)

    def count(self, thing: T, label: str, read: Callable[[T], Mapping[str, int]]) -> None:
        """Count in thing from now on. read is called in another thread, and must not refer to thing."""
        self._counted[thing] = label, _weakly(thing, read)

    def describe(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(self.name, self._text, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        sums: defaultdict[tuple[str, str], int] = defaultdict(int)
        for label, read in list(self._counted.values()):
            for what, count in read().items():
                sums[label, what] += count
        family = GaugeMetricFamily(self.name, self._text, labels=self._labels)
        for labels, total in sorted(sums.items()):
            family.add_metric(labels, total)
        yield family


def _weakly(thing: T, read: Callable[[T], Mapping[str, int]]) -> Callable[[], Mapping[str, int]]:
    weak = ref(thing)

    def now() -> Mapping[str, int]:
        found = weak()
        return {} if found is None else read(found)

    return now
