"""All volumes of a pod or none, and what does not fit goes back with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass, MakePod
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30


def _sent_back(node: FakeNode, *claims: str, times: str = "1") -> Any:
    async def ask() -> bool:
        for name in claims:
            meta = (await node.claim(name)).metadata
            if names.SELECTED_NODE in meta.annotations or names.NODE_LABEL in meta.labels:
                return False
            assert meta.annotations[names.RESCHEDULES] == times
        return True

    return ask


def _withdrawn(all_events: AllEvents) -> Any:
    async def ask() -> list[tuple[str, str]]:
        return [(about, text) for about, reason, text in await all_events() if reason == "Rescheduled"]

    return ask


async def test_siblings_sent_one_by_one_are_made_together(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await scratch_pod("app", "4Gi", "6Gi")
    await node.select("app-v0")
    await asyncio.sleep(0.15)
    assert await node.volumes() == [], "it waits for the other"
    assert await node.publishes("6Gi", "6Gi"), "but it is promised"
    await node.select("app-v1")
    await eventually(lambda: node.is_bound("app-v0"))
    await eventually(lambda: node.is_bound("app-v1"))
    await eventually(lambda: node.publishes("0", "0"))


async def _make_alone(node: FakeNode, claim: str) -> None:
    """Send a claim of a pod with several as if it were the only one: what older agents made."""
    uid = (await node.claim(claim)).metadata.uid
    await node.client.patch(kinds.CLAIMS, claim, {"metadata": {"annotations": {names.SINGLE_CLAIM: uid}}}, "default")
    await node.select(claim)


async def _note(node: FakeNode, *claims: str) -> None:
    """What the controller writes on plain claims of one pod."""
    for claim in claims:
        notes = {names.CLAIM_GROUP: ",".join(claims)}
        await node.client.patch(kinds.CLAIMS, claim, {"metadata": {"annotations": notes}}, "default")


async def test_without_a_sibling_that_does_not_come_a_claim_goes_back(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("10Gi")
    await scratch_pod("app", "4Gi", "4Gi")
    await node.select("app-v0")
    await eventually(_sent_back(node, "app-v0"))
    assert await eventually(_withdrawn(all_events)) == [
        ("app", "node node-1: app-v1 of this pod did not get this node too; rescheduling")
    ]
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await node.select("app-v0", "app-v1")
    await eventually(lambda: node.is_bound("app-v0"))
    await eventually(lambda: node.is_bound("app-v1"))


async def test_a_pod_that_does_not_fit_gets_nothing_and_is_told_once(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("30Gi")
    await eventually(lambda: node.publishes("30Gi", "30Gi"))
    await scratch_pod("app", "20Gi", "20Gi")
    await node.select("app-v0", "app-v1")
    await eventually(_sent_back(node, "app-v0", "app-v1"))
    await eventually(lambda: node.publishes("30Gi", "30Gi"))
    assert await node.volumes() == []
    assert await eventually(_withdrawn(all_events)) == [
        (
            "app",
            "insufficient storage on node node-1, pool scratch: pod needs 40Gi (2 x 20Gi), 30Gi free; rescheduling",
        )
    ]
    assert not [e for e in await all_events() if e[1] == "ProvisioningFailed"]


async def test_plain_claims_belong_together_by_their_annotation(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("30Gi")
    for name, others in (("one", "two"), ("two", "one")):
        await make_claim(name, "20Gi", storageClassName="late", annotations={names.CLAIM_GROUP: others})
    await node.select("one")
    await asyncio.sleep(0.1)
    await node.select("two")
    await eventually(_sent_back(node, "one", "two"))
    assert await node.volumes() == []
    assert len(await eventually(_withdrawn(all_events))) == 1


async def test_from_the_third_time_on_it_goes_back_slowly_and_says_that_no_node_has_room(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("30Gi")
    await eventually(lambda: node.publishes("30Gi", "30Gi"))
    await scratch_pod("app", "20Gi", "20Gi")
    took = []
    loop = asyncio.get_running_loop()
    for time in range(1, 6):
        begin = loop.time()
        await node.select("app-v0", "app-v1")
        await eventually(_sent_back(node, "app-v0", "app-v1", times=str(time)))
        took.append(loop.time() - begin)
    assert max(took[:2]) < 0.5
    assert took[2] >= 1.0
    assert took[3] >= 2.0
    assert took[4] >= 4.0
    texts = {text for _, text in await eventually(_withdrawn(all_events))}
    assert "insufficient storage on all nodes: pod needs 40Gi (2 x 20Gi), at most 30Gi free" in texts


async def test_room_that_comes_up_while_a_claim_is_held_is_used(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await make_claim("old", "8Gi", storageClassName="late")
    await node.select("old")
    await eventually(lambda: node.is_bound("old"))
    await make_claim("new", "8Gi", storageClassName="late", annotations={names.RESCHEDULES: "7"})
    await node.select("new")
    await asyncio.sleep(0.5)
    assert await node.phase("new") == "Pending"
    await node.release("old")
    await eventually(lambda: node.is_bound("new"))


async def test_when_somebody_else_took_the_room_the_driver_says_so_and_the_claim_goes_back(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("10Gi")
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    async with CsiClient(node.driver.endpoints[0]) as stranger:
        await stranger.create_volume("theirs", 8 * GIB, [VolumeCapability()])
    await scratch_pod("app", "4Gi")
    await node.select("app-v0")
    await eventually(_sent_back(node, "app-v0"))
    failed = [text for _, reason, text in await all_events() if reason == "ProvisioningFailed"]
    assert "code = ResourceExhausted" in failed[0]
    await eventually(lambda: node.publishes("2Gi", "2Gi"))


async def test_a_claim_sent_back_and_sent_again_is_served(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await scratch_pod("big", "8Gi")
    await node.select("big-v0")
    await eventually(lambda: node.is_bound("big-v0"))
    await scratch_pod("app", "4Gi")
    await node.select("app-v0")
    await eventually(_sent_back(node, "app-v0"))
    await node.release("big-v0")
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await node.select("app-v0")
    await eventually(lambda: node.is_bound("app-v0"))


async def test_a_sibling_already_made_is_given_back_while_the_pod_has_no_node(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await scratch_pod("app", "6Gi", "6Gi")
    await _make_alone(node, "app-v0")
    await eventually(lambda: node.is_bound("app-v0"))
    await node.select("app-v1")

    async def leaving() -> bool:
        return (await node.claim("app-v0")).metadata.deleting

    await eventually(leaving)
    await asyncio.sleep(0.3)
    assert names.SELECTED_NODE in (await node.claim("app-v1")).metadata.annotations, "held until the other is gone"
    await node.client.patch(kinds.CLAIMS, "app-v0", {"metadata": {"finalizers": None}}, "default")
    await eventually(_sent_back(node, "app-v1"))
    assert await node.is_gone(kinds.CLAIMS, "app-v0", "default")


class _SlowBinding:
    """The first write of each binding takes so long that the room is read anew before."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self.stream, self.close = transport, transport.stream, transport.close

    async def request(self, request: Request) -> Response:
        if request.method == "PATCH" and "/persistentvolumes/" in request.path:
            await asyncio.sleep(3)
        return await self._transport.request(request)


async def test_a_sibling_that_is_made_and_not_yet_bound_is_not_sent_back(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi", agent=False)
    quick, node.client = node.client, Client(_SlowBinding(node.client.transport))
    await node.start_agent()
    node.client = quick
    await scratch_pod("app", "6Gi", "6Gi")
    await _make_alone(node, "app-v0")
    await eventually(lambda: node.publishes("4Gi", "4Gi"))
    await asyncio.sleep(1)
    assert not await node.is_bound("app-v0")
    await node.select("app-v1")

    async def leaving() -> bool:
        return (await node.claim("app-v0")).metadata.deleting

    await eventually(leaving)
    given_back = await node.claim("app-v0")
    assert given_back.spec.volume_name, "it was bound first"
    assert names.RESCHEDULES not in given_back.metadata.annotations
    await node.client.patch(kinds.CLAIMS, "app-v0", {"metadata": {"finalizers": None}}, "default")
    await eventually(_sent_back(node, "app-v1"))


class _SlowSending:
    """Claims go back only when `goes_on`."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self.stream, self.close = transport, transport.stream, transport.close
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()

    async def request(self, request: Request) -> Response:
        if _sends_back(request):
            self.begun.set()
            await self.goes_on.wait()
        return await self._transport.request(request)


class _LateWatch:
    """Watches tell nothing of what happens after the first claim has gone back until `goes_on`."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self.close = transport, transport.close
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.asked = 0

    async def request(self, request: Request) -> Response:
        if _sends_back(request):
            self.goes_on.clear()
            self.asked += 1
        return await self._transport.request(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._transport.stream(request) as chunks:
            yield self._held(chunks, claims="persistentvolumeclaims" in request.path)

    async def _held(self, chunks: AsyncIterator[bytes], *, claims: bool) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if claims:
                await self.goes_on.wait()
            yield chunk


def _sends_back(request: Request) -> bool:
    return request.method == "PATCH" and names.RESCHEDULES.encode() in (request.body or b"")


async def test_room_that_comes_up_while_a_claim_goes_back_is_not_for_its_sibling(
    make_node: MakeNode, make_claim: MakeClaim, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi", agent=False)
    quick = node.client
    slow = _SlowSending(quick.transport)
    node.client = Client(slow)
    await node.start_agent()
    node.client = quick
    await make_claim("old", "8Gi", storageClassName="late")
    await node.select("old")
    await eventually(lambda: node.is_bound("old"))
    await scratch_pod("app", "4Gi", "4Gi")
    await node.select("app-v0")
    await slow.begun.wait()
    await node.release("old")
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await node.select("app-v1")
    await asyncio.sleep(600)
    assert await node.volumes() == []
    slow.goes_on.set()
    await eventually(_sent_back(node, "app-v0", "app-v1"))
    await asyncio.sleep(600)
    assert await node.volumes() == []
    await node.select("app-v0", "app-v1")
    await eventually(lambda: node.is_bound("app-v0"))
    await eventually(lambda: node.is_bound("app-v1"))


@pytest.mark.parametrize("before", [0, 7])
async def test_claims_that_went_back_are_neither_made_nor_sent_again_before_the_watch_shows_it(
    make_node: MakeNode, make_claim: MakeClaim, scratch_pod: MakePod, eventually: Eventually, before: int
) -> None:
    node = await make_node("10Gi", agent=False)
    quick = node.client
    late = _LateWatch(quick.transport)
    node.client = Client(late)
    await node.start_agent()
    node.client = quick
    await make_claim("old", "8Gi", storageClassName="late")
    await node.select("old")
    await eventually(lambda: node.is_bound("old"))
    await scratch_pod("app", "4Gi", "4Gi")
    for claim in ("app-v0", "app-v1"):
        await quick.patch(
            kinds.CLAIMS, claim, {"metadata": {"annotations": {names.RESCHEDULES: str(before)}}}, "default"
        )
    await node.select("app-v0", "app-v1")
    await eventually(_sent_back(node, "app-v0", "app-v1", times=str(before + 1)))
    await node.release("old")
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await quick.patch(kinds.STORAGE_CLASSES, "late", {"metadata": {"labels": {"looked": "at"}}})
    await asyncio.sleep(600)
    assert await node.volumes() == []
    assert late.asked == 2, "each once"
    late.goes_on.set()
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await node.select("app-v0", "app-v1")
    await eventually(lambda: node.is_bound("app-v0"))
    await eventually(lambda: node.is_bound("app-v1"))


async def test_a_sibling_stays_when_the_pod_has_a_node_or_its_class_does_not_allow_it(
    make_node: MakeNode, scratch_pod: MakePod, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await scratch_pod("app", "6Gi", "6Gi")
    for claim in ("one", "two"):
        await make_claim(claim, "3Gi", storageClassName="late")
    await _make_alone(node, "app-v0")
    await node.select("one")
    await eventually(lambda: node.is_bound("app-v0"))
    await eventually(lambda: node.is_bound("one"))
    await _note(node, "one", "two")
    await node.client.post(
        kinds.PODS.path("default", "app", "binding"),
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "app"}, "target": {"name": "node-1"}},
    )
    await node.select("app-v1", "two")
    await eventually(_sent_back(node, "app-v1", "two"))
    assert await node.is_bound("app-v0")
    assert await node.is_bound("one")


async def test_a_class_may_allow_that_persistent_volumes_are_given_back(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await make_class("loose", parameters={names.ROLLBACK: "true"})
    for claim in ("one", "two"):
        await make_claim(claim, "6Gi", storageClassName="loose")
    await node.select("one")
    await eventually(lambda: node.is_bound("one"))
    await _note(node, "one", "two")
    await node.select("two")

    async def leaving() -> bool:
        return (await node.claim("one")).metadata.deleting

    await eventually(leaving)


async def _loose_pair(node: FakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually) -> str:
    """Two claims that a pod needs, one of which has its volume here; they may be rolled back."""
    await make_class("loose", parameters={names.ROLLBACK: "true"})
    for claim in ("one", "two"):
        await make_claim(claim, "6Gi", storageClassName="loose")
    await node.select("one")
    await eventually(lambda: node.is_bound("one"))
    await _note(node, "one", "two")
    return (await node.claim("one")).spec.volume_name


async def test_a_volume_that_a_pod_had_is_never_given_back(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    volume = await _loose_pair(node, make_class, make_claim, eventually)
    await node.use(volume)
    await node.select("two")
    await eventually(_sent_back(node, "two"))
    await asyncio.sleep(600)
    claim = await node.claim("one")
    assert not claim.metadata.deleting
    assert names.ROLLED_BACK not in claim.metadata.annotations
    assert await node.volumes() == [volume]


async def test_a_volume_that_a_pod_got_meanwhile_is_not_given_back(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """As when the agent was killed after it had chosen the claim, and came back much later."""
    node = await make_node("10Gi")
    volume = await _loose_pair(node, make_class, make_claim, eventually)
    await node.kill_agent()
    await node.use(volume)
    note = {"metadata": {"annotations": {names.ROLLED_BACK: "node-1"}}}
    await node.client.patch(kinds.CLAIMS, "one", note, "default")
    await node.start_agent()

    async def is_let_go() -> bool:
        return names.ROLLED_BACK not in (await node.claim("one")).metadata.annotations

    await eventually(is_let_go)
    assert not (await node.claim("one")).metadata.deleting
    assert await node.volumes() == [volume]


async def test_a_claim_that_somebody_annotates_is_not_rolled_back(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await make_claim("data", storageClassName="late")
    await node.select("data")
    await eventually(lambda: node.is_bound("data"))
    note = {"metadata": {"annotations": {names.ROLLED_BACK: "node-1"}}}
    await node.client.patch(kinds.CLAIMS, "data", note, "default")

    async def is_let_go() -> bool:
        return names.ROLLED_BACK not in (await node.claim("data")).metadata.annotations

    await eventually(is_let_go)
    assert not (await node.claim("data")).metadata.deleting
    assert len(await node.volumes()) == 1


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_rollback_that_was_killed_goes_on_although_the_pod_would_fit_now(
    make_node: MakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually, *, is_deleted: bool
) -> None:
    node = await make_node("10Gi")
    volume = await _loose_pair(node, make_class, make_claim, eventually)
    await node.kill_agent()
    note = {"metadata": {"annotations": {names.ROLLED_BACK: "node-1"}}}
    await node.client.patch(kinds.CLAIMS, "one", note, "default")
    if is_deleted:
        await node.pool.delete(volume)
    await node.start_agent()

    async def leaving() -> bool:
        return (await node.claim("one")).metadata.deleting

    await eventually(leaving)
    assert await node.volumes() == []


async def test_many_pods_that_fit_exactly_all_start(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("100Gi")
    await eventually(lambda: node.publishes("100Gi", "100Gi"))
    for n in range(20):
        await scratch_pod(f"p{n}", "2Gi", "3Gi")
    for volume in ("v0", "v1"):
        await node.select(*(f"p{n}-{volume}" for n in range(20)))

    async def all_bound() -> bool:
        found = (await node.client.list(kinds.CLAIMS)).items
        assert not any(names.RESCHEDULES in c.metadata.annotations for c in found)
        return all(c.status.phase == "Bound" for c in found)

    await eventually(all_bound)
    assert sum(v.size for v in await node.pool.list()) == to_bytes("100Gi")
    await eventually(lambda: node.publishes("0", "0"))
