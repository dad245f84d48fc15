"""Claim groups through a real agent: nothing of a pod stays on a node that cannot hold all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.unit.node.provisioner.contexts import context

from tonnage.base.errors import UnavailableError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage.node.provisioner.claim_group import GroupFinder
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakePod
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time


async def _nothing() -> None:
    """Default of what happens during a patch."""


class _Withdrawals:
    """A transport that calls `during` in the first patch that takes selected-node off a claim. lost: the answer to that
    patch never comes, though it took effect."""

    def __init__(self, transport: Transport, during: Callable[[], Awaitable[None]] = _nothing, *, lost: bool = False):
        self._transport, self.stream, self.close = transport, transport.stream, transport.close
        self._during, self._lost, self.patches = during, lost, 0

    async def request(self, request: Request) -> Response:
        """Of the agent."""
        if request.method != "PATCH" or names.RESCHEDULES.encode() not in (request.body or b""):
            return await self._transport.request(request)
        self.patches += 1
        first = self.patches == 1
        if first:
            await self._during()
        response = await self._transport.request(request)
        if first and self._lost:
            raise UnavailableError("the answer was lost")
        return response


async def _start(
    node: FakeNode, during: Callable[[], Awaitable[None]] = _nothing, *, lost: bool = False
) -> _Withdrawals:
    """The node's agent, over that transport."""
    quick = node.client
    reschedules_of = _Withdrawals(quick.transport, during, lost=lost)
    node.client = Client(reschedules_of)
    await node.start_agent()
    node.client = quick
    return reschedules_of


def _off(node: FakeNode, *claims: str) -> Callable[[], Awaitable[bool]]:
    """Whether none of these claims has a node."""

    async def ask() -> bool:
        return all([names.SELECTED_NODE not in (await node.claim(c)).metadata.annotations for c in claims])

    return ask


async def _fill(node: FakeNode, make_claim: MakeClaim, eventually: Eventually, size: str) -> None:
    await make_claim("old", size, storageClassName="late")
    await node.select("old")
    await eventually(lambda: node.is_bound("old"))


@pytest.mark.parametrize("apart", [0.05, 0.33, 3.0])
async def test_a_claim_that_arrives_while_its_sibling_goes_back_goes_back_too(
    make_node: MakeNode, make_claim: MakeClaim, scratch_pod: MakePod, eventually: Eventually, apart: float
) -> None:
    node = await make_node("10Gi", agent=False)

    async def second() -> None:
        await asyncio.sleep(apart)
        await node.select("app-v0")
        await asyncio.sleep(0.1)  # the watch tells of it before the patch is done

    await _start(node, second)
    await _fill(node, make_claim, eventually, "8Gi")
    await scratch_pod("app", "6Gi", "4Gi")
    await node.select("app-v1")
    await asyncio.sleep(apart + 1.0)
    await eventually(_off(node, "app-v0", "app-v1"))
    assert await node.volumes() == [f"pvc-{(await node.claim('old')).metadata.uid}"]
    await eventually(lambda: node.publishes("2Gi", "2Gi"))
    await node.release("old")
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await node.select("app-v0", "app-v1")
    await eventually(lambda: node.is_bound("app-v0"))
    await eventually(lambda: node.is_bound("app-v1"))


async def test_a_lost_answer_leaves_no_window(
    make_node: MakeNode, make_claim: MakeClaim, scratch_pod: MakePod, eventually: Eventually
) -> None:
    """The patch took effect, its answer is lost, and the watch is behind: what comes up then is not for the group."""
    node = await make_node("10Gi", agent=False)
    reschedules_of = await _start(node, lost=True)
    await _fill(node, make_claim, eventually, "8Gi")
    await scratch_pod("app", "6Gi", "4Gi")
    await node.select("app-v0", "app-v1")
    await eventually(_off(node, "app-v0", "app-v1"))
    await asyncio.sleep(60)
    for claim in ("app-v0", "app-v1"):
        assert (await node.claim(claim)).metadata.annotations[names.RESCHEDULES] == "1", "each went back once"
    assert reschedules_of.patches == 2


async def test_two_nodes_with_a_part_each_both_reschedule(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    one, two = await make_node("10Gi"), await make_node("10Gi", name="node-2")
    await scratch_pod("app", "4Gi", "4Gi")
    await one.select("app-v0")
    await two.select("app-v1")
    await eventually(_off(one, "app-v0", "app-v1"))
    assert await one.volumes() == await two.volumes() == []


async def test_plain_claims_on_two_nodes_are_not_made_one_by_one(
    make_node: MakeNode, make_claim: MakeClaim, make_pod: MakePod, eventually: Eventually
) -> None:
    one, two = await make_node("10Gi"), await make_node("10Gi", name="node-2")
    for name in ("a", "b"):
        await make_claim(name, "1Gi", storageClassName="late", annotations={names.CLAIM_GROUP: "a,b"})
    await make_pod("app", claims=["a", "b"])
    await one.select("a")
    await two.select("b")
    await eventually(_off(one, "a", "b"))
    assert await one.volumes() == await two.volumes() == []


async def test_a_plain_claim_that_another_pod_needs_without_its_sibling_is_made(
    make_node: MakeNode, make_claim: MakeClaim, make_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    for name in ("a", "b"):
        await make_claim(name, "1Gi", storageClassName="late", annotations={names.CLAIM_GROUP: "a,b"})
    await make_pod("both", claims=["a", "b"])
    await make_pod("one", claims=["a"])
    await node.select("a")
    await eventually(lambda: node.is_bound("a"))


async def test_a_single_claim_waits_for_nobody(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await eventually(lambda: node.publishes("10Gi", "10Gi"))
    await scratch_pod("app", "4Gi")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await node.select("app-v0")
    await eventually(lambda: node.is_bound("app-v0"))
    assert loop.time() - began < 0.2, "virtual seconds: no timer was set"


async def test_a_claim_that_its_owner_does_not_use_is_single(
    make_node: MakeNode, make_claim: MakeClaim, make_pod: MakePod, eventually: Eventually
) -> None:
    """Whoever made it: no pod waits for it together with others."""
    node = await make_node("10Gi")
    pod = await make_pod("app", ephemeral={"v0": {"storageClassName": "late"}})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "app", "uid": pod.metadata.uid, "controller": True}
    await make_claim("app-extra", "1Gi", storageClassName="late", owners=[owner])
    await node.select("app-extra")
    await eventually(lambda: node.is_bound("app-extra"))


async def test_whatever_wake_up_is_lost_a_claim_is_looked_at_again(
    make_node: MakeNode,
    make_claim: MakeClaim,
    scratch_pod: MakePod,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every event about claims is ignored once they are known: only the look that is always pending is left."""
    node = await make_node("10Gi", agent=False)
    await _start(node)
    await _fill(node, make_claim, eventually, "8Gi")
    await make_claim("held", "4Gi", storageClassName="late", annotations={names.RESCHEDULES: "20"})
    await node.select("held")
    await asyncio.sleep(1)
    provisioner = node.agents[0].provisioner
    monkeypatch.setattr(provisioner, "_look_again", lambda uids: None)
    assert provisioner.waiting == {}
    await asyncio.sleep(95)
    assert provisioner.waiting == {"capacity": 1}
    await node.release("old")
    await eventually(lambda: node.is_bound("held"))
    assert provisioner.waiting == {}


async def test_a_plain_claim_is_not_made_where_the_copy_of_its_pod_cannot_be(
    make_node: MakeNode, make_claim: MakeClaim, make_pod: MakePod, eventually: Eventually
) -> None:
    """The controller has not written yet that they belong together: once made, the plain one would stay for good."""
    home, other = await make_node("10Gi"), await make_node("10Gi", name="node-2")
    await make_claim("source", "1Gi", storageClassName="late")
    await home.select("source")
    await eventually(lambda: home.is_bound("source"))
    await make_claim("plain", "1Gi", storageClassName="late")
    source = {"kind": "PersistentVolumeClaim", "name": "source"}
    await make_claim("copy", "1Gi", storageClassName="late", dataSource=source)
    await make_pod("app", claims=["plain", "copy"])
    await other.select("plain")
    await eventually(_off(other, "plain"))
    assert await other.volumes() == []
    await home.select("plain", "copy")
    await eventually(lambda: home.is_bound("plain"))


async def test_plain_and_ephemeral_claims_of_a_pod_are_one_group(
    make_node: MakeNode, make_claim: MakeClaim, make_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await make_claim("data-web-0", "4Gi", storageClassName="late")
    spec = {"storageClassName": "late", "resources": {"requests": {"storage": "8Gi"}}}
    pod = await make_pod("web-0", claims=["data-web-0"], ephemeral={"tmp": spec})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": pod.metadata.uid, "controller": True}
    await make_claim("web-0-tmp", "8Gi", owners=[owner], storageClassName="late")
    await node.select("data-web-0")
    await eventually(_off(node, "data-web-0"))
    await node.select("web-0-tmp", "data-web-0")
    await eventually(_off(node, "data-web-0", "web-0-tmp"))
    assert await node.volumes() == []


# A claim that says that it is single: nothing is read


class _Asked(Exception):
    """The API server was asked."""


class _Nobody:
    async def get(self, *arguments: Any) -> Any:
        raise _Asked


@pytest.fixture
def finder() -> GroupFinder:
    """With an API server that must not be asked."""
    return GroupFinder(context(client=_Nobody()))


def _claim(alone: str, *, owned: bool = True) -> PersistentVolumeClaim:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "app", "uid": "pod-1", "controller": True}
    meta = {"name": "app-disk", "namespace": "default", "uid": "claim-1", "annotations": {names.SINGLE_CLAIM: alone}}
    return msgspec.convert({"metadata": {**meta, "ownerReferences": [owner] if owned else []}}, PersistentVolumeClaim)


async def test_a_claim_that_is_alone_asks_for_nobody(finder: GroupFinder) -> None:
    group = await finder.of(_claim("claim-1"))
    assert (group.id, group.claims, group.missing) == ("pod-1", ("default/app-disk",), ())
    assert group.pod is not None
    assert (group.pod.kind, group.pod.name, group.pod.uid) == ("Pod", "app", "pod-1")


@pytest.mark.parametrize("alone", ["", "true", "claim-2"], ids=["nothing", "of a template", "of another claim"])
async def test_what_was_not_written_for_this_claim_says_nothing(finder: GroupFinder, alone: str) -> None:
    with pytest.raises(_Asked):
        await finder.of(_claim(alone))
