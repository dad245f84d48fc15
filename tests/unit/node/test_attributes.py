"""Bound claims get another VolumeAttributesClass, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import HostError, InvalidError, UnavailableError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage.node.attributes import RETRY_MAX
from tonnage.provisioning.claims.attributes import FAILED, MODIFYING
from tonnage.storage.pools.base.contract import PoolVolume
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing import apiserver
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30
MakeAttributes = Callable[..., Awaitable[None]]


class Slow(FakePool):
    """modify() takes `seconds`, and fails while `failure` is set. calls: what was asked."""

    seconds = 0.0
    failure: Exception | None = None

    def __init__(self) -> None:
        super().__init__("scratch", 10 * GIB, directories=False)
        self.calls: list[Mapping[str, str]] = []

    async def modify(self, name: str, parameters: Mapping[str, str]) -> PoolVolume:
        self.calls.append(dict(parameters))
        await asyncio.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        return await super().modify(name, parameters)


@pytest.fixture
def make_attributes(kube: Client) -> MakeAttributes:
    async def make(name: str, driver: str = names.DRIVER, **parameters: str) -> None:
        body = {"metadata": {"name": name}, "driverName": driver, "parameters": parameters}
        await kube.create(kinds.ATTRIBUTES_CLASSES, body)

    return make


class Scene:
    """A node with one bound claim `data`."""

    def __init__(self, node: FakeNode, pool: Slow, eventually: Eventually) -> None:
        self.node, self.pool, self.eventually, self.client = node, pool, eventually, node.client

    async def claim(self) -> PersistentVolumeClaim:
        return await self.node.claim("data")

    async def ask(self, name: str | None) -> None:
        await self.client.patch(kinds.CLAIMS, "data", {"spec": {"volumeAttributesClassName": name}}, "default")

    async def of_volume(self) -> str | None:
        volume = await self.client.get(kinds.VOLUMES, (await self.claim()).spec.volume_name)
        return volume.spec.volume_attributes_class_name

    async def erase(self) -> str:
        return (await self.pool.get((await self.claim()).spec.volume_name)).effective.get("erase", "")

    async def has(self, name: str | None) -> bool:
        status = (await self.claim()).status
        same = status.current_volume_attributes_class_name == name == await self.of_volume()
        return same and status.modify_volume_status is None and not status.conditions

    async def becomes(self, name: str | None) -> None:
        await self.eventually(lambda: self.has(name))

    async def state(self) -> tuple[str, str]:
        change = (await self.claim()).status.modify_volume_status
        return (change.status, change.target_volume_attributes_class_name) if change else ("", "")

    async def reaches(self, *wanted: str) -> None:
        async def is_so() -> bool:
            return await self.state() == wanted

        await self.eventually(is_so)

    async def conditions(self) -> dict[str, str]:
        return {c["type"]: c.get("message", "") for c in (await self.claim()).status.conditions}


@pytest.fixture
async def scene(make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually) -> Scene:
    pool = Slow()
    node = await make_node(pool=pool)
    await make_claim("data", "1Gi", storageClassName="late")
    await node.select("data")
    await eventually(lambda: node.is_bound("data"))
    return Scene(node, pool, eventually)


async def test_a_claim_gets_its_class_at_creation(
    make_node: MakeNode, make_claim: MakeClaim, make_attributes: MakeAttributes, eventually: Eventually,
    all_events: AllEvents,
) -> None:  # fmt: skip
    """The class comes later than the claim: it waits, says why, and begins at once."""
    pool = Slow()
    scene = Scene(await make_node(pool=pool), pool, eventually)
    await make_claim("data", "1Gi", storageClassName="late", volumeAttributesClassName="gold")
    await scene.node.select("data")
    await asyncio.sleep(30)
    (event,) = await all_events()
    assert event[1] == "ProvisioningFailed"
    assert 'VAC "gold" does not exist.' in event[2]
    assert await scene.node.volumes() == []
    began = asyncio.get_running_loop().time()
    await make_attributes("gold", erase="zero")
    await scene.becomes("gold")
    assert asyncio.get_running_loop().time() - began < 1, "virtual seconds: the class wakes the claim"
    assert await scene.erase() == "zero"
    assert pool.calls == [], "CreateVolume has it; a call now would be in the way of the first mount"


@pytest.mark.parametrize(
    ("driver", "parameters", "text"),
    [
        ("other.example.com", {"erase": "zero"}, 'VAC "gold" is of driver other.example.com'),
        (names.DRIVER, {"colour": "red"}, "cannot change the parameter 'colour': what can be changed is erase"),
    ],
)
async def test_a_class_that_cannot_be_had_is_rejected_by_name_at_creation(
    make_node: MakeNode, make_claim: MakeClaim, make_attributes: MakeAttributes, eventually: Eventually,
    all_events: AllEvents, kube: Client, driver: str, parameters: dict[str, str], text: str,
) -> None:  # fmt: skip
    pool = Slow()
    scene = Scene(await make_node(pool=pool), pool, eventually)
    await make_attributes("gold", driver, **parameters)
    await make_claim("data", "1Gi", storageClassName="late", volumeAttributesClassName="gold")
    await scene.node.select("data")

    async def told() -> bool:
        return any(text in message for _, reason, message in await all_events() if reason == "ProvisioningFailed")

    await eventually(told)
    assert await scene.node.volumes() == []
    await kube.delete(kinds.ATTRIBUTES_CLASSES, "gold")
    await kube.patch(kinds.ATTRIBUTES_CLASSES, "gold", {"metadata": {"finalizers": None}})
    await make_attributes("gold", erase="zero")
    await scene.becomes("gold")


async def test_a_change_is_one_call_and_two_writes_and_back_again(
    scene: Scene, make_attributes: MakeAttributes, all_events: AllEvents
) -> None:
    await make_attributes("gold", erase="zero")
    await make_attributes("plain", erase="")
    await scene.ask("gold")
    await scene.becomes("gold")
    assert await scene.erase() == "zero"
    before = (await scene.claim()).metadata.version
    await scene.ask("plain")
    await scene.becomes("plain")
    assert await scene.erase() == "", "an empty value restores what the StorageClass says"
    after = (await scene.claim()).metadata.version
    # The user's patch, the PV, the claim; Events come meanwhile.
    events = [r for _, r, _ in await all_events() if r == "VolumeModifySuccessful"]
    assert after - before <= 3 + len(events)
    assert scene.pool.calls == [{"erase": "zero"}, {"erase": ""}]
    assert len(events) == 2


async def test_a_long_change_says_that_it_is_in_progress_and_ends_before_another(
    scene: Scene, make_attributes: MakeAttributes, all_events: AllEvents
) -> None:
    await make_attributes("gold", erase="zero")
    await make_attributes("hard", erase="shred")
    await scene.ask("gold")
    await scene.becomes("gold")
    scene.pool.seconds = 5.0
    await scene.ask("hard")
    await scene.reaches("InProgress", "hard")
    assert await scene.conditions() == {MODIFYING: 'Modifying volume to "hard" is in progress.'}
    await scene.ask("gold")
    await scene.becomes("gold")
    assert scene.pool.calls == [{"erase": "zero"}, {"erase": "shred"}, {"erase": "zero"}]
    assert "VolumeModify" in [reason for _, reason, _ in await all_events()]


async def test_what_the_driver_rejects_is_infeasible_and_another_class_is_tried_at_once(
    scene: Scene, make_attributes: MakeAttributes, all_events: AllEvents
) -> None:
    await make_attributes("bad", erase="shred")
    await make_attributes("gold", erase="zero")
    scene.pool.failure = InvalidError("this disk cannot be shredded")
    await scene.ask("bad")
    await scene.reaches("Infeasible", "bad")
    assert await scene.conditions() == {
        MODIFYING: 'Modifying volume to "bad" failed. Waiting for retry.',
        FAILED: "this disk cannot be shredded",
    }
    (condition,) = [c for c in (await scene.claim()).status.conditions if c["type"] == FAILED]
    assert condition["reason"] == "InvalidArgument"
    await asyncio.sleep(3.5 * RETRY_MAX)
    assert len(scene.pool.calls) == 4, "it is tried again"
    failed = [m for _, r, m in await all_events() if r == "VolumeModifyFailed"]
    assert len(failed) == 1, "said once"
    scene.pool.failure = None
    began = asyncio.get_running_loop().time()
    await scene.ask("gold")
    await scene.becomes("gold")
    assert asyncio.get_running_loop().time() - began < 1


async def test_a_rejected_change_is_taken_back(
    scene: Scene, make_attributes: MakeAttributes, all_events: AllEvents, kube: Client
) -> None:
    await make_attributes("bad", colour="red")
    await scene.ask("bad")
    await scene.reaches("Infeasible", "bad")
    await scene.ask(None)
    await scene.becomes(None)
    assert [r for _, r, _ in await all_events()].count("VolumeModifyCanceled") == 1
    await scene.ask("none-such")
    await scene.reaches("Pending", "none-such")
    await scene.ask("")
    await scene.becomes(None)
    assert ("data", "VolumeModifyFailed", 'VAC "none-such" does not exist.') in await all_events()


async def test_a_class_that_appears_later_wakes_the_claim(scene: Scene, make_attributes: MakeAttributes) -> None:
    await scene.ask("gold")
    await scene.reaches("Pending", "gold")
    await make_attributes("gold", erase="zero")
    await scene.becomes("gold")


async def test_a_class_of_another_driver_is_infeasible(scene: Scene, make_attributes: MakeAttributes) -> None:
    await make_attributes("other", "csi.example.com", erase="zero")
    await scene.ask("other")
    await scene.reaches("Infeasible", "other")
    assert 'VAC "other" is of driver csi.example.com' in (await scene.conditions())[FAILED]
    assert scene.pool.calls == []


@pytest.mark.parametrize(
    ("failure", "is_final"), [(HostError("the device is gone"), True), (UnavailableError("busy"), False)]
)
async def test_a_failure_is_tried_again_until_it_ends(
    scene: Scene, make_attributes: MakeAttributes, failure: Exception, *, is_final: bool
) -> None:
    """A failure that is final lets another class come first; one without an outcome does not, also after a restart."""
    await make_attributes("gold", erase="zero")
    await make_attributes("hard", erase="shred")
    scene.pool.failure = failure
    await scene.ask("gold")
    await scene.reaches("InProgress", "gold")
    await asyncio.sleep(10)
    assert (FAILED in await scene.conditions()) is is_final
    await scene.node.kill_agent()
    await scene.node.start_agent()
    scene.pool.calls.clear()
    await scene.ask("hard")
    await asyncio.sleep(RETRY_MAX)
    assert ({"erase": "shred"} in scene.pool.calls) is is_final
    scene.pool.failure = None
    await asyncio.sleep(RETRY_MAX)
    await scene.becomes("hard")
    assert await scene.erase() == "shred"


async def test_after_a_failure_a_claim_goes_back_to_none_only_once_the_change_has_ended(
    scene: Scene, make_attributes: MakeAttributes
) -> None:
    """The driver may have done it: a volume with other attributes than its claim says would be a lie."""
    await make_attributes("gold", erase="zero")
    scene.pool.failure = HostError("the cgroup is gone")
    await scene.ask("gold")
    await scene.reaches("InProgress", "gold")
    await scene.ask(None)
    await asyncio.sleep(60)
    scene.pool.failure = None
    await asyncio.sleep(RETRY_MAX)
    await scene.becomes("gold")
    assert await scene.erase() == "zero"


async def test_an_idle_agent_calls_the_driver_once_for_each_class_after_a_restart(
    scene: Scene, make_attributes: MakeAttributes
) -> None:
    await make_attributes("gold", erase="zero")
    await scene.ask("gold")
    await scene.becomes("gold")
    version = (await scene.claim()).metadata.resource_version
    await scene.node.kill_agent()
    scene.pool.calls.clear()
    await scene.node.start_agent()
    await asyncio.sleep(3 * RETRY_MAX)
    assert scene.pool.calls == [{"erase": "zero"}]
    assert (await scene.claim()).metadata.resource_version == version


class Cut:
    """Stops an agent at the at-th point: before or after a write of a claim or PV, or a call of modify()."""

    def __init__(self, agent: Client, pool: Slow, at: int) -> None:
        self.reached, self._ended = asyncio.Event(), asyncio.Event()
        self._at, self._pool, self._patch, self._modify = at, pool, agent.patch, pool.modify
        agent.patch = self._cut_patch  # type: ignore[method-assign]
        pool.modify = self._cut_modify  # type: ignore[method-assign]

    async def end(self) -> None:
        """The driver is another process: it goes on with a call whose caller was killed."""
        self._at = 0
        self._ended.set()
        await asyncio.sleep(1)
        self._pool.modify = self._modify  # type: ignore[method-assign]

    async def _point(self) -> None:
        self._at -= 1
        if self._at == 0:
            self.reached.set()
            await self._ended.wait()

    async def _cut_patch(self, kind: Any, *args: Any, **more: Any) -> Any:
        if kind not in (kinds.CLAIMS, kinds.VOLUMES):
            return await self._patch(kind, *args, **more)
        await self._point()
        done = await self._patch(kind, *args, **more)
        await self._point()
        return done

    async def _cut_modify(self, name: str, parameters: Mapping[str, str]) -> PoolVolume:
        await self._point()
        done = await self._modify(name, parameters)
        await self._point()
        return done


WANTED = {"gold": "zero", "hard": "shred", "plain": "discard"}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "asked", "then", "points"), [
    (None, "gold", "gold", 8), (None, "gold", "hard", 8), (None, "gold", None, 8),
    ("gold", "hard", "hard", 8), ("gold", "hard", "gold", 8), ("gold", "hard", "plain", 8),
    (None, "bad", "bad", 4), (None, "bad", "gold", 4), (None, "bad", None, 4), ("gold", "bad", "gold", 4),
])  # fmt: skip
async def test_a_kill_at_any_point_ends_with_pv_claim_and_pool_agreeing(
    scene: Scene, make_attributes: MakeAttributes, api_server: ApiServer,
    before: str | None, asked: str, then: str | None, points: int,
) -> None:  # fmt: skip
    """asked: the change that is cut off. then: what the user wants when the next agent starts.

    points: before and after the writes and calls, that of the present class at the start of the agent included.
    """
    for name, value in WANTED.items():
        await make_attributes(name, erase=value)
    await make_attributes("bad", colour="red")
    at = 1
    while await _is_cut(scene, apiserver.client(api_server), at, before, asked):
        await _take_back(scene, then)
        await scene.node.start_agent()
        await asyncio.sleep(2.5 * RETRY_MAX)  # between two tries: at 2, the third one may be half done
        has = await scene.of_volume()
        assert (await scene.claim()).status.current_volume_attributes_class_name == has
        assert await scene.erase() == (WANTED[has] if has else "")
        if then == "bad":
            assert await scene.state() == ("Infeasible", "bad")
        elif then is not None:
            assert await scene.has(then), f"killed at point {at}"
        at += 1
    assert at - 1 == points


async def _is_cut(scene: Scene, killed: Client, at: int, before: str | None, asked: str) -> bool:
    """Ask for a class, and kill the agent at the at-th point; False if it needs fewer."""
    await _begin(scene, before, is_first=at == 1)
    await scene.node.kill_agent()
    person, scene.node.client = scene.node.client, killed
    cut = Cut(killed, scene.pool, at)
    await scene.node.start_agent()
    scene.node.client = person
    await asyncio.sleep(5)
    await scene.ask(asked)
    try:
        await asyncio.wait_for(cut.reached.wait(), 30)
    except TimeoutError:
        return False
    await scene.node.kill_agent()
    await cut.end()
    return True


async def _take_back(scene: Scene, name: str | None) -> None:
    current = (await scene.claim()).status.current_volume_attributes_class_name
    if name is not None or current is None:  # else the API server rejects it
        await scene.ask(name)


async def _begin(scene: Scene, name: str | None, *, is_first: bool) -> None:
    """A new claim `data` with that class, or none."""
    if not is_first:
        await scene.node.release("data")
        await scene.eventually(lambda: _no_volumes(scene.node))
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {"name": "data"}, "spec": {**spec, "storageClassName": "late"}}
        await scene.client.create(kinds.CLAIMS, body, "default")
        await scene.node.select("data")
        await scene.eventually(lambda: scene.node.is_bound("data"))
    if name is not None:
        await scene.ask(name)
        await scene.becomes(name)


async def _no_volumes(node: FakeNode) -> bool:
    return await node.volumes() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
async def test_whatever_happens_meanwhile_pv_claim_and_pool_agree_in_the_end(
    scene: Scene, make_attributes: MakeAttributes, seed: int
) -> None:
    """Users, kills, slow and failing calls at random; then peace."""
    choose = random.Random(seed)
    for name, value in WANTED.items():
        await make_attributes(name, erase=value)
    await make_attributes("bad", colour="red")
    failures = (None, None, UnavailableError("busy"), HostError("the device is gone"), InvalidError("not on this disk"))
    asked: str | None = None
    for _ in range(15):
        what = choose.choice(("ask", "ask", "kill", "failure", "slow", "rest"))
        if what == "ask":
            asked = choose.choice(("gold", "hard", "plain", "bad", "none-such", None))
            await _take_back(scene, asked)
        elif what == "kill":
            await scene.node.kill_agent()
            await asyncio.sleep(choose.choice((0.0, 20.0)))
            await scene.node.start_agent()
        elif what == "failure":
            scene.pool.failure = choose.choice(failures)
        elif what == "slow":
            scene.pool.seconds = choose.choice((0.0, 0.5, 5.0))
        await asyncio.sleep(choose.choice((0.0, 0.01, 0.4, 3.0, 100.0)))
    scene.pool.failure, scene.pool.seconds = None, 0.0
    await asyncio.sleep(3 * RETRY_MAX)
    wanted = (await scene.claim()).spec.volume_attributes_class_name
    status, has = (await scene.claim()).status, await scene.of_volume()
    assert status.current_volume_attributes_class_name == has
    assert await scene.erase() == (WANTED[has] if has else "")
    if wanted in WANTED:
        assert has == wanted
    states = {"bad": ("Infeasible", "bad"), "none-such": ("Pending", "none-such")}
    assert await scene.state() == states.get(wanted or "", ("", ""))


async def test_a_watch_that_is_behind_repeats_nothing(
    scene: Scene, make_attributes: MakeAttributes, all_events: AllEvents
) -> None:
    """The agent's own writes come back later than its next look."""
    await make_attributes("gold", erase="zero")
    scene.pool.seconds = 5.0
    await scene.ask("gold")
    await scene.reaches("InProgress", "gold")
    claim = await scene.claim()
    volume = await scene.client.get(kinds.VOLUMES, claim.spec.volume_name)
    await scene.becomes("gold")
    context = scene.node.agents[-1].context
    context.volumes.put(volume)
    context.claims.put(claim)
    await asyncio.sleep(60)
    assert len(scene.pool.calls) == 1
    events = (await scene.client.list(kinds.EVENTS)).items
    assert [e.count for e in events if e.reason == "VolumeModifySuccessful"] == [1]


class _Older:
    """A transport to an API server that does not have the kind yet."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.asked = 0
        self.is_older = True

    async def request(self, request: Request) -> Response:
        if self.is_older and kinds.ATTRIBUTES_CLASSES.plural in request.path:
            self.asked += 1
            return Response(404, b"404 page not found\n")
        return await self._inner.request(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()


async def test_on_a_server_without_the_kind_the_agent_works_and_says_so_once(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, api_server: ApiServer, all_events: AllEvents,
    make_attributes: MakeAttributes, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    pool, line = Slow(), _Older(apiserver.client(api_server).transport)
    node = await make_node(pool=pool, agent=False)
    node.client = Client(line)
    agent = await node.start_agent()
    node.client = apiserver.client(api_server)
    for name, spec in (("plain", {}), ("data", {"volumeAttributesClassName": "gold"})):
        await make_claim(name, "1Gi", storageClassName="late", **spec)
        await node.select(name)
    await eventually(lambda: node.is_bound("plain"))
    assert agent.unsynced() == []
    await asyncio.sleep(600)
    assert 8 <= line.asked <= 14, "once a minute"
    assert sum("kind not served" in record.getMessage() for record in caplog.records) == 1
    (text,) = {message for about, _, message in await all_events() if about == "data"}
    assert "this API server serves no VolumeAttributesClass (Kubernetes 1.34 does)" in text
    line.is_older = False  # upgraded
    await make_attributes("gold", erase="zero")
    await asyncio.sleep(90)
    await Scene(node, pool, eventually).becomes("gold")
