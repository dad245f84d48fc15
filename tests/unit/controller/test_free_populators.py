"""Pods of populators on nodes that their claims have left are evicted, and no others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Told

from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.controller.free_populators import RETRY, FreedPopulators
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers

SOURCE = {"apiGroup": "hello.example.com", "kind": "Hello", "name": "h"}
CONTENT = {"apiGroup": "tonnage.dev", "kind": "Content", "name": "c"}
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1"}


class Bench:
    """The controller, told of claims by hand."""

    def __init__(self, kube: Client, informers: Informers, events: EventRecorder) -> None:
        self.kube = kube
        self.events = informers.of(kinds.EVENTS, fields=f"reason={names.POPULATOR_RESCHEDULED}")
        self.loop = FreedPopulators(context(kube, informers, events))

    async def claim(self, *, node: str = "", source: dict[str, str] = SOURCE, volume: str = "") -> Any:
        """A claim that a populator fills. node: where it is to be now."""
        spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        spec |= {"dataSourceRef": source, **({"volumeName": volume} if volume else {})}
        notes = {names.SELECTED_NODE: node} if node else {}
        return await self.kube.create(
            kinds.CLAIMS, {"metadata": {"name": "data", "annotations": notes}, "spec": spec}, "default"
        )

    async def pod(
        self, claim: Any, *, name: str = "", uses: str = "", node: str = "node-1", phase: str = "", owned: bool = False
    ) -> Pod:
        """The populator's pod, as the library makes it."""
        uid = claim.metadata.uid
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": uses or f"prime-{uid}"}}
        meta = {"name": name or f"populate-{uid}", "ownerReferences": [OWNER] if owned else []}
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
        await self.kube.create(kinds.NAMESPACES, {"metadata": {"name": "hello"}})
        pod = await self.kube.create(kinds.PODS, {"metadata": meta, "spec": spec}, "hello")
        if phase:
            body = {"status": {"phase": phase}}
            pod = await self.kube.patch(kinds.PODS, pod.metadata.name, body, "hello", subresource="status")
        return pod

    async def say(self, claim: Any, *, uid: str = "") -> float | None:
        """What the agent says of the claim; what the controller answers."""
        about = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "data"}
        head = {"metadata": {"generateName": "e-", "namespace": "default"}, "reason": names.POPULATOR_RESCHEDULED}
        body = {**head, "involvedObject": {**about, "uid": uid or claim.metadata.uid}}
        made = await self.kube.create(kinds.EVENTS, body, "default")
        await self.events.wait_synced()
        async with asyncio.timeout(60):
            while self.events.cache.get(made.key) is None:
                await asyncio.sleep(0.001)
        return await self.loop.reconcile(made.key)

    async def is_there(self, pod: Pod) -> bool:
        try:
            return not (await self.kube.get(kinds.PODS, pod.metadata.name, "hello")).metadata.deleting
        except ApiNotFoundError:
            return False


@pytest.fixture
async def bench(kube: Client, informers: Informers, events: EventRecorder) -> Bench:
    return Bench(kube, informers, events)


@pytest.mark.parametrize("node", ["", "node-2"], ids=["without a node", "another node"])
async def test_a_pod_whose_claim_has_left_is_evicted_and_told(bench: Bench, told: Told, node: str) -> None:
    claim = await bench.claim(node=node)
    pod = await bench.pod(claim)
    assert await bench.say(claim) is None
    assert not await bench.is_there(pod)
    (text,) = [text for _, _, reason, text in await told() if reason == "PopulatorFreed"]
    assert text == "evicted from node node-1, which claim default/data has left: its populator makes another"
    assert await bench.say(claim) is None, "once more, without a pod"


@pytest.mark.parametrize(
    ("claim", "pod", "uid"),
    [
        pytest.param({"node": "node-1"}, {}, "", id="the claim is to be there"),
        pytest.param({"volume": "v"}, {}, "", id="the claim has a volume"),
        pytest.param({"source": CONTENT}, {}, "", id="no populator's claim"),
        pytest.param({}, {}, "another", id="a claim of that name from before"),
        pytest.param({}, {"phase": "Running"}, "", id="it has started"),
        pytest.param({}, {"owned": True}, "", id="another object makes it"),
        pytest.param({}, {"uses": "its-own"}, "", id="it does not use the populator's claim"),
        pytest.param({}, {"name": "web"}, "", id="another name"),
        pytest.param({}, {"node": ""}, "", id="it has no node"),
    ],
)
async def test_what_is_not_evicted(bench: Bench, claim: dict[str, Any], pod: dict[str, Any], uid: str) -> None:
    made = await bench.claim(**claim)
    stays = await bench.pod(made, **pod)
    assert await bench.say(made, uid=uid) is None
    assert await bench.is_there(stays)


async def test_a_pod_that_changes_meanwhile_is_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = await bench.claim()
    pod = await bench.pod(claim)
    post = bench.kube.post

    async def changed_first(path: str, body: Any) -> Any:
        body = {"status": {"phase": "Running"}}
        await bench.kube.patch(kinds.PODS, pod.metadata.name, body, "hello", subresource="status")
        raise ApiConflictError("it has changed")

    monkeypatch.setattr(bench.kube, "post", changed_first)
    assert await bench.say(claim) == RETRY
    monkeypatch.setattr(bench.kube, "post", post)
    assert await bench.say(claim) is None
    assert await bench.is_there(pod)
