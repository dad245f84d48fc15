"""A real API server in this process, a client and informers of it, and small makers of objects."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tests.unit.fixture_types import Running, Settle, Told

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing import apiserver, wait
from tonnage_box.testing.clock import ManualClock, VirtualPolicy
from tonnage_box.testing.objects import MakeClaim, MakeClass, MakePod, MakeVolume, Objects
from tonnage_box.testing.wait import Eventually


@pytest.fixture
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Virtual time, for tests that are marked so; with --slowness-seed, turns of the loop take some of it."""
    if not request.node.get_closest_marker("virtual_time"):
        return asyncio.DefaultEventLoopPolicy()
    seed = request.config.getoption("--slowness-seed")
    return VirtualPolicy(random.Random(f"{seed} {request.node.nodeid}") if seed else None)


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock with `now` to be moved by the test."""
    return ManualClock()


@pytest.fixture
async def api_server() -> AsyncIterator[ApiServer]:
    """An API server over memory."""
    async with apiserver.api_server() as server:
        yield server


@pytest.fixture
def kube(api_server: ApiServer) -> Client:
    """A client of it."""
    return apiserver.client(api_server)


@pytest.fixture
async def informers(kube: Client) -> AsyncIterator[Informers]:
    """Informers of it, running."""
    async with apiserver.informers(kube) as found:
        yield found


@pytest.fixture
def events(kube: Client) -> EventRecorder:
    """A recorder that writes when told() asks."""
    return EventRecorder(kube, "test")


@pytest.fixture
def settle(kube: Client, informers: Informers) -> Settle:
    """Waits until the caches hold what the server holds."""
    return partial(apiserver.caught_up, kube, informers)


@pytest.fixture
def eventually() -> Eventually:
    """Asks until the answer is true, and returns it."""
    return wait.eventually


@pytest.fixture
def running() -> Running:
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
def told(kube: Client, events: EventRecorder) -> Told:
    """All Events so far: (object, type, reason, message)."""

    async def read() -> list[tuple[str, str, str, str]]:
        while not events._waiting.empty():
            await events._write(events._waiting.get_nowait())
        found = (await kube.list(kinds.EVENTS)).items
        return sorted((e.involved_object.name, e.type, e.reason, e.message) for e in found)

    return read


@pytest.fixture
def objects(kube: Client) -> Objects:
    """Creates objects."""
    return Objects(kube)


@pytest.fixture
def make_class(objects: Objects) -> MakeClass:
    """See Objects.storage_class()."""
    return objects.storage_class


@pytest.fixture
def make_claim(objects: Objects) -> MakeClaim:
    """See Objects.claim()."""
    return objects.claim


@pytest.fixture
def make_volume(objects: Objects) -> MakeVolume:
    """See Objects.volume()."""
    return objects.volume


@pytest.fixture
def make_pod(objects: Objects) -> MakePod:
    """See Objects.pod()."""
    return objects.pod
