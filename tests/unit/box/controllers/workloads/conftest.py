"""Workload controllers on a real API server, with a scheduler and kubelet that only say that pods run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from tonnage.base.aio.clock import rfc3339
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.kubernetes.api.kinds import NODES, PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.garbage_collector import GarbageCollector
from tonnage_box.controllers.podcontrol.pod_status import is_ready
from tonnage_box.controllers.workloads.manager import Workloads

LABELS = {"app": "web"}


class Kubelet:
    """Lets every pod run on its node at once, and go when it is deleted. `judge` may say otherwise of a pod."""

    def __init__(self, client: Client, tasks: Background) -> None:
        self._client, self._tasks = client, tasks
        self.judge: Callable[[Pod], dict[str, Any] | None] = lambda pod: None
        self.node_of: Callable[[Pod], str] = lambda pod: "node-1"
        self._begun: set[str] = set()
        self.log: list[tuple[str, str]] = []
        """(what happened, pod) in order: added, ready, gone."""

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if old is None:
            self.log.append(("added", pod.metadata.name))
        if new is None:
            self.log.append(("gone", pod.metadata.name))
        elif new.metadata.deleting:
            self._tasks.start(self._end(new))
        elif new.status.phase == "Pending" and new.metadata.uid not in self._begun:
            self._begun.add(new.metadata.uid)
            self._tasks.start(self._begin(new))
        if new is not None and is_ready(new) and not (old is not None and is_ready(old)):
            self.log.append(("ready", new.metadata.name))

    async def _begin(self, pod: Pod) -> None:
        wanted = self.judge(pod)
        if wanted is None:
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(0)}
            wanted = {"phase": "Running", "conditions": [ready]}
        meta = pod.metadata
        with suppress(ApiNotFoundError, ApiConflictError):
            if not pod.spec.node_name and wanted.get("phase") != "Pending":
                binding = {"metadata": {"uid": meta.uid}, "target": {"kind": "Node", "name": self.node_of(pod)}}
                await self._client.post(PODS.path(meta.namespace, meta.name, "binding"), binding)
            await self._client.patch(
                PODS, meta.name, {"status": wanted}, meta.namespace, subresource="status", uid=meta.uid
            )

    async def _end(self, pod: Pod) -> None:
        meta = pod.metadata
        with suppress(ApiNotFoundError, ApiConflictError):
            if meta.finalizers and not pod.terminated:
                failed = {"status": {"phase": "Failed"}}
                await self._client.patch(PODS, meta.name, failed, meta.namespace, subresource="status", uid=meta.uid)
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)


@pytest.fixture
def eventually() -> Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    """Asks until the answer is true, and returns it; patient, for these tests do much."""

    async def until(question: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(60):
            while not (answer := await question()):
                await asyncio.sleep(0.005)
            return answer

    return until


@pytest.fixture
async def kubelet(kube: Client, informers: Informers) -> AsyncIterator[Kubelet]:
    tasks = Background("kubelet")
    kubelet = Kubelet(kube, tasks)
    informers.of(PODS).cache.on_change(kubelet.changed)
    yield kubelet
    await tasks.close()


@pytest.fixture
async def workloads(
    kube: Client, informers: Informers, kubelet: Kubelet, events: EventRecorder
) -> AsyncIterator[Workloads]:
    """All controllers of workloads and the garbage collector, running."""
    made = Workloads(kube, informers, lambda component: events)
    collector = GarbageCollector(kube, informers, events)
    tasks = [asyncio.ensure_future(made.run()), asyncio.ensure_future(collector.run())]
    yield made
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def workload(kube: Client) -> Callable[..., Awaitable[Any]]:
    """workload(kind, name, pod={}, **spec): made with a selector and a template that fit."""

    async def make(kind: Any, name: str, *, pod: dict[str, Any] | None = None, **spec: Any) -> Any:
        containers = {"containers": [{"name": "main", "image": "v1"}]}
        template = {"metadata": {"labels": LABELS}, "spec": containers | (pod or {})}
        body = {"selector": {"matchLabels": LABELS}, "template": template} | spec
        if kind.kind == "Job":
            del body["selector"]
        return await kube.create(kind, {"metadata": {"name": name}, "spec": body}, "default")

    return make


@pytest.fixture
def pods(kube: Client) -> Callable[[], Awaitable[list[Pod]]]:
    """All pods, by name."""

    async def read() -> list[Pod]:
        return sorted((await kube.list(PODS)).items, key=lambda pod: pod.metadata.name)

    return read


@pytest.fixture
def make_node(kube: Client) -> Callable[..., Awaitable[Any]]:
    """make_node(name, labels={}, **spec)"""

    async def make(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Any:
        return await kube.create(NODES, {"metadata": {"name": name, "labels": labels or {}}, "spec": spec})

    return make
