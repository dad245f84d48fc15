"""Watches: who gets which event, in how many turns of the loop, and who is dropped."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.turns import turned

from tonnage.kubernetes.client.transport import Request
from tonnage_box.apiserver.storage import watch
from tonnage_box.apiserver.storage import watch as watches

MAPS = "/api/v1/namespaces/default/configmaps"


async def test_a_watch_that_begins_with_many_objects_lets_the_loop_turn(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(600):
        await api.create(MAPS, {"metadata": {"name": f"x{n}"}})
    await api.create(MAPS, {"metadata": {"name": "y", "labels": {"a": "b"}}})
    looks, most, selects = 0, 0, watch.Filter.selects

    def counted(self: watch.Filter, record: Any) -> bool:
        nonlocal looks
        looks += 1
        return selects(self, record)

    async def turn() -> None:
        nonlocal looks, most
        while True:
            most, looks = max(most, looks), 0
            await asyncio.sleep(0)

    monkeypatch.setattr(watch.Filter, "selects", counted)
    async with api.watch(MAPS, labelSelector="a=b") as watching:
        turning = asyncio.ensure_future(turn())
        await asyncio.sleep(0)
        assert (await watching.next())[1]["metadata"]["name"] == "y"
        await asyncio.sleep(0)
        turning.cancel()
    assert 0 < most <= watch.SLICE


async def test_one_turn_of_the_loop_brings_events_to_so_many_watchers(api: Api) -> None:
    hub = api.server.hub
    async with AsyncExitStack() as stack:
        streams = [api.transport.stream(Request("GET", MAPS, {"watch": "1"})) for _ in range(200)]
        opened = [await stack.enter_async_context(stream) for stream in streams]
        names = [f"x{n}" for n in range(10)]
        # A store in memory shows all of them in one turn, as a commit of SQLite does.
        work = asyncio.gather(*(api.create(MAPS, {"metadata": {"name": name}}) for name in names))
        most = await turned(work, lambda: hub.examined)
        while hub._backlog:
            await asyncio.sleep(0)
        assert hub.examined == 2000
        assert 0 < most <= 2 * watch.SLICE  # what was left of this turn, and the next
        for chunks in opened:  # each has all, in order
            seen: list[str] = []
            while len(seen) < 10:
                lines = (await anext(chunks)).splitlines()
                seen += [json.loads(line)["object"]["metadata"]["name"] for line in lines]
            assert seen == names


PODS = "/api/v1/namespaces/default/pods"


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def config(name: str = "x", labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def pod(name: str, node: str = "", **labels: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "busybox"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec | ({"nodeName": node} if node else {})}


async def test_a_change_that_cannot_be_shown_ends_only_that_watch(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> Any:
        raise ValueError("no such cell")

    async with api.watch(MAPS, accept=TABLE) as table, api.watch(MAPS) as plain:
        monkeypatch.setattr("tonnage_box.apiserver.printers.table.row", broken)
        await api.create(MAPS, config("x"))
        assert await plain.names(1) == [("ADDED", "x")]
        with pytest.raises(StopAsyncIteration):
            await table.next()


async def test_a_watcher_that_does_not_read_is_dropped(api: Api) -> None:
    api.server.hub.buffers.events = 5
    async with api.watch(MAPS) as slow, api.watch(MAPS) as quick:
        for n in range(10):
            await api.create(MAPS, config(f"x{n}"))
            assert await quick.names(1) == [("ADDED", f"x{n}")]
        with pytest.raises(StopAsyncIteration):
            await slow.next()


@pytest.mark.slow
async def test_watchers_that_do_not_match_cost_nothing(api: Api) -> None:
    async with asyncio.TaskGroup() as group:
        opened = [api.watch(PODS, labelSelector=f"tonnage.dev/node=n{n}") for n in range(2500)]
        opened += [api.watch("/api/v1/pods", fieldSelector=f"spec.nodeName=n{n}") for n in range(2500)]
        readers = [group.create_task(w.__aenter__()) for w in opened]
    assert len(api.server.hub) == 5000
    before = api.server.hub.examined
    await api.create(PODS, pod("p", "n7"))
    await api.patch(f"{PODS}/p", {"metadata": {"labels": {"tonnage.dev/node": "n8"}}})
    await api.create(MAPS, config())
    assert api.server.hub.examined - before == 3  # one for the creation, two for the change
    assert await readers[8].result().names(1) == [("ADDED", "p")]
    assert await readers[2507].result().names(2) == [("ADDED", "p"), ("MODIFIED", "p")]
    for one in opened:
        await one.__aexit__(None, None, None)
    assert len(api.server.hub) == 0


async def test_large_fan_outs_let_the_loop_turn_and_keep_the_order(api: Api) -> None:
    count = watches.SLICE * 3
    opened = [api.watch(MAPS) for _ in range(count)]
    readers = [await w.__aenter__() for w in opened]
    turns = api.server.hub.examined
    await api.create(MAPS, config("x"))
    assert api.server.hub.examined - turns <= watches.SLICE * 2
    await api.create(MAPS, config("y"))
    await api.patch(f"{MAPS}/x", {"data": {"a": "1"}})
    for reader in (readers[0], readers[-1]):
        assert await reader.names(3) == [("ADDED", "x"), ("ADDED", "y"), ("MODIFIED", "x")]
    for one in opened:
        await one.__aexit__(None, None, None)


MIB = 1 << 20


def sized(name: str, size: int) -> bytes:
    return json.dumps({"metadata": {"name": name}, "data": {"a": "x" * size}}).encode()


async def changed(api: Api, name: str, size: int) -> None:
    """One more event of so many bytes."""
    await api.send("POST", MAPS, sized(name, size))
    await api.send("DELETE", f"{MAPS}/{name}")


@pytest.mark.slow
async def test_watchers_that_do_not_read_hold_64_mib_together(api: Api) -> None:
    api.server.hub.buffers.events = 10**9
    hub = api.server.hub
    async with AsyncExitStack() as stack:
        for _ in range(1000):
            stream = api.transport.stream(Request("GET", MAPS, {"watch": "1"}))
            await stack.enter_async_context(stream)
        reading = await stack.enter_async_context(api.watch(MAPS))
        peak = 0
        for n in range(300):
            await changed(api, f"x{n}", 1000)
            assert await reading.names(2) == [("ADDED", f"x{n}"), ("DELETED", f"x{n}")]
            peak = max(peak, hub.buffers.total)
        assert 32 * MIB < peak <= watch.BUFFERS_BYTES
        assert 0 < sum(w.dropped for w in hub._watchers) < 1000
        for n in range(30):
            await changed(api, f"y{n}", MIB)
            assert await reading.names(2) == [("ADDED", f"y{n}"), ("DELETED", f"y{n}")]
        assert sum(w.dropped for w in hub._watchers) == 1000
        assert hub.buffers.total < 3 * MIB
        await changed(api, "last", 10)
        assert await reading.names(2) == [("ADDED", "last"), ("DELETED", "last")]
    assert len(hub) == 0
    assert hub.buffers.total == 0


async def test_those_that_lag_most_are_dropped_first(api: Api) -> None:
    api.server.hub.buffers.limit = 4 * MIB
    async with AsyncExitStack() as stack:
        streams = []
        for n in range(3):
            await api.create(MAPS, sized(f"x{n}", 600_000))
            now = (await api.get(MAPS))["metadata"]["resourceVersion"]
            query = {"watch": "1", "resourceVersion": now}
            streams.append(await stack.enter_async_context(api.transport.stream(Request("GET", MAPS, query))))
        first, second, third = list(api.server.hub._watchers)
        await api.create(MAPS, sized("a", 1_000_000))
        assert b'"a"' in await anext(streams[2])
        for n in range(3):
            await api.create(MAPS, sized(f"b{n}", 900_000))
            if n == 0:
                assert b'"b0"' in await anext(streams[2])
        await api.create(MAPS, sized("c", 900_000))
        assert (first.dropped, second.dropped, third.dropped) == (True, True, False)
        assert api.server.hub.buffers.total <= 4 * MIB


async def test_a_chunk_counts_until_it_has_been_sent(api: Api) -> None:
    buffers = api.server.hub.buffers
    async with api.transport.stream(Request("GET", MAPS, {"watch": "1"})) as chunks:
        await api.create(MAPS, sized("x", 1_000_000))
        assert buffers.total > 1_000_000
        assert b'"x"' in await anext(chunks)
        assert buffers.total > 1_000_000
        waiting = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        assert buffers.total == 0
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_many_small_events_are_handed_out_in_chunks(api: Api) -> None:
    async with api.transport.stream(Request("GET", MAPS, {"watch": "1"})) as chunks:
        for n in range(200):
            await api.create(MAPS, sized(f"x{n}", 1000))
        sizes: list[int] = []
        while sum(sizes) < 200_000:
            sizes.append(len(await anext(chunks)))
        assert max(sizes) <= watch.CHUNK_BYTES
