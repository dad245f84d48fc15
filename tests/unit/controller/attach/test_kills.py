"""The attacher killed before and after each API write and each effect of the driver, on a virtual clock.

However people attach and detach meanwhile: at rest, the storage has attached all that attachments say and nothing that
none holds, a volume of one node was never attached to two, and nothing of a deleted attachment or PV is left.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.controller.attach.world import FINALIZER, AttachWorld, serving
from tests.unit.controller.snapshots.world import Killed, Recording

from tonnage.base.errors import ApiAlreadyExistsError, ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import ATTACHMENTS, CSI_NODES, VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing import apiserver
from tonnage_box.testing.clock import run_virtual
from tonnage_box.testing.network_driver import NETWORK_DRIVER

NODES = ("n1", "n2")
QUIET = 5.0
"""Virtual seconds in which the controller comes to rest: more than its first retries."""
Step = tuple[str, str]


class AttachLife:
    """A cluster, a storage, and the controller, which is begun anew after each kill.

    left: effects (writes and driver calls) until the kill, -1 for none.
    """

    def __init__(self, server: ApiServer, left: int, *, after: bool) -> None:
        self.world = AttachWorld(apiserver.client(server))
        self._server, self.left, self._after = server, left, after
        self.effects = self.kills = 0
        self._dead = asyncio.Event()
        self.world.storage.fault = self._driver_called

    def _driver_called(self, call: str) -> None:
        """Before a call's effect, and after it: the process that asked is killed, and never hears the answer."""
        nodes = self.world.storage.volumes
        assert all(len(volume.nodes) <= 1 for name, volume in nodes.items() if name == "h-v"), "one node at a time"
        if call in ("publish", "unpublish"):
            self._effect(before=True)
        elif call.endswith("done"):
            self._effect(before=False)

    def _effect(self, *, before: bool) -> None:
        if self._dead.is_set():
            raise Killed
        if before:
            self.effects += 1
            self.left -= 1
        if self.left == -1 and before != self._after and self._armed:
            self._armed = False
            self.kills += 1
            self._dead.set()
            raise Killed

    async def rest(self) -> None:
        """Lives of the controller until one comes to rest."""
        while not await self.work():
            pass

    async def work(self) -> bool:
        """One life of the controller; whether it came to rest. Where it is killed, people act before the next."""
        self._dead.clear()
        client = Client(_Mortal(self._server.transport("system:admin"), self))
        async with serving(client, self.world.storage, LoopClock()):
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIET):
                    await self._dead.wait()
        return not self._dead.is_set()

    def arm(self, left: int) -> None:
        """Kill around the effect of that number."""
        self._armed, self.left = left >= 0, left

    _armed = False


class _Mortal(Recording):
    """Its process ends around a write."""

    def __init__(self, inner: Any, life: AttachLife) -> None:
        super().__init__(inner)
        self._life = life

    async def request(self, request: Any) -> Any:
        is_write = request.method != "GET"
        if is_write:
            self._life._effect(before=True)
        answer = await self.inner.request(request)
        if is_write:
            self._life._effect(before=False)
        return answer


async def _step(life: AttachLife, what: str, where: str) -> None:
    world = life.world
    with suppress(ApiNotFoundError, ApiAlreadyExistsError):
        match what:
            case "attach" | "share":
                await world.attach(where, "v" if what == "attach" else "shared")
            case "detach":
                await world.detach(names.attachment_name("h-v", NETWORK_DRIVER, where))
            case "unshare":
                await world.detach(names.attachment_name("h-shared", NETWORK_DRIVER, where))
            case "lose":
                await world.kube.delete(CSI_NODES, where)
            case "return":
                await world.node(where)
            case "remove":
                await world.kube.delete(VOLUMES, "v")
            case "work":
                await life.work()


async def play(steps: list[Step], kill_at: int, *, after: bool) -> tuple[AttachLife, Any]:
    """Run the steps with one kill; the state at the end."""
    async with apiserver.api_server() as server:
        life = AttachLife(server, kill_at, after=after)
        for node in NODES:
            await life.world.node(node)
        await life.world.volume("v")
        await life.world.volume("shared", "ReadWriteMany")
        await life.world.bind("v")
        life.arm(kill_at)
        for what, where in steps:
            await _step(life, what, where)
        await life.rest()
        life._armed = False
        return life, await check(life)


async def check(life: AttachLife) -> Any:
    """What always holds at rest; the state without uids."""
    world = life.world
    there = (await world.kube.list(ATTACHMENTS)).items
    volumes = {volume.metadata.name: volume for volume in (await world.kube.list(VOLUMES)).items}
    assert not [one for one in there if one.metadata.deleting], "all that was deleted is gone"
    assert not [v for v in volumes.values() if v.metadata.deleting and v.metadata.name not in _used(there)]
    shown = {(f"h-{one.volume_name}", f"id-{one.node_name}") for one in there if one.attached}
    real = {(name, node) for name, volume in world.storage.volumes.items() for node in volume.nodes}
    held = {(f"h-{one.volume_name}", f"id-{one.node_name}") for one in there if FINALIZER in one.metadata.finalizers}
    # An attachment may be held and not attached: its PV or CSINode went while a kill interrupted it.
    assert shown <= real <= held, "the storage has what the attachments say"
    for one in there:
        assert not one.attached or FINALIZER in one.metadata.finalizers
        assert not one.attached or FINALIZER in volumes[one.volume_name].metadata.finalizers
    return sorted(shown), sorted(volumes), sorted(one.metadata.name for one in there)


def _used(there: Any) -> set[str]:
    return {one.volume_name for one in there if FINALIZER in one.metadata.finalizers}


LIVES: list[list[Step]] = [
    [("attach", "n1"), ("work", ""), ("detach", "n1"), ("work", "")],
    [("attach", "n1"), ("work", ""), ("attach", "n2"), ("work", ""), ("detach", "n1"), ("work", "")],
    [("share", "n1"), ("share", "n2"), ("work", ""), ("lose", "n2"), ("unshare", "n2"), ("work", "")],
    [("attach", "n1"), ("work", ""), ("remove", ""), ("work", ""), ("detach", "n1"), ("work", "")],
    [("attach", "n1"), ("work", ""), ("detach", "n1"), ("attach", "n2"), ("work", "")],
]


@pytest.mark.slow
@pytest.mark.parametrize("steps", LIVES, ids=range(len(LIVES)))
def test_a_kill_around_each_write_and_call_changes_nothing_at_the_end(steps: list[Step]) -> None:
    life, wanted = run_virtual(play(steps, -1, after=False))
    assert life.effects
    kills = 0
    for at in range(life.effects):
        for after in (False, True):
            killed, found = run_virtual(play(steps, at, after=after))
            assert found == wanted, (at, after)
            kills += killed.kills
    assert kills == 2 * life.effects, "each of them hit"


STEPS = st.one_of(
    st.tuples(st.sampled_from(("attach", "detach", "share", "unshare", "lose", "return")), st.sampled_from(NODES)),
    st.sampled_from([("work", ""), ("remove", "")]),
)


@examples(60, deadline=None)
@given(st.lists(STEPS, max_size=14), st.integers(0, 10), st.booleans())
def test_whatever_happens_nothing_is_attached_twice_or_left(steps: list[Step], kill_at: int, after: bool) -> None:
    run_virtual(play(steps, kill_at, after=after))
