"""The snapshot controller killed before and after each of its writes, and begun anew: it ends in the same state.

Whatever the order of what people do meanwhile: no content is left without its snapshot unless its policy is Retain,
and no content of another snapshot is touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.controller.contexts import context
from tests.unit.controller.snapshots.world import Killed, Recording, World

from tonnage.api.kinds import CLAIMS, SNAPSHOT_CONTENTS, SNAPSHOTS
from tonnage.box.apiserver.server.server import ApiServer
from tonnage.controller.snapshots.controller import SnapshotController
from tonnage.errors import ApiAlreadyExistsError, ApiConflictError, ApiNotFoundError
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.testing import apiserver

STEPS = ("snapshot", "bare", "existing", "delete", "claim", "unclaim", "class", "retain", "act", "work")
ROUNDS = 12
BYSTANDER = "bystander"
"""A content whose snapshot is not there."""


class Life:
    """A cluster and the controller, which is made anew after each kill. left: writes until the next one."""

    def __init__(self, server: ApiServer) -> None:
        self.world = World(apiserver.client(server))
        self._server, self.kills, self.left, self.after = server, 0, -1, False
        self.writes = 0

    async def work(self) -> None:
        """One life of the controller: it looks at each snapshot until nothing changes, or until it is killed."""
        for _ in range(ROUNDS):
            recording = Recording(self._server.transport("system:admin"), kill_at=self.left, after=self.after)
            try:
                async with _informers(Client(recording)) as informers:
                    await self._look_at_all(recording, informers)
            except Killed:
                self.kills += 1
                self.left = -1
                continue
            self.writes += len(recording.writes)
            if self.left >= 0:
                self.left -= min(self.left, len(recording.writes))
            if not recording.writes:
                return
        raise AssertionError("it never comes to rest")

    async def _look_at_all(self, recording: Recording, informers: Informers) -> None:
        client = Client(recording)
        loop = SnapshotController(context(client, informers, EventRecorder(client, "test")))
        for informer in informers.all():
            await informer.wait_synced()
        for snapshot in (await self.world.kube.list(SNAPSHOTS)).items:
            with suppress(ApiConflictError, ApiNotFoundError):  # repeated by the queue
                await loop.reconcile(snapshot.key)

    async def end(self) -> None:
        """All comes to rest; a kill that is still to come comes now."""
        for _ in range(4):
            await self.work()
            await self.world.act()

    async def state(self) -> Any:
        """What is there, without uids and versions."""
        snapshots = (await self.world.kube.list(SNAPSHOTS)).items
        known = {snapshot.metadata.uid: snapshot.metadata.name for snapshot in snapshots}
        contents = await self.world.contents()
        shown = sorted(
            (s.metadata.name, s.metadata.deleting, bool(s.status.ready_to_use), s.status.error is None)
            for s in snapshots
        )
        held = sorted(
            (
                content.spec.volume_snapshot_ref.name, content.spec.deletion_policy, bool(content.status.ready_to_use),
                known.get(content.spec.volume_snapshot_ref.uid, "gone"),
            )
            for content in contents
        )  # fmt: skip
        return shown, held, len(self.world.storage)


@asynccontextmanager
async def _informers(client: Client) -> AsyncIterator[Informers]:
    found = Informers(client)
    found.start()
    try:
        yield found
    finally:
        await found.close()


async def play(steps: list[tuple[str, str]], kill_at: int, *, after: bool) -> tuple[Life, Any]:
    """Run the steps, with one kill around a write of the controller; the state at the end."""
    async with apiserver.api_server() as server:
        life = Life(server)
        life.left, life.after = kill_at, after
        await life.world.existing(BYSTANDER, uid="gone", to="nobody")
        for what, name in steps:
            await _step(life, what, name)
        await life.end()
        found = await life.state()
        await check(life)
        return life, found


async def _step(life: Life, what: str, name: str) -> None:
    world = life.world
    with suppress(ApiNotFoundError, ApiConflictError, ApiAlreadyExistsError):
        match what:
            case "class":
                await world.classed(default=True)
            case "claim":
                await world.bound()
            case "snapshot" | "bare":
                await world.snapshot(name, bare=what == "bare")
            case "existing":
                await world.existing(f"old-{name}", to=name)
                await world.snapshot(name, source={"volumeSnapshotContentName": f"old-{name}"})
            case "delete":
                await world.kube.delete(SNAPSHOTS, name, "default")
            case "unclaim":
                await world.kube.delete(CLAIMS, "data", "default")
            case "retain":
                for content in await world.contents():
                    body = {"spec": {"deletionPolicy": "Retain"}}
                    await world.kube.patch(SNAPSHOT_CONTENTS, content.metadata.name, body)
            case "act":
                await world.act()
            case "work":
                await life.work()


async def check(life: Life) -> None:
    """What always holds at the end."""
    snapshots = {s.metadata.uid: s for s in (await life.world.kube.list(SNAPSHOTS)).items}
    assert not [s for s in snapshots.values() if s.metadata.deleting], "all that was deleted is gone"
    handles = set()
    found = {content.metadata.name: content for content in await life.world.contents()}
    assert BYSTANDER in found, "a content whose snapshot is missing is never deleted"
    for name, content in found.items():
        ref, kept = content.spec.volume_snapshot_ref, content.spec.deletion_policy == "Retain"
        assert name == BYSTANDER or ref.uid in snapshots or not ref.uid or kept, content
        handles.add(content.handle)
    assert set(life.world.storage) == handles - {""}, "no data without its content, nor the other way round"


LIVES = [
    [("class", ""), ("claim", ""), ("snapshot", "a"), ("work", ""), ("act", ""), ("work", ""), ("delete", "a")],
    [("class", ""), ("claim", ""), ("bare", "a"), ("work", ""), ("act", ""), ("work", ""), ("delete", "a")],
    [("class", ""), ("existing", "a"), ("work", ""), ("act", ""), ("work", ""), ("delete", "a"), ("work", "")],
    [("snapshot", "a"), ("work", ""), ("class", ""), ("claim", ""), ("work", ""), ("delete", "a"), ("work", "")],
    [("class", ""), ("claim", ""), ("bare", "a"), ("work", ""), ("retain", ""), ("delete", "a"), ("work", "")],
    [("class", ""), ("claim", ""), ("snapshot", "a"), ("work", ""), ("delete", "a"), ("snapshot", "a"), ("work", "")],
]


@pytest.mark.slow
@pytest.mark.parametrize("steps", LIVES, ids=range(len(LIVES)))
async def test_a_kill_around_each_write_changes_nothing_at_the_end(steps: list[tuple[str, str]]) -> None:
    life, wanted = await play(steps, -1, after=False)
    assert life.writes
    kills = 0
    for at in range(life.writes):
        for after in (False, True):
            killed, found = await play(steps, at, after=after)
            assert found == wanted, (at, after)
            kills += killed.kills
    assert kills == 2 * life.writes, "each of them hit"


@pytest.mark.slow
@examples(100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(("a", "b"))), max_size=16), st.integers(0, 8),
    st.booleans(),
)  # fmt: skip
def test_whatever_happens_nothing_is_lost_or_left(steps: list[tuple[str, str]], kill_at: int, after: bool) -> None:
    asyncio.run(_anything([("class", ""), ("claim", ""), *steps], kill_at, after=after))


async def _anything(steps: list[tuple[str, str]], kill_at: int, *, after: bool) -> None:
    await play(steps, kill_at, after=after)
