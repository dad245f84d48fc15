"""An agent that dies before and after each write and each driver call of a group's life: nothing is left behind, and
nothing goes that a content has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.node.groupworld import GroupNodeWorld
from tests.unit.node.test_snapshot_kills import Guillotine, Mortal, Stage, staged

from tonnage.api import kinds
from tonnage.csi.client.client import CsiClient
from tonnage.kube.client import Client
from tonnage.testing.clock import run_virtual
from tonnage.testing.node import FakeNode, MakeNode
from tonnage.testing.objects import MakeClaim

GIB = 1 << 30


def _deadly(monkeypatch: pytest.MonkeyPatch, guillotine: Guillotine) -> None:
    """A guillotine around the driver's calls about groups."""
    for name in ("create_group_snapshot", "delete_group_snapshot"):
        call = getattr(CsiClient, name)

        async def around(*given: Any, call: Any = call, **more: Any) -> Any:
            await guillotine.step()
            done = await call(*given, **more)
            await guillotine.step()
            return done

        monkeypatch.setattr(CsiClient, name, around)


async def _held(node: FakeNode) -> set[str]:
    return {f"scratch/{snapshot.name}" for snapshot in await node.pool.snapshots.list()}


async def _life(stage: Stage, world: GroupNodeWorld, name: str, volumes: list[str], *, policy: str) -> None:
    """A group is made, its members are, and all is deleted."""
    node = stage.node
    content = await world.group_ready(await world.group_content(await world.group(name), volumes, policy=policy))
    assert set(content.snapshot_handles) == await _held(node), "each volume once"
    assert len(content.snapshot_handles) == len(volumes)
    members = [await world.member(content, index, policy=policy) for index in range(len(volumes))]
    for member in members:
        snapshot = (await world.read(member)).spec.volume_snapshot_ref.name
        await world.kube.delete(kinds.SNAPSHOTS, snapshot, "default")
        await world.kube.delete(kinds.SNAPSHOT_CONTENTS, member)
    await world.delete_group(name)
    await world.group_gone(content.metadata.name)
    while not all([await world.is_gone(member) for member in members]):
        await asyncio.sleep(1)
    left = await _held(node)
    assert left == (set(content.snapshot_handles) if policy == "Retain" else set())
    stage.guillotine.at = 0
    for handle in left:
        await node.pool.snapshots.delete(handle.partition("/")[2])


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_an_agent_dies_at_every_step_of_a_group(
    make_node: MakeNode,
    kube: Client,
    make_claim: MakeClaim,
    tell: Callable[[str], None],
    policy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guillotine, world = Guillotine(), GroupNodeWorld(kube, make_claim)
    _deadly(monkeypatch, guillotine)
    node = await make_node(pool=Mortal(guillotine, 100 * GIB), agent=False)
    stage = Stage(kube, node, guillotine)
    await stage.start()
    volumes = await world.pair(node)
    executioner = asyncio.ensure_future(stage.run())
    again = (0, 1, 3)
    try:
        for steps in range(1, 100):
            stage.kills = 0
            stage.again = [n for n in (again[steps % 3],) if n]
            guillotine.revive(steps)
            await _life(stage, world, f"g{steps}", volumes, policy=policy)
            if not stage.kills:
                break
        else:
            pytest.fail("a life never ends")
    finally:
        executioner.cancel()
    assert steps > 10
    tell(f"agents killed at each of {steps - 1} steps of a group's life, policy {policy}")


@pytest.mark.virtual_time
@pytest.mark.parametrize("label", ["node-1", ""])
async def test_a_group_is_deleted_while_its_agent_is_dead(
    make_node: MakeNode, kube: Client, make_claim: MakeClaim, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the dead agent had done of its creation is undone."""
    guillotine, world = Guillotine(), GroupNodeWorld(kube, make_claim)
    _deadly(monkeypatch, guillotine)
    node = await make_node(pool=Mortal(guillotine, 100 * GIB), agent=False)
    stage = Stage(kube, node, guillotine)
    await stage.start()
    volumes = await world.pair(node)
    executioner = asyncio.ensure_future(stage.run())
    steps = 0
    while stage.kills == steps:
        steps += 1
        stage.on_death = partial(world.delete_group, f"g{steps}")
        guillotine.revive(steps)
        content = await world.group_content(await world.group(f"g{steps}"), volumes, node=label)
        for _ in range(720):
            now = await world.read_group(content)
            if now is None or now.status.ready_to_use:
                break
            await asyncio.sleep(5)
        await asyncio.sleep(60)
        if stage.kills == steps:
            assert await world.read_group(content) is None
            assert await _held(node) == set()
    executioner.cancel()
    assert steps > (4 if label else 6)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("group"), st.sampled_from(["Delete", "Retain"]), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("kill"), st.integers(1, 10), st.booleans()),
        st.tuples(st.just("rest"), st.sampled_from([1, 60, 400]), st.booleans()),
    ),
    max_size=12,
)


@dataclass
class GroupPlay:
    """Plays operations; knows which contents are to be there in the end, and with what policy."""

    stage: Stage
    world: GroupNodeWorld
    volumes: list[str]
    living: dict[str, str] = field(default_factory=dict)  # VolumeGroupSnapshot -> content
    policies: dict[str, str] = field(default_factory=dict)
    number: int = 0

    async def apply(self, what: str, argument: Any, flag: bool) -> None:
        """flag: whether a content has its label."""
        self.number += 1
        name = f"g{self.number}"
        if what == "kill":
            self.stage.guillotine.revive(argument)
        elif what == "group":
            made, node = await self.world.group(name), "node-1" if flag else ""
            self.living[name] = await self.world.group_content(made, self.volumes, node=node, policy=argument)
            self.policies[name] = argument
        elif what == "delete" and self.living:
            gone = list(self.living)[argument % len(self.living)]
            del self.living[gone]
            await self.world.delete_group(gone)
        elif what == "rest":
            await asyncio.sleep(argument)

    async def check(self) -> None:
        """After a long rest: what is there is what is to be there."""
        self.stage.guillotine.revive()
        await asyncio.sleep(3600)
        found = (await self.world.kube.list(kinds.GROUP_CONTENTS)).items
        assert {content.metadata.name for content in found} == set(self.living.values())
        assert all(content.status.ready_to_use for content in found)
        wanted = {handle for content in found for handle in content.snapshot_handles}
        held = await _held(self.stage.node)
        assert wanted <= held, "what a content has is there"
        assert len(wanted) == len(found) * len(self.volumes)
        retained = sum(policy == "Retain" for name, policy in self.policies.items() if name not in self.living)
        assert len(held - wanted) <= retained * len(self.volumes), "nothing else is left behind"


@pytest.mark.slow
@examples(40, deadline=None)
@given(OPERATIONS)
def test_whatever_happens_to_groups_and_agents(operations: list[tuple[str, Any, bool]]) -> None:
    run_virtual(_played(operations))


async def _played(operations: list[tuple[str, Any, bool]]) -> None:
    async with staged() as (stage, objects):
        world = GroupNodeWorld(stage.kube, objects.claim)
        play = GroupPlay(stage, world, await world.pair(stage.node))
        for operation in operations:
            await play.apply(*operation)
        await play.check()
