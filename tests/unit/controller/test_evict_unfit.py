"""Pods whose inline volume does not fit are evicted: only those that may be, and ever more slowly."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Settle, Told

from tonnage.base.errors import ApiError, ApiNotFoundError
from tonnage.controller.evict_unfit import FIRST, FORGOTTEN, LONGEST, REASON, UnfitPods, pause
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.testing.clock import ManualClock

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-web", "controller": True}


class Bench:
    """The controller, told of pods by hand."""

    def __init__(self, kube: Client, informers: Informers, events: EventRecorder, clock: Any, settle: Settle) -> None:
        self.kube, self.clock, self.settle = kube, clock, settle
        self.unfit = UnfitPods(context(kube, informers, events, provisioners=[names.DRIVER], clock=clock))

    async def pod(
        self, name: str, *, says: str = "true", owner: dict[str, Any] | None = OWNER, driver: str = names.DRIVER
    ) -> Any:
        """A pod on node-1 with an inline volume. says: whether it may be evicted, "" for nothing."""
        volume = {"name": "v", "csi": {"driver": driver, "volumeAttributes": {"size": "9Gi"}}}
        meta: dict[str, Any] = {"name": name, "labels": {names.EVICT_UNFIT: says} if says else {}}
        meta["ownerReferences"] = [owner] if owner else []
        spec = {"nodeName": "node-1", "containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
        return await self.kube.create(kinds.PODS, {"metadata": meta, "spec": spec}, "default")

    async def say(self, pod: Any, *, host: str = "node-1", uid: str = "") -> float | None:
        """What the agent says of a pod; what the controller answers."""
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": pod.metadata.name}
        about["uid"] = uid or pod.metadata.uid
        body = {
            "metadata": {"generateName": "e-", "namespace": "default"},
            "involvedObject": about,
            "reason": names.UNFIT,
            "source": {"component": "tonnage-node", "host": host},
        }
        made = await self.kube.create(kinds.EVENTS, body, "default")
        await self.settle()
        return await self.unfit.reconcile(made.key)

    async def is_there(self, pod: Any) -> bool:
        """Whether nobody has asked for the pod's end."""
        try:
            return not (await self.kube.get(kinds.PODS, pod.metadata.name, "default")).metadata.deleting
        except ApiNotFoundError:
            return False

    async def counted(self) -> list[int]:
        """The counts of the Events on owners."""
        found = (await self.kube.list(kinds.EVENTS)).items
        return [e.count for e in found if e.reason == REASON]


@pytest.fixture
async def bench(kube: Client, informers: Informers, events: EventRecorder, manual_clock: ManualClock) -> Bench:
    """A cluster with a namespace and the controller."""

    async def settle() -> None:
        informer = informers.of(kinds.EVENTS, fields=f"reason={names.UNFIT}")
        await informer.wait_synced()
        want = {o.key for o in (await kube.list(kinds.EVENTS, fields=f"reason={names.UNFIT}")).items}
        async with asyncio.timeout(60):
            while {o.key for o in informer.cache} != want:
                await asyncio.sleep(0.001)

    return Bench(kube, informers, events, manual_clock, settle)


async def test_a_pod_that_says_so_is_evicted_and_told(bench: Bench, told: Told) -> None:
    pod = await bench.pod("web-1")
    assert await bench.say(pod) is None
    assert not await bench.is_there(pod)
    found = {(name, reason): text for name, _, reason, text in await told()}
    text = found["web-1", "UnfitPodEvicted"]
    assert text == "evicted from node node-1, where its inline volume does not fit: ReplicaSet web makes another"
    assert found["web", REASON] == (
        "pod web-1 is evicted from node node-1, where its inline volume does not fit (the first one);"
        " another one for the same reason in 10 s at the earliest"
    )


async def test_a_namespace_may_say_so_for_its_pods(bench: Bench) -> None:
    await bench.kube.patch(kinds.NAMESPACES, "default", {"metadata": {"labels": {names.EVICT_UNFIT: "true"}}})
    rejecting = await bench.pod("web-1", says="false")
    assert await bench.say(rejecting) is None
    assert await bench.is_there(rejecting)
    pod = await bench.pod("web-2", says="")
    assert await bench.say(pod) is None
    assert not await bench.is_there(pod)


@pytest.mark.parametrize(
    "how",
    [
        {"owner": None},
        {"owner": {**OWNER, "controller": False}},
        {"owner": {**OWNER, "kind": "DaemonSet"}},
        {"owner": {**OWNER, "apiVersion": "v1", "kind": "Node"}},
        {"driver": "other.example.com"},
        {"says": ""},
    ],
    ids=["alone", "owned", "daemon", "mirror", "foreign driver", "not asked for"],
)
async def test_pods_that_are_left_alone(bench: Bench, how: dict[str, Any]) -> None:
    pod = await bench.pod("web-1", **how)
    assert await bench.say(pod) is None
    assert await bench.is_there(pod)
    assert await bench.counted() == []


async def test_an_agent_is_believed_of_its_own_node_only(bench: Bench) -> None:
    pod = await bench.pod("web-1")
    assert await bench.say(pod, host="node-2") is None
    assert await bench.say(pod, uid="uid-of-another") is None
    assert await bench.is_there(pod)


async def test_a_pod_that_runs_is_left_alone(bench: Bench) -> None:
    pod = await bench.pod("web-1")
    await bench.kube.patch(kinds.PODS, "web-1", {"status": {"phase": "Running"}}, "default", subresource="status")
    assert await bench.say(pod) is None
    assert await bench.is_there(pod)


async def test_an_owner_loses_pods_ever_more_slowly_whoever_leads(
    bench: Bench, kube: Client, informers: Informers, events: EventRecorder, manual_clock: ManualClock
) -> None:
    assert await bench.say(await bench.pod("web-1")) is None
    second = await bench.pod("web-2")
    assert await bench.say(second) == pytest.approx(FIRST)
    assert await bench.is_there(second)
    manual_clock.now += FIRST
    bench.unfit = UnfitPods(context(kube, informers, events, clock=manual_clock))  # another leader
    assert await bench.say(second) is None
    assert not await bench.is_there(second)
    third = await bench.pod("web-3")
    assert await bench.say(third) == pytest.approx(2 * FIRST)
    assert await bench.counted() == [2]
    other = {**OWNER, "name": "other", "uid": "uid-other"}
    assert await bench.say(await bench.pod("other-1", owner=other)) is None
    manual_clock.now += FORGOTTEN
    assert await bench.say(third) is None
    assert sorted(await bench.counted()) == [1, 1], "it begins anew"


async def test_a_count_without_a_time_says_nothing(bench: Bench) -> None:
    """Whoever may write Events in the namespace may have made it."""
    assert await bench.say(await bench.pod("web-1")) is None
    count = next(e for e in (await bench.kube.list(kinds.EVENTS)).items if e.reason == REASON)
    spoiled = {"lastTimestamp": None, "count": 9}
    await bench.kube.patch(kinds.EVENTS, count.metadata.name, spoiled, "default")
    second = await bench.pod("web-2")
    assert await bench.say(second) is None
    assert not await bench.is_there(second)
    assert await bench.counted() == [1]


async def test_who_cannot_count_evicts_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = await bench.pod("web-1")
    create = bench.kube.create

    async def reject(kind: Any, body: Any, *args: Any, **more: Any) -> Any:
        if body.get("reason") == REASON:
            raise ApiError("forbidden", code=403, reason="Forbidden")
        return await create(kind, body, *args, **more)

    monkeypatch.setattr(bench.kube, "create", reject)
    with pytest.raises(ApiError):
        await bench.say(pod)
    assert await bench.is_there(pod)


def test_pauses_grow_and_have_an_end() -> None:
    assert [pause(count) for count in (0, 1, 2, 3)] == [FIRST, FIRST, 2 * FIRST, 4 * FIRST]
    assert pause(1000) == LONGEST


@pytest.mark.parametrize("driver", sorted(names.IMAGE_DRIVERS))
async def test_a_pod_whose_writable_image_volume_does_not_fit_is_evicted(bench: Bench, driver: str) -> None:
    pod = await bench.pod("web-1", driver=driver)
    assert await bench.say(pod) is None
    assert not await bench.is_there(pod)
