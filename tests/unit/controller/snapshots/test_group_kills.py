"""The loops of snapshots and groups killed before and after each of their writes, and begun anew: the same end.

Whatever people do meanwhile: no data without a content that has it, unless its policy is Retain, and no content of
another group is touched.
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
from tests.unit.controller.snapshots.groupworld import GroupWorld
from tests.unit.controller.snapshots.world import Killed, Recording

from tonnage.api.kinds import GROUP_CONTENTS, GROUP_SNAPSHOTS, SNAPSHOTS
from tonnage.box.apiserver.server.server import ApiServer
from tonnage.controller.snapshots.role import SnapshotLoops
from tonnage.errors import ApiAlreadyExistsError, ApiConflictError, ApiNotFoundError, UnavailableError
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.testing import apiserver

STEPS = ("group", "bare", "existing", "delete", "member", "claims", "class", "retain", "act", "work")
ROUNDS = 25
BYSTANDER = "bystander"
"""A group content whose group is not there."""


class GroupLife:
    """A cluster and the loops, which are made anew after each kill. left: writes until the next one."""

    def __init__(self, server: ApiServer) -> None:
        self.world = GroupWorld(apiserver.client(server))
        self._server, self.kills, self.left, self.after = server, 0, -1, False
        self.writes = 0

    async def work(self) -> None:
        """One life: each group and snapshot is looked at until nothing changes, or until a kill."""
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
        snapshots, groups = SnapshotLoops(context(client, informers, EventRecorder(client, "test"))).all
        for informer in informers.all():
            await informer.wait_synced()
        usual = (ApiConflictError, ApiNotFoundError, UnavailableError)  # repeated by the queue
        for group in (await self.world.kube.list(GROUP_SNAPSHOTS)).items:
            with suppress(*usual):
                await groups.reconcile(group.key)
        for snapshot in (await self.world.kube.list(SNAPSHOTS)).items:
            with suppress(*usual):
                await snapshots.reconcile(snapshot.key)

    async def end(self) -> None:
        """All comes to rest; a kill that is still to come comes now."""
        for _ in range(6):
            await self.work()
            await self.world.act()

    async def state(self) -> Any:
        """What is there, without uids and versions."""
        groups = (await self.world.kube.list(GROUP_SNAPSHOTS)).items
        known = {group.metadata.uid: group.metadata.name for group in groups}
        shown = sorted((g.metadata.name, bool(g.status.ready_to_use), g.status.error is None) for g in groups)
        held = sorted(
            (known.get(c.spec.volume_group_snapshot_ref.uid, "gone"), c.spec.deletion_policy, len(c.snapshot_handles))
            for c in await self.world.group_contents()
        )
        claims = sorted(
            (one.spec.source.persistent_volume_claim_name, bool(one.status.ready_to_use), one.metadata.deleting)
            for one in await self.world.members()
        )
        return shown, held, claims, len(await self.world.contents()), len(self.world.storage)


@asynccontextmanager
async def _informers(client: Client) -> AsyncIterator[Informers]:
    found = Informers(client)
    found.start()
    try:
        yield found
    finally:
        await found.close()


async def play(steps: list[tuple[str, str]], kill_at: int, *, after: bool) -> tuple[GroupLife, Any]:
    """Run the steps, with one kill around a write of the loops; the state at the end."""
    async with apiserver.api_server() as server:
        life = GroupLife(server)
        life.left, life.after = kill_at, after
        await life.world.existing_group(BYSTANDER, to="nobody")
        life.world.storage.clear()
        for what, name in steps:
            await _step(life, what, name)
        await life.end()
        found = await life.state()
        await check(life)
        return life, found


async def _step(life: GroupLife, what: str, name: str) -> None:
    world = life.world
    with suppress(ApiNotFoundError, ApiConflictError, ApiAlreadyExistsError):
        match what:
            case "class":
                await world.group_classed(default=True)
            case "claims":
                await world.db()
            case "group" | "bare":
                await world.group(name, of_class="", bare=what == "bare")
            case "existing":
                await world.existing_group(f"old-{name}", to=name)
                await world.group(name, of_class="", source={"volumeGroupSnapshotContentName": f"old-{name}"})
            case "delete":
                await world.kube.delete(GROUP_SNAPSHOTS, name, "default")
            case "member":
                for member in (await world.members())[:1]:
                    await world.kube.delete(SNAPSHOTS, member.metadata.name, "default")
            case "retain":
                for content in await world.group_contents():
                    body = {"spec": {"deletionPolicy": "Retain"}}
                    await world.kube.patch(GROUP_CONTENTS, content.metadata.name, body)
            case "act":
                await world.act()
            case "work":
                await life.work()


async def check(life: GroupLife) -> None:
    """What always holds at the end."""
    groups = {g.metadata.uid: g for g in (await life.world.kube.list(GROUP_SNAPSHOTS)).items}
    assert not [g for g in groups.values() if g.metadata.deleting], "all that was deleted is gone"
    found = {content.metadata.name: content for content in await life.world.group_contents()}
    assert BYSTANDER in found, "a content whose group is missing is never deleted"
    handles = set()
    for name, content in found.items():
        ref, kept = content.spec.volume_group_snapshot_ref, content.spec.deletion_policy == "Retain"
        assert name == BYSTANDER or ref.uid in groups or not ref.uid or kept, content
        if name != BYSTANDER:
            handles.update(content.snapshot_handles)
    assert set(life.world.storage) <= handles, "no data without its content"
    for member in await life.world.members():
        owners = {owner.uid for owner in member.metadata.owner_references}
        assert owners & set(groups), "no member without its group"


LIVES = [
    [("class", ""), ("claims", ""), ("group", "a"), ("work", ""), ("act", ""), ("work", "")],
    [("class", ""), ("claims", ""), ("group", "a"), ("work", ""), ("act", ""), ("work", ""), ("delete", "a")],
    [("class", ""), ("claims", ""), ("bare", "a"), ("work", ""), ("act", ""), ("work", ""), ("delete", "a")],
    [("existing", "a"), ("work", ""), ("act", ""), ("work", ""), ("delete", "a"), ("work", "")],
    [("group", "a"), ("work", ""), ("class", ""), ("claims", ""), ("work", ""), ("delete", "a"), ("work", "")],
    [("class", ""), ("claims", ""), ("group", "a"), ("work", ""), ("act", ""), ("retain", ""), ("delete", "a")],
]


@pytest.mark.slow
@pytest.mark.parametrize("steps", LIVES, ids=range(len(LIVES)))
async def test_a_kill_around_each_write_of_a_group_changes_nothing_at_the_end(steps: list[tuple[str, str]]) -> None:
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
@examples(60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(("a", "b"))), max_size=14), st.integers(0, 14),
    st.booleans(),
)  # fmt: skip
def test_whatever_happens_to_groups_nothing_is_lost_or_left(
    steps: list[tuple[str, str]], kill_at: int, after: bool
) -> None:
    asyncio.run(_anything([("class", ""), ("claims", ""), *steps], kill_at, after=after))


async def _anything(steps: list[tuple[str, str]], kill_at: int, *, after: bool) -> None:
    await play(steps, kill_at, after=after)
