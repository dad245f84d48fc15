"""The loops of snapshots and groups killed before and after each of their writes, and begun anew: the same end.

Whatever the order of what people do meanwhile: no data or content is left without what it is of unless its policy is
Retain, and no content of another snapshot is touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.controller.contexts import context
from tests.unit.controller.snapshots.groupworld import GroupWorld
from tests.unit.controller.snapshots.world import Killed, Recording

from tonnage.base.errors import ApiAlreadyExistsError, ApiConflictError, ApiNotFoundError, UnavailableError
from tonnage.controller.snapshots.role import SnapshotLoops
from tonnage.kubernetes.api.kinds import CLAIMS, GROUP_SNAPSHOTS, SNAPSHOTS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.claims.snapshot_shape import GROUP, SINGLE, SnapshotShape
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing import apiserver

ROUNDS = 25
BYSTANDER = "bystander"
"""A content whose snapshot is not there."""
USUAL = (ApiConflictError, ApiNotFoundError, UnavailableError)
"""Errors after which the queue repeats."""
Steps = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Scene:
    """One shape: what people do with it, and what its world has for that. most: of Hypothesis' steps and kills."""

    shape: SnapshotShape[Any, Any, Any]
    steps: tuple[str, ...]
    most: tuple[int, int, int]

    async def step(self, world: GroupWorld, what: str, name: str) -> None:
        """What people do."""
        is_single, contents = self.shape is SINGLE, self.shape.contents
        match what:
            case "class":
                await (world.classed(default=True) if is_single else world.group_classed(default=True))
            case "claim":
                await (world.bound() if is_single else world.db())
            case "make" | "bare":
                bare = what == "bare"
                await (world.snapshot(name, bare=bare) if is_single else world.group(name, of_class="", bare=bare))
            case "existing" if is_single:
                await world.existing(f"old-{name}", to=name)
                await world.snapshot(name, source={"volumeSnapshotContentName": f"old-{name}"})
            case "existing":
                await world.existing_group(f"old-{name}", to=name)
                await world.group(name, of_class="", source={"volumeGroupSnapshotContentName": f"old-{name}"})
            case "delete":
                await world.kube.delete(self.shape.snapshots, name, "default")
            case "member":
                for member in (await world.members())[:1]:
                    await world.kube.delete(SNAPSHOTS, member.metadata.name, "default")
            case "unclaim":
                await world.kube.delete(CLAIMS, "data", "default")
            case "retain":
                for content in (await world.kube.list(contents)).items:
                    await world.kube.patch(contents, content.metadata.name, {"spec": {"deletionPolicy": "Retain"}})
            case "act":
                await world.act()

    def ids(self, content: Any) -> set[str]:
        """The data that a content has."""
        return {content.handle} - {""} if self.shape is SINGLE else set(content.snapshot_handles)


SINGLES = Scene(
    SINGLE, ("make", "bare", "existing", "delete", "claim", "unclaim", "class", "retain", "act", "work"), (16, 8, 100)
)
GROUPS = Scene(
    GROUP, ("make", "bare", "existing", "delete", "claim", "member", "class", "retain", "act", "work"), (14, 14, 60)
)


class Life:
    """A cluster and the loops, which are made anew after each kill. left: writes until the next one."""

    def __init__(self, server: ApiServer, scene: Scene) -> None:
        self.world, self.scene = GroupWorld(apiserver.client(server)), scene
        self._server, self.kills, self.left, self.after = server, 0, -1, False
        self.writes = 0
        self.retained: set[str] = set()  # data whose content was being deleted when its policy became Retain

    async def step(self, what: str, name: str) -> None:
        """One thing happens; what cannot be done does not matter."""
        if what == "retain":
            ending = [one for one in (await self.all())[1] if one.metadata.deleting]
            self.retained.update(*(self.scene.ids(content) for content in ending))
        with suppress(ApiNotFoundError, ApiConflictError, ApiAlreadyExistsError):
            await (self.work() if what == "work" else self.scene.step(self.world, what, name))

    async def work(self) -> None:
        """One life of the loops: they look at each object until nothing changes, or until they are killed."""
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
        for group in (await self.world.kube.list(GROUP_SNAPSHOTS)).items:
            with suppress(*USUAL):
                await groups.reconcile(group.key)
        for snapshot in (await self.world.kube.list(SNAPSHOTS)).items:
            with suppress(*USUAL):
                await snapshots.reconcile(snapshot.key)

    async def end(self) -> None:
        """All comes to rest; a kill that is still to come comes now."""
        for _ in range(6):
            await self.work()
            await self.world.act()

    async def all(self) -> tuple[dict[str, Any], list[Any]]:
        """Snapshots by uid, and contents."""
        shape, kube = self.scene.shape, self.world.kube
        found = (await kube.list(shape.snapshots)).items
        return {one.metadata.uid: one for one in found}, list((await kube.list(shape.contents)).items)

    async def state(self) -> Any:
        """What is there, without uids and versions."""
        shape = self.scene.shape
        snapshots, contents = await self.all()
        shown = sorted(
            (s.metadata.name, s.metadata.deleting, bool(s.status.ready_to_use), s.status.error is None)
            for s in snapshots.values()
        )
        held = sorted(
            (
                shape.ref(one).name, one.spec.deletion_policy, bool(one.status.ready_to_use), len(self.scene.ids(one)),
                shape.ref(one).uid in snapshots,
            )
            for one in contents
        )  # fmt: skip
        members = sorted(
            (one.spec.source.persistent_volume_claim_name, bool(one.status.ready_to_use), one.metadata.deleting)
            for one in await self.world.members()
        )
        return shown, held, members, len(await self.world.contents()), len(self.world.storage)

    async def check(self) -> None:
        """What always holds at the end."""
        shape, handles = self.scene.shape, set[str]()
        snapshots, contents = await self.all()
        assert not [s for s in snapshots.values() if s.metadata.deleting], "all that was deleted is gone"
        found = {content.metadata.name: content for content in contents}
        assert found.pop(BYSTANDER, None), "a content whose snapshot is missing is never deleted"
        for content in found.values():
            uid, kept = shape.ref(content).uid, content.spec.deletion_policy == "Retain"
            assert uid in snapshots or not uid or kept, content
            handles |= self.scene.ids(content)
        data = set(self.world.storage)
        assert data - self.retained <= handles, "no data without its content"
        if shape is SINGLE:
            assert handles <= data, "nor the other way round"
        for member in await self.world.members() if shape is GROUP else ():
            assert {owner.uid for owner in member.metadata.owner_references} & set(snapshots), "no member alone"


@asynccontextmanager
async def _informers(client: Client) -> AsyncIterator[Informers]:
    found = Informers(client)
    found.start()
    try:
        yield found
    finally:
        await found.close()


async def play(scene: Scene, steps: Steps, kill_at: int, *, after: bool) -> tuple[Life, Any]:
    """Run the steps, with one kill around a write of the loops; the state at the end."""
    async with apiserver.api_server() as server:
        life = Life(server, scene)
        life.left, life.after = kill_at, after
        await (
            life.world.existing(BYSTANDER, uid="gone", to="nobody")
            if scene is SINGLES
            else life.world.existing_group(BYSTANDER, to="nobody")
        )
        life.world.storage.clear()  # the data of the bystander is another agent's
        for what, name in steps:
            await life.step(what, name)
        await life.end()
        found = await life.state()
        await life.check()
        return life, found


_READY = (("class", ""), ("claim", ""), ("make", "a"), ("work", ""), ("act", ""), ("work", ""))
_BARE = (("class", ""), ("claim", ""), ("bare", "a"), ("work", ""))
LIVES: list[tuple[Scene, Steps]] = [
    *((scene, (*_READY, ("delete", "a"))) for scene in (SINGLES, GROUPS)),
    *((scene, (*_BARE, ("act", ""), ("work", ""), ("delete", "a"))) for scene in (SINGLES, GROUPS)),
    *(
        (scene, (("class", ""), ("existing", "a"), ("work", ""), ("act", ""), ("work", ""), ("delete", "a"), ("work", "")))
        for scene in (SINGLES, GROUPS)
    ),
    *(
        (scene, (("make", "a"), ("work", ""), ("class", ""), ("claim", ""), ("work", ""), ("delete", "a"), ("work", "")))
        for scene in (SINGLES, GROUPS)
    ),
    (SINGLES, (*_BARE, ("retain", ""), ("delete", "a"), ("work", ""))),
    (SINGLES, (*_READY[:4], ("delete", "a"), ("make", "a"), ("work", ""))),
    (GROUPS, _READY),
    (GROUPS, (*_READY[:5], ("retain", ""), ("delete", "a"))),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "steps"), LIVES, ids=range(len(LIVES)))
async def test_a_kill_around_each_write_changes_nothing_at_the_end(scene: Scene, steps: Steps) -> None:
    life, wanted = await play(scene, steps, -1, after=False)
    assert life.writes
    kills = 0
    for at in range(life.writes):
        for after in (False, True):
            killed, found = await play(scene, steps, at, after=after)
            assert found == wanted, (at, after)
            kills += killed.kills
    assert kills == 2 * life.writes, "each of them hit"


@pytest.mark.slow
@pytest.mark.parametrize("scene", [SINGLES, GROUPS], ids=["single", "group"])
def test_whatever_happens_nothing_is_lost_or_left(scene: Scene) -> None:
    most, kills, count = scene.most

    # Not made smaller: a failure is short enough to be read, and each try takes a while.
    @examples(count, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
    @given(
        st.lists(st.tuples(st.sampled_from(scene.steps), st.sampled_from(("a", "b"))), max_size=most),
        st.integers(0, kills),
        st.booleans(),
    )
    def anything(steps: list[tuple[str, str]], kill_at: int, after: bool) -> None:
        asyncio.run(_played(scene, [("class", ""), ("claim", ""), *steps], kill_at, after=after))

    anything()


async def _played(scene: Scene, steps: Steps, kill_at: int, *, after: bool) -> None:
    await play(scene, steps, kill_at, after=after)
