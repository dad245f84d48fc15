"""API servers that listen, and their clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest
from tests.unit.box.apiserver.server.listening import Box

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import ApiNotFoundError
from tonnage_box.apiserver.server import auth
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store


async def logs(namespace: str, name: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
    if query.get("previous"):
        raise ApiNotFoundError(f"no earlier container of {namespace}/{name}")
    yield b"first\n"
    await asyncio.sleep(0)
    yield b"second\n"


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    credentials = auth.ensure(tmp_path, RealClock())
    server = ApiServer(Store(extractor()), credentials=credentials, pod_logs=logs)
    await server.start()
    await server.listen()
    context = ssl.create_default_context(cafile=str(credentials.certificate))
    headers = {"Authorization": f"Bearer {credentials.token}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield Box(server, session)
    await server.stop()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    served = ApiServer(Store(extractor()), credentials=auth.ensure(tmp_path, RealClock()))
    await served.start()
    await served.listen()
    yield served
    await served.stop()
