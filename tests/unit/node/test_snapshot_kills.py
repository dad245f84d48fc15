"""An agent that dies before and after each write and each driver call of a snapshot's life: nothing is left behind, and
nothing goes that a content has."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.node.snapshotworld import Counting, SnapshotWorld
from tests.unit.node.test_restore import restored

from tonnage.api import kinds, names
from tonnage.api.snapshot import content_name
from tonnage.errors import UnavailableError
from tonnage.kube.client import Client
from tonnage.kube.transport import Request, Response, Transport
from tonnage.pools.base.contract import PoolVolume, Snapshot, VolumeRequest
from tonnage.pools.fake.backend import FakePool
from tonnage.testing import apiserver
from tonnage.testing.clock import run_virtual
from tonnage.testing.node import FakeNode, MakeNode, fake_node
from tonnage.testing.objects import MakeClaim, Objects
from tonnage.testing.wait import Eventually
from tonnage.testing.wait import eventually as until

T = TypeVar("T")
GIB = 1 << 30


class Guillotine:
    """Falls at the `at`-th step, 0 for never: what was to follow never happens."""

    def __init__(self) -> None:
        self.at = self.count = 0
        self.fell, self._revived = asyncio.Event(), asyncio.Event()

    async def step(self) -> None:
        """Before or after something with an effect."""
        self.count += 1
        if self.at and self.count >= self.at:
            self.fell.set()
            await self._revived.wait()
            raise UnavailableError("killed")

    def revive(self, at: int = 0) -> None:
        """Begin to count anew."""
        self.at, self.count = at, 0
        self.fell.clear()
        self._revived.set()
        self._revived = asyncio.Event()


class Deadly(Counting):
    """A transport with a guillotine around each write."""

    def __init__(self, inner: Transport, guillotine: Guillotine) -> None:
        super().__init__(inner)
        self._guillotine = guillotine

    async def request(self, request: Request) -> Response:
        """See Transport."""
        before = len(self.writes)
        if request.method == "GET" or any(part in request.path for part in ("/events", "csistoragecap", "/nodes")):
            return await super().request(request)
        await self._guillotine.step()
        answer = await super().request(request)
        assert len(self.writes) > before
        await self._guillotine.step()
        return answer


class Mortal(FakePool):
    """A pool with a guillotine around each call that changes something."""

    def __init__(self, guillotine: Guillotine, size: int) -> None:
        super().__init__("scratch", size, directories=False)
        self._guillotine = guillotine
        create, delete = self.snapshots.create, self.snapshots.delete

        async def created(name: str, volume: str, **more: Any) -> Snapshot:
            return await self._around(create(name, volume, **more))

        async def deleted(name: str) -> None:
            await self._around(delete(name))

        self.snapshots.create, self.snapshots.delete = created, deleted  # type: ignore[method-assign]

    async def _around(self, call: Awaitable[T]) -> T:
        try:
            await self._guillotine.step()
        except BaseException:
            call.close()  # type: ignore[attr-defined]
            raise
        done = await call
        await self._guillotine.step()
        return done

    async def create(self, request: VolumeRequest) -> PoolVolume:
        return await self._around(super().create(request))

    async def delete(self, name: str, *, wait: bool = True) -> None:
        await self._around(super().delete(name, wait=wait))


@dataclass
class Stage:
    """A node whose agent is killed where the guillotine falls, and started again."""

    kube: Client
    node: FakeNode
    guillotine: Guillotine
    kills: int = 0
    again: list[int] = field(default_factory=list)
    """Steps after which the next agents die."""
    on_death: Callable[[], Awaitable[None]] | None = None
    """What others do meanwhile."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of its AgentConfig."""

    async def start(self) -> None:
        """Start an agent."""
        self.node.client = Client(Deadly(self.kube.transport, self.guillotine))
        await self.node.start_agent(**self.options)
        self.node.client = self.kube

    async def run(self) -> None:
        """Kill and start again, until cancelled."""
        while True:
            await self.guillotine.fell.wait()
            self.kills += 1
            await self.node.kill_agent()
            if self.on_death is not None:
                await self.on_death()
            self.guillotine.revive(self.again.pop(0) if self.again else 0)
            await self.start()


@asynccontextmanager
async def staged(**options: Any) -> AsyncIterator[tuple[Stage, Objects]]:
    """A stage in a cluster of its own, with class `late`. options: other fields of its AgentConfig."""
    guillotine = Guillotine()
    with tempfile.TemporaryDirectory() as folder:
        async with apiserver.api_server() as server:
            kube = apiserver.client(server)
            await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
            objects = Objects(kube)
            await objects.storage_class("late", default=True)
            async with fake_node(kube, Path(folder), pool=Mortal(guillotine, 200 * GIB), agent=False) as node:
                stage = Stage(kube, node, guillotine, options=options)
                await stage.start()
                executioner = asyncio.ensure_future(stage.run())
                try:
                    yield stage, objects
                finally:
                    executioner.cancel()
                    await asyncio.wait([executioner])


async def _life(stage: Stage, world: SnapshotWorld, name: str, *, policy: str) -> None:
    """A snapshot is made, restored and deleted, then the restored claim."""
    node = stage.node
    content = await world.take(node, name, policy=policy)
    handle = content.status.snapshot_handle
    await world.make_claim(f"{name}-copy", "4Gi", **restored(name))
    await node.select(f"{name}-copy")
    await until(lambda: node.is_bound(f"{name}-copy"), limit=3600)
    volume = (await node.claim(f"{name}-copy")).spec.volume_name
    assert handle in {f"scratch/{s.name}" for s in await node.pool.snapshots.list()}
    assert len(await node.volumes()) == 2, "no volume is made twice"
    await world.delete(name)
    await until(lambda: world.is_gone(content.metadata.name), limit=3600)
    left = {f"scratch/{s.name}" for s in await node.pool.snapshots.list()}
    assert (handle in left) == (policy == "Retain")
    released = await node.release(f"{name}-copy")
    assert released.metadata.name == volume

    async def is_reclaimed() -> bool:
        body = {"metadata": {"finalizers": None}}
        now = [v for v in (await world.kube.list(kinds.VOLUMES)).items if v.metadata.name == volume]
        if now and now[0].metadata.deleting and names.PROVISIONER_FINALIZER not in now[0].metadata.finalizers:
            await world.kube.patch(kinds.VOLUMES, volume, body)
        return not now

    await until(is_reclaimed, limit=3600)
    assert len(await node.volumes()) == 1
    if policy == "Retain":
        stage.guillotine.at = 0
        await node.pool.snapshots.delete(handle.partition("/")[2])


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_an_agent_dies_at_every_step(
    make_node: MakeNode, kube: Client, make_claim: MakeClaim, tell: Callable[[str], None], policy: str
) -> None:
    guillotine, world = Guillotine(), SnapshotWorld(kube, make_claim)
    node = await make_node(pool=Mortal(guillotine, 100 * GIB), agent=False)
    stage = Stage(kube, node, guillotine)
    await stage.start()
    await world.bound(node)
    executioner = asyncio.ensure_future(stage.run())
    lives, again = 0, (0, 1, 3)
    try:
        for steps in range(1, 200):
            stage.kills, lives = 0, lives + 1
            stage.again = [n for n in (again[steps % 3],) if n]
            guillotine.revive(steps)
            await _life(stage, world, f"s{steps}", policy=policy)
            if not stage.kills:
                break
        else:
            pytest.fail("a life never ends")
    finally:
        executioner.cancel()
    assert lives > 15
    tell(f"agents killed at each of {lives - 1} steps of a snapshot's life, policy {policy}")


@pytest.mark.virtual_time
async def test_an_agent_dies_at_every_step_of_a_snapshot_without_room(
    make_node: MakeNode, kube: Client, make_claim: MakeClaim, eventually: Eventually
) -> None:
    guillotine, world = Guillotine(), SnapshotWorld(kube, make_claim)
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
@pytest.mark.parametrize("node_label", ["node-1", ""])
async def test_a_content_is_deleted_while_its_agent_is_dead(
    make_node: MakeNode, kube: Client, make_claim: MakeClaim, node_label: str
) -> None:
    """Whatever the dead agent had done of its creation is undone."""
    guillotine, world = Guillotine(), SnapshotWorld(kube, make_claim)
    node = await make_node(pool=Mortal(guillotine, 100 * GIB), agent=False)
    stage = Stage(kube, node, guillotine)
    await stage.start()
    source = await world.bound(node)
    executioner = asyncio.ensure_future(stage.run())
    steps = 0
    while stage.kills == steps:
        steps += 1
        name = f"s{steps}"
        stage.on_death = partial(world.delete, name)
        guillotine.revive(steps)
        content = await world.content(await world.snapshot(name), volume=source, node=node_label)

        async def is_over(content: str = content) -> bool:
            return await world.is_gone(content) or bool((await world.read(content)).status.ready_to_use)

        await until(is_over, limit=3600)
        await asyncio.sleep(60)
        if stage.kills == steps:
            assert await world.is_gone(content)
            assert await node.pool.snapshots.list() == []
    executioner.cancel()
    assert steps == (5 if node_label else 7), "create, write; and taken, where nobody had labelled it"


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("snapshot"), st.sampled_from(["Delete", "Retain"]), st.booleans()),
        st.tuples(st.just("import"), st.sampled_from(["Delete", "Retain"]), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("kill"), st.integers(1, 8), st.booleans()),
        st.tuples(st.just("rest"), st.sampled_from([1, 60, 400]), st.booleans()),
    ),
    max_size=14,
)


@dataclass
class Play:
    """Plays operations; knows which contents are to be there in the end."""

    stage: Stage
    world: SnapshotWorld
    source: str = ""
    living: dict[str, str] = field(default_factory=dict)  # VolumeSnapshot -> content
    handles: dict[str, str] = field(default_factory=dict)  # content -> what it is to have
    retained: set[str] = field(default_factory=set)
    policies: dict[str, str] = field(default_factory=dict)
    number: int = 0

    async def apply(self, what: str, argument: Any, flag: bool) -> None:
        """flag: whether a content has its label."""
        self.number += 1
        name = f"s{self.number}"
        if what == "kill":
            self.stage.guillotine.revive(argument)
        elif what == "snapshot":
            made = await self.world.snapshot(name)
            node = "node-1" if flag else ""
            content = await self.world.content(made, volume=self.source, node=node, policy=argument)
            self._lives(name, content, f"scratch/snapshot-{made.metadata.uid}", argument)
        elif what == "import" and self.handles:
            handle = list(self.handles.values())[self.number % len(self.handles)]
            made = await self.world.snapshot(name, content=f"i{self.number}")
            node = "node-1" if flag else ""
            content = await self.world.content(made, name=f"i{self.number}", handle=handle, node=node, policy=argument)
            self._lives(name, content, handle, argument)
        elif what == "delete" and self.living:
            await self._delete(list(self.living)[argument % len(self.living)])
        elif what == "rest":
            await asyncio.sleep(argument)

    def _lives(self, name: str, content: str, handle: str, policy: str) -> None:
        self.living[name], self.handles[content], self.policies[content] = content, handle, policy

    async def _delete(self, name: str) -> None:
        content = self.living.pop(name)
        handle = self.handles.pop(content)
        if self.policies[content] == "Retain":
            self.retained.add(handle)
        await self.world.kube.delete(kinds.SNAPSHOTS, name, "default")
        await self.world.kube.delete(kinds.SNAPSHOT_CONTENTS, content)

    async def check(self) -> None:
        """After a long rest: what is there is what is to be there."""
        self.stage.guillotine.revive()
        await asyncio.sleep(3600)
        found = {c.metadata.name: c for c in (await self.world.kube.list(kinds.SNAPSHOT_CONTENTS)).items}
        assert set(found) == set(self.handles), "contents"
        there = {f"scratch/{snapshot.name}" for snapshot in await self.stage.node.pool.snapshots.list()}
        made = {c.handle for c in found.values() if content_name("") in c.metadata.name}
        assert made <= there, "what a content has is there"
        assert there <= set(self.handles.values()) | self.retained, "nothing is left behind"
        for name, content in found.items():
            assert bool(content.status.ready_to_use) == (self.handles[name] in there), name


@pytest.mark.slow
@examples(60)
@given(OPERATIONS)
def test_whatever_happens_to_contents_and_agents(operations: list[tuple[str, Any, bool]]) -> None:
    run_virtual(_played(operations))


async def _played(operations: list[tuple[str, Any, bool]]) -> None:
    async with staged() as (stage, objects):
        world = SnapshotWorld(stage.kube, objects.claim)
        play = Play(stage, world, await world.bound(stage.node))
        for operation in operations:
            await play.apply(*operation)
        await play.check()
