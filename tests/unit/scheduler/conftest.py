"""A world without I/O: caches, the cluster's state, a queue and a clock; and a real API server for the shell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from tests.unit.scheduler.world import World

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import UnavailableError
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage.scheduler.scheduler import Scheduler


@pytest.fixture
def world() -> World:
    """An empty world."""
    return World()


@pytest.fixture
def make_world() -> Callable[[], World]:
    """Makes empty worlds, for property tests."""
    return World


class Trouble:
    """A transport to the same server on which some requests do not arrive: fails(request) says which."""

    def __init__(self, inner: Transport) -> None:
        self.fails: Callable[[Request], bool] = lambda request: False
        self._inner = inner
        self.stream = inner.stream
        self.close = inner.close

    async def request(self, request: Request) -> Response:
        """See Transport."""
        if self.fails(request):
            raise UnavailableError("connection lost")
        return await self._inner.request(request)


@pytest.fixture
def trouble(kube: Client) -> Trouble:
    """The transport of the scheduler under test."""
    return Trouble(kube.transport)


@pytest.fixture
def start_scheduler(trouble: Trouble) -> Callable[..., AbstractAsyncContextManager[Scheduler]]:
    """Runs a scheduler with informers and events of its own for a while."""

    @asynccontextmanager
    async def start(**more: Any) -> AsyncIterator[Scheduler]:
        kube = Client(trouble)
        informers, events = Informers(kube), EventRecorder(kube, "default-scheduler")
        scheduler = Scheduler(kube, informers, events, clock=RealClock(), **more)
        informers.start()
        tasks = [asyncio.ensure_future(work) for work in (scheduler.run(), events.run())]
        try:
            yield scheduler
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await informers.close()

    return start
