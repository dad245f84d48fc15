"""Large claims among small ones that keep coming, on a virtual clock: starved without held room, served with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given
from tests.examples import examples
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import names
from tonnage.scheduler.framework.plugin import Diagnosis
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.preemption.nominator import Nominations
from tonnage.scheduler.preemption.starvation import HOLD, PATIENCE, Waiting

NODE, TOTAL, SMALL, LARGE = "node-1", 10, 2, 8
_LOOK = 10


@dataclass
class Line:
    """One node of 10Gi whose agent answers at once. Some small pods always wait; each runs for a while."""

    world: Any
    lifetimes: list[int]
    holds: bool = True
    ends: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    placed: dict[str, float] = field(default_factory=dict)
    holding: list[float] = field(default_factory=list)
    """At which seconds room was held."""

    def __post_init__(self) -> None:
        self.world.storage_class(reclaimPolicy="Delete")
        self.world.node(NODE, cpu="1000", pods="1000")
        self.cluster = self.world.cluster
        self.nominations = Nominations(self.world.cycle, self.world.queue.nominees)
        self.waiting = Waiting(self.world.cycle, self.world.queue, self.nominations)
        self.numbers = count()
        self.version = 0
        self.publish()

    def publish(self) -> None:
        free = TOTAL - sum(self.sizes[uid] for uid in self.ends)
        self.world.capacity(NODE, f"{free}Gi", counted=self.version, pool="scratch")

    def add(self, name: str, size: int) -> None:
        pod = self.world.pod(name, ephemeral=["data"])
        self.world.claim(f"{name}-data", f"{size}Gi", owner=name)
        self.sizes[pod.metadata.uid] = size
        self.world.queue.add(pod.metadata.uid, compile_ask(pod), self.world.now)

    def run(self, seconds: int, until: str = "") -> None:
        """Let time pass; ends early when a pod has its node."""
        for _ in range(seconds):
            if until in self.placed:
                return
            self.world.now += 1
            self._end()
            self._arrive()
            self._hold()
            self.world.queue.advance(self.world.now)
            while (entry := self.world.queue.pop()) is not None:
                self._decide(entry)

    def _end(self) -> None:
        for uid in [uid for uid, end in self.ends.items() if end <= self.world.now]:
            del self.ends[uid]
            self.cluster.pod_lifted(uid)
            self.world.objects.claims.remove(f"default/{uid.removeprefix('uid-')}-data")
            self.publish()

    def _arrive(self) -> None:
        small = sum(self.sizes[entry.uid] == SMALL for entry in self.world.queue)
        for _ in range(3 - small):
            self.add(f"small-{next(self.numbers)}", SMALL)

    def _hold(self) -> None:
        for one in self.nominations.over(self.world.now):
            self.nominations.drop(one.uid)
        for ask, node, missing in self.waiting.grants(self.world.now) if self.holds else ():
            assert missing > 0
            self.nominations.hold(ask, node, self.world.now, seconds=HOLD)
        if list(self.nominations):
            self.holding.append(self.world.now)

    def _decide(self, entry: Any) -> None:
        outcome = self.nominations.decide(entry.ask)
        uid, now = entry.uid, self.world.now
        if isinstance(outcome, Diagnosis):
            self.waiting.rejected(uid, outcome, now)
            self.world.queue.reject(entry, outcome.causes, now, needs=outcome.needs, counts=False)
            return
        self.world.cycle.reserve(entry.ask, outcome)
        self.waiting.forget(uid)
        self.waiting.served(outcome.volumes.needs, now)
        self.nominations.placed(uid, outcome.node)
        self.world.queue.remove(uid)
        self.placed[entry.ask.pod.metadata.name] = now
        life = self.lifetimes[len(self.placed) % len(self.lifetimes)]
        self.ends[uid] = now + life
        assert sum(self.sizes[uid] for uid in self.ends) <= TOTAL
        self._send(entry.ask.pod.metadata.name)
        self.publish()

    def _send(self, name: str) -> None:
        """The claim is sent to the node."""
        size = self.sizes[f"uid-{name}"]
        sent = self.world.claim(f"{name}-data", f"{size}Gi", owner=name, annotations={names.SELECTED_NODE: NODE})
        self.version = int(sent.metadata.resource_version)
        self.cluster.published.confirm(sent.metadata.uid, self.version)


lives = st.lists(st.integers(5, 90), min_size=3, max_size=20)


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lives)
def test_a_large_claim_gets_its_turn(make_world: Callable[[], Any], lifetimes: list[int]) -> None:
    line = Line(make_world(), lifetimes)
    line.run(5)
    line.add("large", LARGE)
    began = line.world.now
    line.run(2000, until="large")
    # its patience, until it was overtaken often enough, and until those that run have ended
    assert line.placed["large"] - began <= PATIENCE + _LOOK + 3 * max(lifetimes)


def test_without_held_room_it_starves(world: World) -> None:
    line = Line(world, [30, 50, 70, 40, 60], holds=False)
    line.run(5)
    line.add("large", LARGE)
    line.run(3000, until="large")
    assert "large" not in line.placed
    assert len(line.placed) > 100


def test_several_large_ones_have_their_turns_in_order(world: World) -> None:
    line = Line(world, [30, 50, 70, 40, 60])
    line.run(5)
    for name in ("first", "second", "third"):
        line.add(name, LARGE)
        line.run(20)
    line.run(3000, until="third")
    assert line.placed["first"] < line.placed["second"] < line.placed["third"]
    assert any(line.placed["first"] < when < line.placed["third"] for n, when in line.placed.items() if "small" in n)


def test_a_node_that_never_has_the_room_is_not_held_for_ever(world: World) -> None:
    line = Line(world, [10_000_000])
    line.run(1)  # three that never end
    line.lifetimes = [30, 40]
    line.add("large", LARGE)
    line.run(4000)
    assert "large" not in line.placed
    held = line.holding
    assert held
    runs = [held[0]]
    for before, now in pairwise(held):
        if now - before > 1:
            runs.append(now)
        assert now - runs[-1] <= HOLD + 1
    assert len(runs) > 1
    for end, begin in pairwise(held):
        if begin - end > 1:  # others are served meanwhile
            assert any(end <= when < begin for when in line.placed.values())


def test_one_that_fits_nowhere_even_alone_is_given_nothing(world: World) -> None:
    line = Line(world, [30, 50, 70])
    line.run(5)
    line.add("huge", TOTAL + 1)
    line.run(1000)
    assert not line.holding


def test_more_important_pods_are_not_kept_away(world: World) -> None:
    line = Line(world, [1000])
    line.add("large", LARGE)
    queued = world.queue.get("uid-large")
    assert queued is not None
    ask = queued.ask
    line.nominations.hold(ask, NODE, world.now, seconds=HOLD)
    pods = {name: world.pod(name, ephemeral=["data"], priority=p) for name, p in (("equal", 0), ("high", 5))}
    for name in pods:
        world.claim(f"{name}-data", "6Gi", owner=name)

    assert isinstance(line.nominations.decide(compile_ask(pods["equal"])), Diagnosis)
    assert not isinstance(line.nominations.decide(compile_ask(pods["high"])), Diagnosis)
    assert not isinstance(line.nominations.decide(ask), Diagnosis)
    assert isinstance(line.nominations.decide(compile_ask(pods["equal"])), Diagnosis)  # as it was before

    line.nominations.drop("uid-large")
    assert not isinstance(line.nominations.decide(compile_ask(pods["equal"])), Diagnosis)
