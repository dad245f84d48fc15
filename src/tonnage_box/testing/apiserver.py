"""An API server in this process, as `tonnage up` has it, without sockets and files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informer, Informers
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.testing.wait import eventually

ADMINISTRATOR = "system:admin"


@asynccontextmanager
async def api_server(clock: Clock | None = None) -> AsyncIterator[ApiServer]:
    """A started API server over memory. clock: for creation times; the machine's by default."""
    store = Store(extractor())
    server = ApiServer(store) if clock is None else ApiServer(store, clock=clock)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def client(server: ApiServer, user: str = ADMINISTRATOR) -> Client:
    """A client of it, without HTTP. user: the authenticated user of its requests."""
    return Client(server.transport(user))


@asynccontextmanager
async def informers(client: Client) -> AsyncIterator[Informers]:
    """Started informers, ended with the block."""
    found = Informers(client)
    found.start()
    try:
        yield found
    finally:
        await found.close()


async def caught_up(client: Client, informers: Informers) -> None:
    """Wait until the caches hold what the server holds. Raises: TimeoutError."""
    for informer in informers.all():
        await eventually(partial(_same, client, informer))


async def _same(client: Client, informer: Informer[Any]) -> bool:
    if not informer.synced:
        return False
    kind: Kind[Any] = informer.kind
    live = (await client.list(kind)).items
    return {o.key: o.metadata.resource_version for o in live} == {
        o.key: o.metadata.resource_version for o in informer.cache
    }
