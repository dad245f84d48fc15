"""Events expire an hour after their last write, in few steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.box.apiserver.api import Watch

from tonnage.base.errors import ExhaustedError
from tonnage.kubernetes.client.transport import MERGE_PATCH, Request
from tonnage_box.apiserver.rest import event_expiry
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Obj, ObjectKey, Store
from tonnage_box.simulate.virtual_time import LoopClock

PATH = "/api/v1/namespaces/default/events"
pytestmark = pytest.mark.virtual_time
HOUR, LATE = event_expiry.TTL_SECONDS, event_expiry.TOGETHER_SECONDS


class FullStore(Store):
    """A store that can remove nothing while it is full."""

    full = False

    async def remove(self, key: ObjectKey, last: Obj, expected: int) -> Any:
        if self.full:
            raise ExhaustedError("full")
        return await super().remove(key, last, expected)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    made = ApiServer(FullStore(extractor()), clock=LoopClock())
    await made.start()
    yield made
    await made.stop()


async def write(server: ApiServer, name: str) -> None:
    involved = (
        b'{"metadata": {"name": "%s"}, "involvedObject": {"kind": "Pod", "namespace": "default"}}' % name.encode()
    )
    assert (await server.transport().request(Request("POST", PATH, body=involved))).status == 201


async def touch(server: ApiServer, name: str) -> None:
    request = Request("PATCH", f"{PATH}/{name}", body=b'{"message": "again"}', content_type=MERGE_PATCH)
    assert (await server.transport().request(request)).status == 200


def names(server: ApiServer) -> list[str]:
    return [record.key.name for record in server.store.records("events")]


async def test_events_are_removed_an_hour_after_their_last_write(server: ApiServer) -> None:
    for n in range(100):
        await write(server, f"e{n:03}")
    await asyncio.sleep(HOUR / 2)
    await touch(server, "e050")
    async with server.transport().stream(Request("GET", PATH, {"watch": "1", "resourceVersion": "0"})) as chunks:
        watch = Watch(chunks)
        await watch.names(100)
        await asyncio.sleep(HOUR / 2 - 1)
        assert len(names(server)) == 100
        await asyncio.sleep(LATE + 5)
        assert names(server) == ["e050"]
        assert await watch.names(99) == [("DELETED", f"e{n:03}") for n in range(100) if n != 50]
        await asyncio.sleep(HOUR / 2)
        assert names(server) == []
        assert await watch.names(1) == [("DELETED", "e050")]


async def test_a_busy_server_looks_for_old_events_once_a_minute_and_an_idle_one_never(server: ApiServer) -> None:
    for n in range(600):
        await write(server, f"e{n}")
        await asyncio.sleep(1)
    await asyncio.sleep(2 * HOUR)
    assert names(server) == []
    assert server._events.runs <= 600 / LATE + 1
    runs = server._events.runs
    await asyncio.sleep(100 * HOUR)
    assert server._events.runs == runs
    assert server._events._timer is None


async def test_a_start_counts_from_the_times_of_an_event() -> None:
    clock, store = LoopClock(), Store(extractor())
    for name, age in (("old", 2 * HOUR), ("half", HOUR / 2), ("future", -9 * HOUR)):
        time = datetime.fromtimestamp(clock.time() - age, UTC).isoformat(timespec="seconds")
        await store.put(ObjectKey("events", "default", name), {"metadata": {"name": name}, "lastTimestamp": time}, 0)
    await store.put(ObjectKey("events", "default", "none"), {"metadata": {"name": "none"}, "eventTime": "soon"}, 0)
    server = ApiServer(store, clock=clock)
    await server.start()
    await asyncio.sleep(LATE + 1)
    assert names(server) == ["future", "half", "none"]
    await asyncio.sleep(HOUR / 2)
    assert names(server) == ["future", "none"]
    await asyncio.sleep(HOUR / 2)
    assert names(server) == []
    await server.stop()


async def test_what_cannot_be_removed_is_tried_again(server: ApiServer) -> None:
    assert isinstance(server.store, FullStore)
    await write(server, "a")
    server.store.full = True
    await asyncio.sleep(HOUR + 5 * LATE)
    assert names(server) == ["a"]
    server.store.full = False
    await asyncio.sleep(LATE + 1)
    assert names(server) == []
