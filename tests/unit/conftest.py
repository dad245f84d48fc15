"""A real API server in this process, a client and informers of it, and small makers of objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tests.clocks import ManualClock

from tonnage.api import kinds, names
from tonnage.box.apiserver.server.server import ApiServer, extractor
from tonnage.box.apiserver.storage.store import MemoryStore
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers

_LIMIT = 60.0


async def _until(question: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(_LIMIT):
        while not (answer := await question()):
            await asyncio.sleep(0.001)
        return answer


@pytest.fixture
def manual_clock() -> Any:
    """A clock with `now` to be moved by the test."""
    return ManualClock()


@pytest.fixture
async def api_server() -> AsyncIterator[ApiServer]:
    """An API server over memory."""
    server = ApiServer(MemoryStore(extractor()))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def kube(api_server: ApiServer) -> Client:
    """A client of it."""
    return Client(api_server.transport("system:admin"))


@pytest.fixture
async def informers(kube: Client) -> AsyncIterator[Informers]:
    """Informers of it, running."""
    found = Informers(kube)
    found.start()
    yield found
    await found.close()


@pytest.fixture
def events(kube: Client) -> EventRecorder:
    """A recorder that writes when told() asks."""
    return EventRecorder(kube, "test")


@pytest.fixture
def settle(kube: Client, informers: Informers) -> Callable[[], Awaitable[None]]:
    """Waits until the caches hold what the server holds."""

    async def same(informer: Any) -> bool:
        if not informer.synced:
            return False
        live = (await kube.list(informer.kind)).items
        return {o.key: o.metadata.resource_version for o in live} == {
            o.key: o.metadata.resource_version for o in informer.cache
        }

    async def settled() -> None:
        for informer in list(informers._informers.values()):
            await _until(partial(same, informer))

    return settled


@pytest.fixture
def eventually() -> Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    """Asks until the answer is true, and returns it."""

    return _until


@pytest.fixture
def running() -> Callable[..., AbstractAsyncContextManager[None]]:
    """Runs controllers for a while."""

    @asynccontextmanager
    async def run(*controllers: Any) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(controller.run()) for controller in controllers]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return run


@pytest.fixture
def told(kube: Client, events: EventRecorder) -> Callable[[], Awaitable[list[tuple[str, str, str, str]]]]:
    """All Events so far: (object, type, reason, message)."""

    async def read() -> list[tuple[str, str, str, str]]:
        while not events._waiting.empty():
            await events._write(events._waiting.get_nowait())
        found = (await kube.list(kinds.EVENTS)).items
        return sorted((e.involved_object.name, e.type, e.reason, e.message) for e in found)

    return read


@pytest.fixture
def make_class(kube: Client) -> Callable[..., Awaitable[Any]]:
    """make_class(name, mode=..., provisioner=..., default=False, **more)"""

    async def make(name: str, *, mode: str = names.WAIT_FOR_FIRST_CONSUMER, default: bool = False, **more: Any) -> Any:
        notes = {names.DEFAULT_CLASS: "true"} if default else {}
        body = {"provisioner": names.DRIVER, **more, "volumeBindingMode": mode}
        return await kube.create(kinds.STORAGE_CLASSES, {"metadata": {"name": name, "annotations": notes}, **body})

    return make


@pytest.fixture
def make_claim(kube: Client) -> Callable[..., Awaitable[Any]]:
    """make_claim(name, size="1Gi", annotations={}, owners=[], **spec)"""

    async def make(
        name: str,
        size: str = "1Gi",
        *,
        annotations: dict[str, str] | None = None,
        owners: list[dict[str, Any]] | None = None,
        **spec: Any,
    ) -> Any:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec}
        meta = {"name": name, "annotations": annotations or {}, "ownerReferences": owners or []}
        return await kube.create(kinds.CLAIMS, {"metadata": meta, "spec": spec}, "default")

    return make


@pytest.fixture
def make_volume(kube: Client) -> Callable[..., Awaitable[Any]]:
    """make_volume(name, size="1Gi", annotations={}, labels={}, **spec)"""

    async def make(
        name: str,
        size: str = "1Gi",
        *,
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        **spec: Any,
    ) -> Any:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size},
            "csi": {"driver": names.DRIVER, "volumeHandle": name},
            **spec,
        }
        meta = {"name": name, "annotations": annotations or {}, "labels": labels or {}}
        return await kube.create(kinds.VOLUMES, {"metadata": meta, "spec": spec})

    return make


@pytest.fixture
def make_pod(kube: Client) -> Callable[..., Awaitable[Any]]:
    """make_pod(name, ephemeral={volume: claim spec}, claims=[names], **spec)"""

    async def make(
        name: str,
        *,
        ephemeral: dict[str, dict[str, Any]] | None = None,
        claims: list[str] | None = None,
        **spec: Any,
    ) -> Any:
        volumes: list[dict[str, Any]] = []
        for volume, extra in (ephemeral or {}).items():
            claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **extra}
            volumes.append({"name": volume, "ephemeral": {"volumeClaimTemplate": {"spec": claim}}})
        for number, claim_name in enumerate(claims or ()):
            volumes.append({"name": f"c{number}", "persistentVolumeClaim": {"claimName": claim_name}})
        body = {"containers": [{"name": "main", "image": "none"}], "volumes": volumes, **spec}
        return await kube.create(kinds.PODS, {"metadata": {"name": name}, "spec": body}, "default")

    return make
