"""An agent that dies before and after each write and each driver call of a snapshot's or a group's life: nothing is
left behind, and nothing goes that a content has."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.node.groupworld import GroupNodeWorld
from tests.unit.node.guillotine import GIB, Guillotine, Mortal, Stage, make_group_calls_deadly, staged
from tests.unit.node.test_restore import restored

from tonnage.csi.driver.driver import id_of
from tonnage.csi.driver.group_members import member_name
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.group_snapshot import group_name
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.snapshot_shape import GROUP, SINGLE, SnapshotShape
from tonnage_box.testing.clock import run_virtual
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import Eventually
from tonnage_box.testing.wait import eventually as until


async def held(node: FakeNode) -> set[str]:
    """What the driver has."""
    return {f"scratch/{snapshot.name}" for snapshot in await node.pool.snapshots.list()}


@dataclass
class Scene(ABC):
    """One shape on one node. volumes: what its snapshots are of. least: steps of a whole life. dead: steps of a creation,
    with the node's label and without."""

    stage: Stage
    world: GroupNodeWorld
    volumes: list[str] = field(default_factory=list)
    shape: ClassVar[SnapshotShape[Any, Any, Any]]
    least: ClassVar[int]
    dead: ClassVar[tuple[int, int]]

    @abstractmethod
    async def begin(self) -> None:
        """Make the volumes."""

    @abstractmethod
    async def make(self, name: str, *, node: str = "node-1", policy: str = "Delete") -> tuple[str, set[str]]:
        """A snapshot and its content: the content's name, and the ids that it is to have."""

    @abstractmethod
    async def live(self, name: str, policy: str) -> set[str]:
        """A snapshot is made, used and deleted; the ids that it had."""

    async def read(self, content: str) -> Any:
        """A content now, None if it is gone."""
        return await find(self.world.kube, self.shape.contents, content)

    async def delete(self, name: str, content: str = "") -> None:
        """Delete a snapshot, then its content."""
        kube, shape = self.world.kube, self.shape
        uid = (await kube.get(shape.snapshots, name, "default")).metadata.uid
        await kube.delete(shape.snapshots, name, "default")
        await kube.delete(shape.contents, content or shape.content_name(uid))

    async def is_over(self, content: str) -> bool:
        """Whether a content is ready, or gone."""
        now = await self.read(content)
        return now is None or bool(now.status.ready_to_use)

    async def life(self, name: str, policy: str) -> None:
        """One whole life; what its policy retains is removed by hand."""
        ids = await self.live(name, policy)
        left = await held(self.stage.node)
        assert left == (ids if policy == "Retain" else set())
        self.stage.guillotine.at = 0
        for handle in left:
            await self.stage.node.pool.snapshots.delete(handle.partition("/")[2])


class Single(Scene):
    """VolumeSnapshots of one claim."""

    shape, least, dead = SINGLE, 15, (5, 7)

    async def begin(self) -> None:
        self.volumes = [await self.world.bound(self.stage.node)]

    async def make(self, name: str, *, node: str = "node-1", policy: str = "Delete") -> tuple[str, set[str]]:
        made = await self.world.snapshot(name)
        content = await self.world.content(made, volume=self.volumes[0], node=node, policy=policy)
        return content, {f"scratch/snapshot-{made.metadata.uid}"}

    async def live(self, name: str, policy: str) -> set[str]:
        """Its claim is restored meanwhile, and given back."""
        node, world = self.stage.node, self.world
        content = await world.take(node, name, policy=policy)
        await world.make_claim(f"{name}-copy", "4Gi", **restored(name))
        await node.select(f"{name}-copy")
        await until(lambda: node.is_bound(f"{name}-copy"), limit=3600)
        volume = (await node.claim(f"{name}-copy")).spec.volume_name
        assert content.handle in await held(node)
        assert len(await node.volumes()) == 2, "no volume is made twice"
        await self.delete(name)
        await until(lambda: world.is_gone(content.metadata.name), limit=3600)
        assert (content.handle in await held(node)) == (policy == "Retain")
        released = await node.release(f"{name}-copy")
        assert released.metadata.name == volume

        async def is_reclaimed() -> bool:
            now = await find(world.kube, kinds.VOLUMES, volume)
            if now is not None and now.metadata.deleting and names.PROVISIONER_FINALIZER not in now.metadata.finalizers:
                await world.kube.patch(kinds.VOLUMES, volume, {"metadata": {"finalizers": None}})
            return now is None

        await until(is_reclaimed, limit=3600)
        assert len(await node.volumes()) == 1
        return {content.handle}


class Group(Scene):
    """VolumeGroupSnapshots of two claims."""

    shape, least, dead = GROUP, 10, (5, 7)

    async def begin(self) -> None:
        self.volumes = await self.world.pair(self.stage.node)

    async def make(self, name: str, *, node: str = "node-1", policy: str = "Delete") -> tuple[str, set[str]]:
        made = await self.world.group(name)
        group = group_name(made.metadata.uid)
        ids = {id_of("scratch", member_name(group, volume)) for volume in self.volumes}
        return await self.world.group_content(made, self.volumes, node=node, policy=policy), ids

    async def live(self, name: str, policy: str) -> set[str]:
        """Its members are made and deleted."""
        world = self.world
        content = await world.group_ready((await self.make(name, policy=policy))[0])
        assert set(content.snapshot_handles) == await held(self.stage.node), "each volume once"
        assert len(content.snapshot_handles) == len(self.volumes)
        members = [await world.member(content, index, policy=policy) for index in range(len(self.volumes))]
        for member in members:
            snapshot = (await world.read(member)).spec.volume_snapshot_ref.name
            await world.kube.delete(kinds.SNAPSHOTS, snapshot, "default")
            await world.kube.delete(kinds.SNAPSHOT_CONTENTS, member)
        await self.delete(name)
        await world.group_gone(content.metadata.name)
        while not all([await world.is_gone(member) for member in members]):
            await asyncio.sleep(1)
        return set(content.snapshot_handles)


SCENES = pytest.mark.parametrize("scene", [Single, Group])


async def _begun(
    kind: type[Scene], kube: Client, make_node: MakeNode, make_claim: MakeClaim, monkeypatch: pytest.MonkeyPatch
) -> Scene:
    guillotine = Guillotine()
    make_group_calls_deadly(monkeypatch, guillotine)
    node = await make_node(pool=Mortal(guillotine, 100 * GIB), agent=False)
    scene = kind(Stage(kube, node, guillotine), GroupNodeWorld(kube, make_claim))
    await scene.stage.start()
    await scene.begin()
    return scene


@pytest.mark.slow
@pytest.mark.virtual_time
@SCENES
@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_an_agent_dies_at_every_step(
    make_node: MakeNode, kube: Client, make_claim: MakeClaim, tell: Callable[[str], None], policy: str,
    monkeypatch: pytest.MonkeyPatch, scene: type[Scene],
) -> None:  # fmt: skip
    played = await _begun(scene, kube, make_node, make_claim, monkeypatch)
    stage = played.stage
    executioner, again = asyncio.ensure_future(stage.run()), (0, 1, 3)
    try:
        for steps in range(1, 200):
            stage.kills = 0
            stage.again = [n for n in (again[steps % 3],) if n]
            stage.guillotine.revive(steps)
            await played.life(f"s{steps}", policy)
            if not stage.kills:
                break
        else:
            pytest.fail("a life never ends")
    finally:
        executioner.cancel()
    assert steps > played.least
    tell(f"agents killed at each of {steps - 1} steps of a {played.shape.word}'s life, policy {policy}")


@pytest.mark.virtual_time
async def test_an_agent_dies_at_every_step_of_a_snapshot_without_room(
    make_node: MakeNode, kube: Client, make_claim: MakeClaim, eventually: Eventually
) -> None:
    guillotine, world = Guillotine(), GroupNodeWorld(kube, make_claim)
    node = await make_node(pool=Mortal(guillotine, 6 * GIB), agent=False)
    stage = Stage(kube, node, guillotine)
    await stage.start()
    source = await world.bound(node)
    executioner = asyncio.ensure_future(stage.run())
    for steps in range(1, 50):
        stage.kills = 0
        guillotine.revive(steps)
        name = await world.content(await world.snapshot(f"s{steps}"), volume=source)
        await world.failure(name, "no capacity")
        await world.delete(f"s{steps}")
        await until(lambda name=name: world.is_gone(name), limit=3600)  # type: ignore[misc]
        assert await node.pool.snapshots.list() == []
        if not stage.kills:
            break
    executioner.cancel()
    assert 3 < steps < 49


@pytest.mark.virtual_time
@SCENES
@pytest.mark.parametrize("label", ["node-1", ""])
async def test_a_content_is_deleted_while_its_agent_is_dead(
    make_node: MakeNode, kube: Client, make_claim: MakeClaim, label: str, monkeypatch: pytest.MonkeyPatch,
    scene: type[Scene],
) -> None:  # fmt: skip
    """Whatever the dead agent had done of its creation is undone."""
    played = await _begun(scene, kube, make_node, make_claim, monkeypatch)
    stage = played.stage
    executioner = asyncio.ensure_future(stage.run())
    steps = 0
    while stage.kills == steps:
        steps += 1
        stage.on_death = partial(played.delete, f"s{steps}")
        stage.guillotine.revive(steps)
        content, _ = await played.make(f"s{steps}", node=label)
        await until(lambda content=content: played.is_over(content), limit=3600)  # type: ignore[misc]
        await asyncio.sleep(60)
        if stage.kills == steps:
            assert await played.read(content) is None
            assert await held(stage.node) == set()
    executioner.cancel()
    assert steps == played.dead[not label], "create, write; and taken, where nobody had labelled it"


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("make"), st.sampled_from(["Delete", "Retain"]), st.booleans()),
        st.tuples(st.just("import"), st.sampled_from(["Delete", "Retain"]), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("kill"), st.integers(1, 10), st.booleans()),
        st.tuples(st.just("rest"), st.sampled_from([1, 60, 400]), st.booleans()),
    ),
    max_size=14,
)


@dataclass
class Play:
    """Plays operations; knows which contents are to be there in the end, and what they have."""

    scene: Scene
    living: dict[str, str] = field(default_factory=dict)  # snapshot -> content
    ids: dict[str, set[str]] = field(default_factory=dict)  # content -> what it is to have
    policies: dict[str, str] = field(default_factory=dict)
    retained: set[str] = field(default_factory=set)
    number: int = 0

    async def apply(self, what: str, argument: Any, flag: bool) -> None:
        """flag: whether a content has its label."""
        self.number += 1
        name, node = f"s{self.number}", "node-1" if flag else ""
        if what == "kill":
            self.scene.stage.guillotine.revive(argument)
        elif what == "make":
            self._lives(name, argument, *await self.scene.make(name, node=node, policy=argument))
        elif what == "import" and isinstance(self.scene, Single) and self.living:
            ids = self.ids[list(self.living.values())[self.number % len(self.living)]]
            world, other = self.scene.world, f"i{self.number}"
            made = await world.snapshot(name, content=other)
            content = await world.content(made, name=other, handle=min(ids), node=node, policy=argument)
            self._lives(name, argument, content, ids)
        elif what == "delete" and self.living:
            await self._delete(list(self.living)[argument % len(self.living)])
        elif what == "rest":
            await asyncio.sleep(argument)

    def _lives(self, name: str, policy: str, content: str, ids: set[str]) -> None:
        self.living[name], self.ids[content], self.policies[content] = content, ids, policy

    async def _delete(self, name: str) -> None:
        content = self.living.pop(name)
        ids = self.ids.pop(content)
        if self.policies[content] == "Retain":
            self.retained |= ids
        await self.scene.delete(name, content)

    async def check(self) -> None:
        """After a long rest: what is there is what is to be there."""
        self.scene.stage.guillotine.revive()
        await asyncio.sleep(3600)
        listed = (await self.scene.world.kube.list(self.scene.shape.contents)).items
        found, there = {content.metadata.name: content for content in listed}, await held(self.scene.stage.node)
        assert set(found) == set(self.living.values()), "contents"
        assert there <= self.retained.union(*self.ids.values()), "nothing is left behind"
        for name, content in found.items():
            assert bool(content.status.ready_to_use) == (self.ids[name] <= there), name
            assert self.scene.shape.is_given(content) or self.ids[name] <= there, "what a content has is there"


@pytest.mark.slow
@SCENES
def test_whatever_happens_to_contents_and_agents(scene: type[Scene]) -> None:
    # Not made smaller: a failure is short enough to be read, and each try takes a while.
    @examples(50, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
    @given(OPERATIONS)
    def anything(operations: list[tuple[str, Any, bool]]) -> None:
        run_virtual(_played(scene, operations))

    anything()


async def _played(kind: type[Scene], operations: list[tuple[str, Any, bool]]) -> None:
    async with staged() as (stage, objects):
        play = Play(kind(stage, GroupNodeWorld(stage.kube, objects.claim)))
        await play.scene.begin()
        for operation in operations:
            await play.apply(*operation)
        await play.check()
