"""A real API server, reached in this process or over HTTPS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tonnage.aio.clock import RealClock
from tonnage.box.apiserver.server import auth
from tonnage.box.apiserver.server.server import ApiServer, extractor
from tonnage.box.apiserver.storage.store import Store
from tonnage.kube import kubeconfig
from tonnage.kube.client import Client
from tonnage.kube.http import HttpTransport


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """An API server over memory that listens on loopback; its kubeconfig lies at tmp_path/kubeconfig."""
    credentials = auth.ensure(tmp_path / "tls", RealClock())
    server = ApiServer(Store(extractor()), credentials=credentials)
    await server.start()
    auth.write_kubeconfig(tmp_path / "kubeconfig", await server.listen(), credentials)
    yield server
    await server.stop()


@pytest.fixture(params=["in process", "https"])
async def client(request: pytest.FixtureRequest, server: ApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    """A client of it, over each transport."""
    if request.param == "https":
        client = Client(HttpTransport(kubeconfig.load(tmp_path / "kubeconfig")))
    else:
        client = Client(server.transport())
    yield client
    await client.close()
