"""What pods are told: only what is new, with the other conditions left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.scheduler.core.conditions import UNSCHEDULABLE, ConditionWriter

READY = {"type": "example.org/ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}


class Stage:
    """A writer, and pods as the API server has them."""

    def __init__(self, kube: Client) -> None:
        self.kube = kube
        self.cache: Cache[Any] = Cache()
        self.writer = ConditionWriter(kube, EventRecorder(kube, "test"), self.cache, RealClock())

    async def pod(self, *conditions: dict[str, Any]) -> Any:
        """A new pod with conditions."""
        containers = [{"name": "main", "image": "none"}]
        await self.kube.create(PODS, {"metadata": {"name": "p"}, "spec": {"containers": containers}}, "default")
        pod = await self.kube.patch(
            PODS, "p", {"status": {"conditions": list(conditions)}}, "default", subresource="status"
        )
        self.cache.put(pod)
        return pod

    async def settled(self) -> Any:
        """The pod when all is written."""
        while self.writer._tasks._tasks:
            await asyncio.gather(*self.writer._tasks._tasks)
        return await self.kube.get(PODS, "p", "default")


@pytest.fixture
async def stage(kube: Client) -> AsyncIterator[Stage]:
    """A writer over a real API server."""
    stage = Stage(kube)
    yield stage
    await stage.writer.close()


def told(pod: Any) -> list[tuple[str, str, str, str]]:
    return [(c.type, c.status, c.reason, c.message) for c in pod.status.conditions]


async def test_condition_joins_the_others(stage: Stage) -> None:
    pod = await stage.pod(READY)
    stage.writer.report(pod, UNSCHEDULABLE, "no room")

    found = await stage.settled()

    expected = [("example.org/ready", "False", "", ""), ("PodScheduled", "False", "Unschedulable", "no room")]
    assert told(found) == expected


async def test_same_news_is_not_written_again(stage: Stage) -> None:
    pod = await stage.pod()
    stage.writer.report(pod, UNSCHEDULABLE, "no room")
    first = await stage.settled()
    stage.cache.put(first)
    stage.writer.report(first, UNSCHEDULABLE, "no room")
    assert await stage.settled() == first

    # nor by the next process, which knows it from the pod
    again = ConditionWriter(stage.kube, EventRecorder(stage.kube, "test"), stage.cache, RealClock())
    again.report(first, UNSCHEDULABLE, "no room")
    assert not again._tasks._tasks

    stage.writer.report(first, UNSCHEDULABLE, "less room")
    second = await stage.settled()
    assert told(second) == [("PodScheduled", "False", "Unschedulable", "less room")]
    assert second.status.conditions[0].last_transition_time == first.status.conditions[0].last_transition_time


async def test_stale_pod_is_read_again(stage: Stage) -> None:
    stale = await stage.pod()
    await stage.kube.patch(PODS, "p", {"status": {"conditions": [READY]}}, "default", subresource="status")
    stage.writer.report(stale, UNSCHEDULABLE, "no room")

    found = await stage.settled()

    assert [c.type for c in found.status.conditions] == ["example.org/ready", "PodScheduled"]


async def test_only_the_last_of_several_is_written(stage: Stage) -> None:
    pod = await stage.pod()
    for message in ("one", "two", "three"):
        stage.writer.report(pod, UNSCHEDULABLE, message)

    assert told(await stage.settled()) == [("PodScheduled", "False", "Unschedulable", "three")]


async def test_held_back_news_may_never_be_told(stage: Stage) -> None:
    pod = await stage.pod()
    stage.writer.report(pod, UNSCHEDULABLE, "awaited", after=0.01)
    stage.writer.cancel(pod.metadata.uid)
    await asyncio.sleep(0.03)
    assert told(await stage.settled()) == []

    stage.writer.report(pod, UNSCHEDULABLE, "awaited", after=0.01)
    await asyncio.sleep(0.03)
    assert told(await stage.settled()) == [("PodScheduled", "False", "Unschedulable", "awaited")]


async def test_pod_that_is_gone_or_bound_is_left_alone(stage: Stage) -> None:
    pod = await stage.pod()
    bound = await stage.kube.post(
        PODS.path("default", "p", "binding"), {"metadata": {"name": "p"}, "target": {"name": "node-1"}}
    )
    assert bound
    stage.writer.report(pod, UNSCHEDULABLE, "no room")
    assert told(await stage.settled())[0][:2] == ("PodScheduled", "True")

    await stage.kube.delete(PODS, "p", "default", grace_seconds=0)
    stage.writer.report(pod, UNSCHEDULABLE, "still no room")
    while stage.writer._tasks._tasks:
        await asyncio.gather(*stage.writer._tasks._tasks)
    assert not stage.writer._writing
