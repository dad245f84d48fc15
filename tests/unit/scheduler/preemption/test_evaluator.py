"""Preemption against a real API server: who is nominated and evicted, for whom room is held, and what survives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api.kinds import DISRUPTION_BUDGETS, EVENTS, NODES, PODS, PRIORITY_CLASSES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request
from tonnage.scheduler.scheduler import Scheduler

Eventually = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
Start = Callable[..., AbstractAsyncContextManager[Scheduler]]


class Stage:
    """Nodes of 4 cpus, two priorities, pods without volumes. There is no kubelet: who is deleted goes at once."""

    def __init__(self, kube: Client, eventually: Eventually) -> None:
        self.kube, self.eventually = kube, eventually

    async def set_up(self) -> None:
        await self.node("node-1")
        for name, value in (("high", 1000), ("middle", 500)):
            await self.kube.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})

    async def node(self, name: str) -> None:
        await self.kube.create(NODES, {"metadata": {"name": name}})
        status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}
        await self.kube.patch(NODES, name, {"status": status}, subresource="status")

    async def pod(self, name: str, cpu: str, *, labels: dict[str, str] | None = None, **spec: Any) -> Any:
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
        body = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
        return await self.kube.create(
            PODS, {"metadata": {"name": name, "labels": labels or {}}, "spec": body}, "default"
        )

    async def get(self, name: str) -> Any:
        return await self.kube.get(PODS, name, "default")

    async def until(self, question: Callable[[], Awaitable[Any]]) -> Any:
        return await self.eventually(question)

    async def bound(self, name: str) -> str:
        async def look() -> str:
            return str((await self.get(name)).spec.node_name)

        return str(await self.until(look))

    async def nominated(self, name: str) -> str:
        async def look() -> str:
            return str((await self.get(name)).status.nominated_node_name)

        return str(await self.until(look))

    async def gone(self, name: str) -> None:
        async def look() -> bool:
            try:
                await self.get(name)
            except ApiNotFoundError:
                return True
            return False

        await self.until(look)

    async def event(self, reason: str) -> Any:
        async def look() -> Any:
            return next((e for e in (await self.kube.list(EVENTS, "default")).items if e.reason == reason), None)

        return await self.until(look)

    async def hold(self, name: str) -> None:
        """A finalizer, so that the pod stays there while it is deleted."""
        await self.kube.patch(PODS, name, {"metadata": {"finalizers": ["tonnage.dev/test"]}}, "default")

    async def let_go(self, name: str) -> None:
        await self.kube.patch(PODS, name, {"metadata": {"finalizers": None}}, "default")


@pytest.fixture
async def stage(kube: Client, eventually: Eventually) -> Stage:
    """A cluster of one node."""
    stage = Stage(kube, eventually)
    await stage.set_up()
    return stage


async def test_the_less_important_one_goes(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler():
        await stage.pod("low", "3")
        await stage.bound("low")
        new = await stage.pod("high", "2", priorityClassName="high")

        await stage.gone("low")
        assert await stage.bound("high") == "node-1"
        told = await stage.event("Preempted")
        assert told.involved_object.name == "low"
        assert told.message == f"Preempted by pod {new.metadata.uid} on node node-1"


async def test_victims_say_why_and_the_pod_says_where(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler():
        await stage.pod("low", "3")
        await stage.bound("low")
        await stage.hold("low")
        await stage.pod("high", "2", priorityClassName="high")

        assert await stage.nominated("high") == "node-1"

        async def deleting() -> Any:
            found = await stage.get("low")
            return found if found.metadata.deleting else None

        low = await stage.until(deleting)
        (target,) = [c for c in low.status.conditions if c.type == "DisruptionTarget"]
        assert (target.status, target.reason) == ("True", "PreemptionByScheduler")
        assert target.message == "default-scheduler: preempting to accommodate a higher priority pod"

        await stage.let_go("low")
        assert await stage.bound("high") == "node-1"


async def test_the_room_is_held_against_less_important_pods(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler() as scheduler:
        for name in ("one", "two"):
            await stage.pod(name, "2")
            await stage.bound(name)
        await stage.hold("one")
        await stage.hold("two")
        await stage.pod("high", "3", priorityClassName="high")
        await stage.nominated("high")
        await stage.let_go("one")  # 2 cpus are free, and held
        await stage.gone("one")
        await stage.pod("late", "1")
        await stage.pod("middle", "1", priorityClassName="middle")

        async def both_rejected() -> bool:
            pods = [await stage.get("late"), await stage.get("middle")]
            return all(any(c.reason == "Unschedulable" for c in pod.status.conditions) for pod in pods)

        await stage.until(both_rejected)
        await stage.let_go("two")

        assert await stage.bound("high") == "node-1"
        assert await stage.bound("middle") == "node-1"
        assert not (await stage.get("late")).spec.node_name

        assert not list(scheduler._preemptor.nominations)


async def test_a_nomination_outlives_the_scheduler(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler():
        await stage.pod("low", "3")
        await stage.bound("low")
        await stage.hold("low")
        await stage.pod("high", "3", priorityClassName="high")
        await stage.nominated("high")

        async def deleting() -> bool:
            return bool((await stage.get("low")).metadata.deleting)

        await stage.until(deleting)
    async with start_scheduler() as scheduler:

        async def held() -> bool:
            return bool(list(scheduler._preemptor.nominations))

        await stage.until(held)
        await stage.let_go("low")
        await stage.pod("late", "2")
        assert await stage.bound("high") == "node-1"
        assert not (await stage.get("late")).spec.node_name


async def test_a_budget_is_spared(stage: Stage, start_scheduler: Start) -> None:
    await stage.node("node-2")
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "one"}}}
    await stage.kube.create(DISRUPTION_BUDGETS, {"metadata": {"name": "one"}, "spec": budget}, "default")
    async with start_scheduler():
        for name in ("one", "two"):
            await stage.pod(name, "3", labels={"app": name})
            await stage.bound(name)
        await stage.pod("high", "3", priorityClassName="high")
        await stage.gone("two")
        assert (await stage.get("one")).spec.node_name


async def test_never(stage: Stage, start_scheduler: Start) -> None:
    await stage.kube.create(
        PRIORITY_CLASSES, {"metadata": {"name": "patient"}, "value": 2000, "preemptionPolicy": "Never"}
    )
    async with start_scheduler():
        await stage.pod("low", "3")
        await stage.bound("low")
        await stage.pod("patient", "2", priorityClassName="patient")

        async def rejected() -> bool:
            return any(c.reason == "Unschedulable" for c in (await stage.get("patient")).status.conditions)

        await stage.until(rejected)
        assert not (await stage.get("patient")).status.nominated_node_name
        await stage.kube.delete(PODS, "low", "default")  # first in the queue, for all that
        assert await stage.bound("patient") == "node-1"


async def test_what_cannot_be_evicted_stays_and_the_pod_is_told(
    stage: Stage, start_scheduler: Start, trouble: Any
) -> None:
    async with start_scheduler():
        await stage.pod("low", "3")
        await stage.bound("low")

        def fails(request: Request) -> bool:
            return request.method == "DELETE"

        trouble.fails = fails
        await stage.pod("high", "2", priorityClassName="high")
        told = await stage.event("PreemptionFailed")
        assert told.involved_object.name == "high"
        assert told.message.startswith("preemption on node node-1 failed: ")

        async def cleared() -> bool:
            return not (await stage.get("high")).status.nominated_node_name

        await stage.until(cleared)
        assert (await stage.get("low")).spec.node_name == "node-1"
