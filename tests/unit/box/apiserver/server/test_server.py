"""What every cluster has, and where the server listens."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.unit.box.apiserver.conftest import Api

from tonnage.aio.clock import RealClock
from tonnage.box.apiserver.server import auth
from tonnage.box.apiserver.server.server import ApiServer, extractor
from tonnage.box.apiserver.storage.store import MemoryStore
from tonnage.errors import ApiNotFoundError, BusyError, InvalidError


async def test_namespaces_of_every_cluster(api: Api) -> None:
    names = [i["metadata"]["name"] for i in (await api.get("/api/v1/namespaces"))["items"]]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]
    assert api.server.cluster_id() == (await api.get("/api/v1/namespaces/kube-system"))["metadata"]["uid"]


async def logs(namespace: str, name: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
    if query.get("previous"):
        raise ApiNotFoundError(f"no earlier container of {namespace}/{name}")
    yield b"first\n"
    await asyncio.sleep(0)
    yield b"second\n"


@dataclass
class Box:
    server: ApiServer
    session: aiohttp.ClientSession

    def request(self, method: str, path: str, **options: Any) -> Any:
        return self.session.request(method, self.server.url + path, **options)


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    credentials = auth.ensure(tmp_path, RealClock())
    server = ApiServer(MemoryStore(extractor()), credentials=credentials, pod_logs=logs)
    await server.start()
    await server.listen()
    context = ssl.create_default_context(cafile=str(credentials.certificate))
    headers = {"Authorization": f"Bearer {credentials.token}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield Box(server, session)
    await server.stop()


async def test_a_taken_port_and_open_doors_are_refused(box: Box, tmp_path: Path) -> None:
    port = int(box.server.url.rpartition(":")[2])
    other = ApiServer(MemoryStore(extractor()), credentials=auth.ensure(tmp_path, RealClock()))
    with pytest.raises(BusyError, match="choose another port"):
        await other.listen(port=port)
    with pytest.raises(InvalidError, match="loopback"):
        await other.listen("0.0.0.0")
    with pytest.raises(InvalidError, match="credentials"):
        await ApiServer(MemoryStore(extractor())).listen()
    await other.stop()
