"""Capacity in tiers against exact publishing, for any sequence of claims, deletions, looks and kills."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples
from tests.unit.node.tierworld import GIB, World

pytestmark = pytest.mark.virtual_time
SIZES = st.one_of(st.integers(1, 4), st.integers(1, 4), st.integers(1, 200))


class Tiers(RuleBasedStateMachine):
    """Whatever happens, in whatever order, no tier promises more than each of its nodes has."""

    @initialize(sizes=st.lists(st.integers(2, 400), min_size=1, max_size=4))
    def begin(self, sizes: list[int]) -> None:
        self.world = World(*sizes)
        self.count = 0
        self.world.kube.on_write = self.written
        self.world.run(self.world.settle())

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()

    def written(self, verb: str, kind: Any) -> None:
        """At every write: what its writer promises is there, as it is for all whose claims were seen; and nobody who has
        room is without anything published in between."""
        for name, node in self.world.nodes.items():
            if name == self.world.writing or not node.unseen:
                assert node.promised() <= node.free * GIB, f"{name} after {verb} {kind.kind}"
            if name == self.world.writing and node.was_published and node.free:
                assert node.is_published(), f"{name} after {verb} {kind.kind}"

    @rule(data=st.data(), size=SIZES)
    def place(self, data: st.DataObject, size: int) -> None:
        found = self.world.admitted(size)
        if found:
            self.count += 1
            self.world.send(f"c{self.count}", data.draw(st.sampled_from(found)), size)

    @precondition(lambda self: bool(self.world.made))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.world.delete(data.draw(st.sampled_from(sorted(self.world.made))))

    @rule(data=st.data(), killed=st.sampled_from([0, 0, 1, 2, 3, 4]), rejected=st.booleans())
    def publish(self, data: st.DataObject, killed: int, rejected: bool) -> None:
        self.world.clock.now += 2.0
        node = self.world.nodes[data.draw(st.sampled_from(sorted(self.world.nodes)))]
        self.world.run(node.publish(killed=killed, rejected=rejected and not killed))

    @rule(seconds=st.sampled_from([0.0, 1.0, 70.0]))
    def control(self, seconds: float) -> None:
        self.world.clock.now += seconds
        self.world.run(self.world.control())

    @rule(size=SIZES)
    def what_exact_places_tiers_place_within_one_more_round(self, size: int) -> None:
        """At rest: a claim that fits somewhere is admitted there, at once or after one look of the controller and the
        agents; and no volume fails, nor is a claim sent where it does not fit."""
        self.world.run(self.world.settle())
        fits = {name for name, node in self.world.nodes.items() if node.free >= size}
        found = set(self.world.admitted(size))
        assert found <= fits
        self.count += 1
        name = f"c{self.count}"
        if not fits <= found:  # the pod may be one that runs only where it was not admitted
            self.world.run(self._round(name, size))
            found = set(self.world.admitted(size))
            self.world.run(self.world.forget(name))
        assert found == fits
        if found:
            assert self.world.send(name, min(found), size)

    async def _round(self, name: str, size: int) -> None:
        await self.world.ask(name, size)
        await self.world.control()
        self.world.clock.now += 2.0
        for node in self.world.nodes.values():
            await node.publish()

    @invariant()
    def one_claim_that_a_tier_admits_leaves_it_true(self) -> None:
        for node in self.world.nodes.values() if hasattr(self, "world") else ():
            if len(node.unseen) <= 1 and sum(node.unseen) * GIB <= node.promised():
                assert node.promised() <= node.free * GIB


TestTiers = pytest.mark.timeout(900)(Tiers.TestCase)
TestTiers.settings = examples(
    50, machine=True, stateful_step_count=25, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
"""Not made smaller: a failure is short enough to be read, and each try takes a while."""


def fill(mode: str) -> tuple[int, int]:
    """Half fill four nodes of 1Ti with volumes of 4Gi; how many capacity writes that took, and volumes."""
    world = World(1024, 1024, 1024, 1024, mode=mode)
    world.run(world.settle())
    before, volumes = world.kube.writes, 0
    while sum(node.free for node in world.nodes.values()) > 4 * 512:
        found = sorted(world.admitted(4), key=lambda name: -world.nodes[name].free)
        assert world.send(f"c{volumes}", found[0], 4)
        volumes += 1
        world.clock.now += 2.0
        for node in world.nodes.values():
            world.run(node.publish())
        world.run(world.control())
    world.end()
    return world.kube.writes - before, volumes


@pytest.mark.slow
def test_hardly_anything_is_written_while_there_is_room(tell: Any) -> None:
    exact, volumes = fill("exact")
    tiers, same = fill("auto")
    tell(f"{volumes} volumes of 4Gi on four nodes of 1Ti: {exact} capacity writes exactly, {tiers} in tiers")
    assert volumes == same == 512
    assert exact >= volumes
    assert tiers <= volumes // 16


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_label_goes_only_when_the_node_has_an_object_of_its_own(killed: int) -> None:
    """Whatever keeps the object from being made, or ends the agent before the first or the second write."""
    world = World(20)
    world.run(world.settle())
    node = world.nodes["n0"]
    assert node.promised() == 4 * GIB
    assert world.send("c", "n0", 12), "8Gi are left, which are not far above 12Gi"
    world.clock.now += 2.0
    world.run(node.publish(killed=killed, rejected=not killed))
    assert node.is_published()
    assert node.promised() == 4 * GIB
    world.run(world.settle())
    assert node.is_published()
    assert node.promised() == 0
    world.end()
