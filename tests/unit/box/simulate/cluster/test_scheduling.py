"""The scheduler of a simulation: one decision after the other, each takes its time."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.scheduler.framework.plugin import SchedulingDecision
from tonnage.scheduler.framework.queue import QueuedPod
from tonnage_box.simulate.cluster import objects
from tonnage_box.simulate.cluster.events import Events
from tonnage_box.simulate.cluster.scheduling import Scheduling
from tonnage_box.simulate.policy import POLICIES
from tonnage_box.simulate.tally import Tally
from tonnage_box.simulate.workload.workload import SimulatedNodes, StreamSpec

NODE = SimulatedNodes({"scratch": "1Ti"}, cpu="2")


class Line:
    """A scheduler that needs 0.5 s for a decision, and its decisions."""

    def __init__(self) -> None:
        self.events, self.tally, self.decided = Events(), Tally(), list[tuple[float, str, str]]()
        policy = POLICIES["least-allocated"]
        self.scheduling = Scheduling(self.events, policy, self.tally, seconds=0.5, decided=self._note)
        self.scheduling.cycle.share, self.scheduling.cycle.least = 0.0, 100

    def _note(self, entry: QueuedPod, decision: SchedulingDecision) -> None:
        self.decided.append((self.events.now, entry.uid, decision.node))

    def add(self, name: str, **spec: Any) -> None:
        like = objects.template(StreamSpec("s", "1/h", "1m", **spec))
        self.scheduling.add(objects.ask(like, name, []))


@pytest.fixture
def line() -> Line:
    return Line()


def test_the_most_important_first_and_one_by_one(line: Line) -> None:
    line.scheduling.cluster.node_changed(None, objects.node("n", NODE))
    line.add("a", cpu="500m")
    line.add("b", cpu="500m", priority=5)
    line.events.run(1.0)
    assert line.decided == [(0.0, "b", "n"), (0.5, "a", "n")]
    assert (line.tally.decisions, line.tally.rejected) == (2, 0)


def test_a_rejected_pod_waits_for_what_it_lacks(line: Line) -> None:
    line.add("a", cpu="4")
    line.events.run(5.0)
    assert (line.decided, line.tally.rejected, line.tally.writes["pods"]) == ([], 1, 1)
    line.scheduling.cluster.node_changed(None, objects.node("n", SimulatedNodes({"scratch": "1Ti"}, cpu="8")))
    line.events.run(6.0)
    assert [found[1:] for found in line.decided] == [("a", "n")]
