"""What an agent watches, whoever labels claims or does not, and that volumes are made in any case."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage.node.watch_scope import LOOK_EVERY
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing.node import FakeNode
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
Make = Callable[..., Awaitable[Any]]
LONG = "a-name-that-is-longer-than-the-sixty-three-characters-of-a-label.example.com"
POLICIES = (kinds.MUTATING_POLICIES, kinds.MUTATING_BINDINGS)


class _WithPolicies:
    """A server that also serves admission policies: here only whether they are there, or may be looked at."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.there = {kind.plural: False for kind in POLICIES}
        self.rejects = False
        self.version = 1
        self._changed = asyncio.Event()

    def set(self, there: bool) -> None:
        self.there = dict.fromkeys(self.there, there)
        self.version += 1
        self._changed.set()

    async def request(self, request: Request) -> Response:
        kind = self._kind(request)
        if kind is None:
            return await self._inner.request(request)
        if self.rejects:
            return Response(403, b'{"code": 403, "reason": "Forbidden"}')
        found = {"metadata": {"name": names.SCOPE_POLICY, "uid": "u", "resourceVersion": "1"}}
        there = self.there[kind.plural]
        if request.path.endswith(f"/{names.SCOPE_POLICY}"):
            return Response(200, json.dumps(found).encode()) if there else Response(404, b'{"code": 404}')
        assert request.query["fieldSelector"] == f"metadata.name={names.SCOPE_POLICY}"
        items = [found] if there else []
        return Response(200, json.dumps({"metadata": {"resourceVersion": str(self.version)}, "items": items}).encode())

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        if self._kind(request) is None:
            async with self._inner.stream(request) as chunks:
                yield chunks
        else:
            yield self._events(request)

    async def _events(self, request: Request) -> AsyncIterator[bytes]:
        kind = self._kind(request)
        assert kind is not None
        there = self.there[kind.plural]
        while self.there[kind.plural] == there:
            await self._changed.wait()
            self._changed.clear()
        meta = {"name": names.SCOPE_POLICY, "uid": "u", "resourceVersion": str(self.version)}
        event = {"type": "DELETED" if there else "ADDED", "object": {"metadata": meta}}
        yield json.dumps(event).encode() + b"\n"

    def _kind(self, request: Request) -> Any:
        return next((kind for kind in POLICIES if f"/{kind.plural}" in request.path), None)

    async def close(self) -> None:
        await self._inner.close()


@pytest.fixture
def cluster(api_server: ApiServer) -> _WithPolicies:
    return _WithPolicies(api_server.transport("system:admin"))


@pytest.fixture
def kube(cluster: _WithPolicies) -> Client:
    return Client(cluster)


async def _send_bare(node: FakeNode, claim: str, to: str = "") -> None:
    """What the stock scheduler writes, where nothing labels."""
    notes = {names.SELECTED_NODE: to or node.name, names.STORAGE_PROVISIONER: names.DRIVER}
    await node.client.patch(kinds.CLAIMS, claim, {"metadata": {"annotations": notes}}, "default")


async def _lease(kube: Client, holder: str = "one", renewed: str = "2026-01-01T00:00:00.000000Z") -> None:
    body = {
        "metadata": {"name": names.CONTROLLER_LEASE, "namespace": names.SYSTEM_NAMESPACE},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed},
    }
    await kube.create(kinds.LEASES, body, names.SYSTEM_NAMESPACE)


def _received(agent: Any, kind: Any) -> Any:
    return agent._informers.of(kind, labels=agent.scope.selector)


async def _decided(agent: Any) -> None:
    await agent.provisioner.ready()


async def test_with_nobody_to_label_volumes_are_made_all_the_same(
    make_node: Make, make_claim: Make, eventually: Eventually
) -> None:
    node = await make_node(scope="auto")
    await make_claim("mine", "4Gi", storageClassName="late")
    await make_claim("theirs", "4Gi", storageClassName="late")
    await _send_bare(node, "theirs", to="node-2")
    await _send_bare(node, "mine")
    await eventually(lambda: node.is_bound("mine"))
    agent = node.agents[0]
    assert not agent.claim_scope.by_label
    assert [c.metadata.name for c in _received(agent, kinds.CLAIMS).cache] == ["mine"]
    assert _received(agent, kinds.CLAIMS).others > 0  # it had to look at the other one
    assert _received(agent, kinds.VOLUMES).others == 0  # volumes are labelled by their agents
    assert len(await node.volumes()) == 1


async def test_a_claim_without_label_that_does_not_fit_goes_back(
    make_node: Make, make_claim: Make, eventually: Eventually
) -> None:
    node = await make_node("3Gi", scope="all")
    await make_claim("big", "4Gi", storageClassName="late")
    await _send_bare(node, "big")

    async def back() -> bool:
        notes = (await node.claim("big")).metadata.annotations
        return names.SELECTED_NODE not in notes and notes.get(names.RESCHEDULES) == "1"

    await eventually(back)


@pytest.mark.parametrize("watches", ["label", "auto"])
async def test_by_label_nothing_of_other_nodes_is_received(
    make_node: Make, make_claim: Make, eventually: Eventually, cluster: _WithPolicies, watches: str
) -> None:
    cluster.set(True)
    nodes = [await make_node(name=f"node-{n}", scope=watches) for n in (1, 2)]
    for n, node in enumerate(nodes * 3):
        await make_claim(f"c{n}", "1Gi", storageClassName="late")
        await node.select(f"c{n}", node="node-1" if node is nodes[1] and n == 5 else "")  # one that moves
    await nodes[1].select("c5")
    for n, node in enumerate(nodes * 3):
        await eventually(lambda node=node, n=n: node.is_bound(f"c{n}"))
    for node in nodes:
        for kind in (kinds.CLAIMS, kinds.VOLUMES):
            informer = _received(node.agents[0], kind)
            assert informer.received > 0
            assert informer.others == 0


@pytest.mark.parametrize(
    ("policy", "lease", "name", "by_label"),
    [
        pytest.param(True, "", "node-1", True, id="policy"),
        pytest.param(False, "one", "node-1", True, id="controller"),
        pytest.param(True, "one", LONG, True, id="a long name, controller"),
        pytest.param(True, "", LONG, False, id="a long name, which the policy leaves out"),
        pytest.param(False, None, "node-1", False, id="a lease that was given up"),
        pytest.param(False, "", "node-1", False, id="neither"),
    ],
)
async def test_who_labels_decides_the_scope_at_start(
    make_node: Make, kube: Client, cluster: _WithPolicies, policy: bool, lease: str | None, name: str, by_label: bool
) -> None:
    cluster.set(policy)
    if lease != "":
        await _lease(kube, lease or "")
    node = await make_node(name=name, agent=False)
    agent = await node.start_agent(scope="auto")
    await _decided(agent)
    assert agent.claim_scope.by_label is by_label


async def test_a_policy_that_may_not_be_looked_at_is_none(
    make_node: Make, cluster: _WithPolicies, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.set(True)
    cluster.rejects = True
    node = await make_node(scope="auto")
    await _decided(node.agents[0])
    assert not node.agents[0].claim_scope.by_label
    assert sum("may not be looked at" in record.message for record in caplog.records) == 1


async def test_the_policy_goes_and_comes_back(
    make_node: Make, make_claim: Make, eventually: Eventually, cluster: _WithPolicies
) -> None:
    cluster.set(True)
    node = await make_node(scope="auto")
    agent = node.agents[0]
    await _decided(agent)
    await make_claim("a", storageClassName="late")
    await _send_bare(node, "a")  # missed by the policy: nobody sees it
    cluster.set(False)
    await eventually(lambda: node.is_bound("a"))
    assert not agent.claim_scope.by_label
    cluster.set(True)
    await asyncio.sleep(2 * LOOK_EVERY)
    assert not agent.claim_scope.by_label  # the claim without label would drop out
    await node.select("a")
    await asyncio.sleep(2 * LOOK_EVERY)

    async def by_label() -> bool:
        return bool(agent.claim_scope.by_label)

    await eventually(by_label)
    assert [c.metadata.name for c in _received(agent, kinds.CLAIMS).cache] == ["a"]


async def test_a_lease_that_nobody_renews_is_nobody(
    make_node: Make, make_claim: Make, kube: Client, eventually: Eventually
) -> None:
    await _lease(kube)
    node = await make_node(scope="auto")
    agent = node.agents[0]
    await _decided(agent)
    assert agent.claim_scope.by_label
    for second in range(1, 4):
        await asyncio.sleep(LOOK_EVERY)
        await kube.patch(
            kinds.LEASES, names.CONTROLLER_LEASE, _renewed(second), names.SYSTEM_NAMESPACE
        )  # fmt: skip
    assert agent.claim_scope.by_label
    await make_claim("a", storageClassName="late")
    await _send_bare(node, "a")
    await asyncio.sleep(3 * LOOK_EVERY)
    await eventually(lambda: node.is_bound("a"))
    assert not agent.claim_scope.by_label


def _renewed(second: int) -> dict[str, Any]:
    return {"spec": {"renewTime": f"2026-01-01T00:00:0{second}.000000Z"}}


async def test_promises_of_claims_without_label_are_counted_before_anything_is_published(
    make_node: Make, make_claim: Make, eventually: Eventually
) -> None:
    node = await make_node("10Gi", agent=False)
    await make_claim("a", "4Gi", storageClassName="late")
    await _send_bare(node, "a")
    shown: list[str | None] = []
    await node.start_agent(scope="auto")

    async def published() -> bool:
        found = (await node.client.list(kinds.CAPACITIES, names.SYSTEM_NAMESPACE)).items
        shown.extend(c.capacity for c in found)
        return bool(found) and await node.is_bound("a")

    await eventually(published)
    assert set(shown) == {"6Gi"}
