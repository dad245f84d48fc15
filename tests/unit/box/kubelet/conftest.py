"""A node: an API server over the memory store, a driver over a fake pool on real sockets, and the kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.box.kubelet.machine import DRIVER, GIB, NODE, Eventually, Machine

from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.kubernetes.api.kinds import CSI_DRIVERS, STORAGE_CLASSES
from tonnage.kubernetes.client.client import Client
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.kubelet.containers.runtime import Runtime


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path: unix sockets take 107 bytes."""
    return tmp_path_factory.mktemp("k")


@pytest.fixture
async def machine(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Machine]:
    """A started node with its driver registered. Parametrize indirectly with a runtime factory for real containers."""
    async with _machine(folder, getattr(request, "param", None)) as made:
        yield made


@asynccontextmanager
async def _machine(folder: Path, make_runtime: Callable[[Path], Runtime] | None) -> AsyncIterator[Machine]:
    async with AsyncExitStack() as stack:
        server = ApiServer(Store(extractor()))
        await server.start()
        stack.push_async_callback(server.stop)
        client = Client(server.transport())
        await client.create(STORAGE_CLASSES, {"metadata": {"name": "fast"}, "provisioner": DRIVER})
        spec = {
            "attachRequired": False,
            "podInfoOnMount": True,
            "storageCapacity": True,
            "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        }
        await client.create(CSI_DRIVERS, {"metadata": {"name": DRIVER}, "spec": spec})
        pool = FakePool("default", 100 * GIB)
        driver = Driver(NODE, {"default": pool}, folder / "state", name=DRIVER)
        registry = folder / "kubelet" / "plugins_registry"
        endpoint = await stack.enter_async_context(DriverEndpoint(driver, folder / "csi.sock", registry=registry))
        made = Machine(folder, client, pool, endpoint, make_runtime)
        await made.start()
        stack.push_async_callback(made.stop)
        yield made


@pytest.fixture
def eventually() -> Eventually:
    """eventually(check): wait until check() is true; fails after a minute."""

    async def wait(check: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not check():
                await asyncio.sleep(0.01)

    return wait
