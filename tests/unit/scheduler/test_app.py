"""`tonnage scheduler`: of several one places pods, another takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tonnage.base.observe import metrics
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.leader_process import ElectedProcess
from tonnage.scheduler.app import SchedulerConfig, scheduler_process
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.simulate.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time
_LIMIT = 60.0
"""Virtual seconds: longer than a Lease."""


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer(Store(extractor()))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def kube(server: ApiServer) -> Client:
    """With one node that takes four pods."""
    client = Client(server.transport("system:admin"))
    await client.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "4"}}
    await client.create(kinds.NODES, {"metadata": {"name": "n1"}, "status": status})
    return client


@pytest.fixture
async def replica(server: ApiServer) -> AsyncIterator[Callable[..., Awaitable[ElectedProcess]]]:
    """replica(identity, name=...): one that runs."""
    made: list[ElectedProcess] = []

    async def make(identity: str, **more: Any) -> ElectedProcess:
        client = Client(server.transport("system:admin"))
        process = scheduler_process(SchedulerConfig(identity, **more), client, clock=LoopClock())
        made.append(process)
        await process.start()
        return process

    yield make
    for process in made:
        await process.stop()


async def _pod(kube: Client, name: str, scheduler: str = names.SCHEDULER) -> None:
    spec = {"containers": [{"name": "main", "image": "none"}], "schedulerName": scheduler}
    await kube.create(kinds.PODS, {"metadata": {"name": name}, "spec": spec}, "default")


async def _node(kube: Client, name: str) -> str:
    return (await kube.get(kinds.PODS, name, "default")).spec.node_name


async def _placed(kube: Client, name: str) -> None:
    async with asyncio.timeout(_LIMIT):
        while not await _node(kube, name):
            await asyncio.sleep(0.01)


async def _leader(kube: Client, lease: str = names.SCHEDULER) -> str:
    return (await kube.get(kinds.LEASES, lease, names.SYSTEM_NAMESPACE)).spec.holder_identity or ""


async def test_pods_that_name_it_are_placed_and_no_others(kube: Client, replica: Any) -> None:
    await replica("one")
    await _pod(kube, "theirs", "default-scheduler")
    await _pod(kube, "ours")
    await _placed(kube, "ours")
    assert await _node(kube, "theirs") == ""
    assert metrics.SCHEDULER_LEADS._value.get() == 1
    events = [e for e in (await kube.list(kinds.EVENTS)).items if e.reason == "Scheduled"]
    assert {e.source.component for e in events} <= {names.SCHEDULER}


async def test_another_takes_over(kube: Client, replica: Any) -> None:
    first = await replica("one")
    await _pod(kube, "a")
    await _placed(kube, "a")
    await replica("two")
    await first.stop()
    await _pod(kube, "b")
    await _placed(kube, "b")
    assert await _leader(kube) == "two"


async def test_two_of_different_names_do_not_know_each_other(kube: Client, replica: Any) -> None:
    await replica("one")
    await replica("other", name="packing")
    await _pod(kube, "a")
    await _pod(kube, "b", "packing")
    await _placed(kube, "a")
    await _placed(kube, "b")
    assert (await _leader(kube), await _leader(kube, "packing")) == ("one", "other")


async def test_a_pod_that_has_ended_gives_its_room_back(kube: Client, replica: Any) -> None:
    await replica("one")
    for number in range(4):
        await _pod(kube, f"p{number}")
        await _placed(kube, f"p{number}")
    await _pod(kube, "fifth")
    await asyncio.sleep(1)
    assert await _node(kube, "fifth") == ""
    await kube.patch(kinds.PODS, "p0", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
    await _placed(kube, "fifth")
