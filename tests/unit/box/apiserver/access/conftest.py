"""An API server with tokens, and clients of its users."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.unit.box.apiserver.access.served import Kubectl, Served

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api.kinds import SERVICE_ACCOUNTS
from tonnage.kubernetes.client.client import Client
from tonnage_box.apiserver.server.auth import ensure, write_kubeconfig
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.testing.clock import ManualClock


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    clock = ManualClock()
    credentials = ensure(tmp_path / "tls", RealClock())
    server = ApiServer(Store(extractor()), credentials=credentials, clock=clock)
    await server.start()
    await server.listen()
    client = Client(server.transport())
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "robot"}}, "default")
    context = ssl.create_default_context(cafile=str(credentials.certificate))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield Served(server, credentials, clock, session, client)
    await server.stop()


@pytest.fixture
async def kubectl(served: Served, tmp_path: Path, kubectl_program: str) -> Kubectl:
    """kubectl(*arguments, text=stdin, fails=False) -> its output (its complaint, where it is to fail)."""
    write_kubeconfig(tmp_path / "kubeconfig", served.server.url, served.credentials)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}
    pipe = asyncio.subprocess.PIPE

    async def run(*arguments: str, text: str = "", fails: bool = False) -> str:
        process = await asyncio.create_subprocess_exec(
            kubectl_program, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )
        out, complaint = await process.communicate(text.encode())
        assert (process.returncode != 0) == fails, complaint.decode() or out.decode()
        return (complaint if fails else out).decode()

    return run
