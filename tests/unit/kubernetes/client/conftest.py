"""A real API server, reached in this process or over HTTPS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage_box.apiserver.server import auth
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store


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
