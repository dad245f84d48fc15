"""Gauges that are computed when they are read."""

from __future__ import annotations

import gc

from prometheus_client import CollectorRegistry

from tonnage.base.observe.sums import Sums


class _Queue:
    def __init__(self, **counts: int) -> None:
        self.counts = counts


def test_objects_with_one_label_are_summed_and_dead_ones_do_not_count() -> None:
    registry = CollectorRegistry()
    sums = Sums("keys", "Keys of queues.", ("queue", "state"), registry=registry)
    one, two, other = _Queue(waiting=1), _Queue(waiting=2, working=3), _Queue(waiting=4)
    for queue, label in ((one, "a"), (two, "a"), (other, "b")):
        sums.count(queue, label, lambda found: found.counts)

    def value(queue: str, state: str) -> float | None:
        return registry.get_sample_value("keys", {"queue": queue, "state": state})

    assert (value("a", "waiting"), value("a", "working"), value("b", "waiting")) == (3, 3, 4)
    two.counts["waiting"] = 10
    assert value("a", "waiting") == 11
    del two, queue
    gc.collect()
    assert (value("a", "waiting"), value("a", "working")) == (1, None)
