"""A cluster on virtual time: an API server, a client and informers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tonnage.kubernetes.api.kinds import NAMESPACES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Transport
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.simulate.cluster.bodies import NAMESPACE
from tonnage_box.simulate.virtual_time import LoopClock, VirtualLoop

T = TypeVar("T")
Scene = Callable[[Client, Informers, LoopClock], Awaitable[T]]


@pytest.fixture
def play() -> Callable[..., object]:
    """play(scene, wrap): runs it with a client over wrap(transport); informers that it names are synced by start()."""

    def run(scene: Scene[T], wrap: Callable[[Transport, LoopClock], Transport] = lambda inner, clock: inner) -> T:
        loop, clock = VirtualLoop(), LoopClock()

        async def whole() -> T:
            server = ApiServer(Store(extractor()), clock=clock)
            await server.start()
            kube = Client(wrap(server.transport(), clock))
            informers = Informers(kube)
            try:
                await Client(server.transport()).create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
                async with asyncio.timeout(3600):
                    return await scene(kube, informers, clock)
            finally:
                await informers.close()
                await server.stop()

        try:
            return loop.run_until_complete(whole())
        finally:
            loop.close()

    return run
