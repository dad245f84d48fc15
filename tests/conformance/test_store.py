"""What every store promises, held against each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.errors import ApiGoneError
from tonnage_box.apiserver.storage.sqlite import SqliteStore
from tonnage_box.apiserver.storage.store import ObjectKey, StaleError, Store, StoreEvent, StoreLimits


def fields(collection: str, obj: dict[str, Any]) -> Mapping[str, str]:
    return {"spec.color": obj.get("spec", {}).get("color", "")}


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    limits = StoreLimits(history=2000)
    is_durable = request.param == "sqlite"
    made = SqliteStore(tmp_path / "state.db", fields, limits=limits) if is_durable else Store(fields, limits)
    await made.start()
    yield made
    await made.stop()


def thing(name: str, color: str = "red", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"color": color}}


def key(name: str, namespace: str = "a", collection: str = "things") -> ObjectKey:
    return ObjectKey(collection, namespace, name)


async def test_put_stamps_encodes_and_indexes(store: Store) -> None:
    before = store.revision
    record = await store.put(key("x"), thing("x", "blue", app="y"), 0)
    assert record.revision > before
    assert store.revision == record.revision
    assert store.get(key("x")) is record
    assert record.decode()["metadata"]["resourceVersion"] == str(record.revision)
    assert record.labels == {"app": "y"}
    assert record.fields == {"spec.color": "blue"}


async def test_create_of_what_exists_is_stale(store: Store) -> None:
    first = await store.put(key("x"), thing("x"), 0)
    with pytest.raises(StaleError):
        await store.put(key("x"), thing("x"), 0)
    assert store.get(key("x")) is first


async def test_replace_needs_the_current_revision(store: Store) -> None:
    first = await store.put(key("x"), thing("x"), 0)
    second = await store.put(key("x"), thing("x", "blue"), first.revision)
    with pytest.raises(StaleError):
        await store.put(key("x"), thing("x", "green"), first.revision)
    with pytest.raises(StaleError):
        await store.remove(key("x"), thing("x"), first.revision)
    assert store.get(key("x")) is second


async def test_writes_of_one_object_at_once_let_one_win(store: Store) -> None:
    first = await store.put(key("x"), thing("x"), 0)
    writes = [store.put(key("x"), thing("x", str(n)), first.revision) for n in range(10)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(r, StaleError) for r in results) == 9


async def test_remove_tells_the_last_state_at_a_new_revision(store: Store) -> None:
    told: list[StoreEvent] = []
    first = await store.put(key("x"), thing("x"), 0)
    store.listen(told.append)
    gone = await store.remove(key("x"), thing("x", "grey"), first.revision)
    assert store.get(key("x")) is None
    assert [e.type for e in told] == ["DELETED"]
    assert gone.revision == store.revision > first.revision
    assert gone.decode()["metadata"]["resourceVersion"] == str(gone.revision)
    assert told[0].before is first


async def test_records_are_in_order(store: Store) -> None:
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        await store.put(key(name, namespace), thing(name), 0)
    await store.put(key("o", "a", "others"), thing("o"), 0)
    assert [r.key[1:] for r in store.records("things")] == [("a", "y"), ("a", "z"), ("b", "x")]
    assert [r.key.name for r in store.records("things", "b")] == ["x"]
    assert store.records("things", "nowhere") == []
    assert store.count("things") == 3
    assert list(store.collections()) == ["others", "things"]


async def test_events_come_in_order_of_revisions(store: Store) -> None:
    told: list[int] = []
    store.listen(lambda event: told.append(event.record.revision))
    await asyncio.gather(*(store.put(key(str(n)), thing(str(n)), 0) for n in range(300)))
    assert len(told) == 300
    assert told == sorted(told)


async def test_a_listener_that_fails_stops_nothing(store: Store) -> None:
    told: list[int] = []

    def broken(event: StoreEvent) -> None:
        raise ValueError(event.type)

    store.listen(broken)
    store.listen(lambda event: told.append(event.record.revision))
    await asyncio.gather(*(store.put(key(str(n)), thing(str(n)), 0) for n in range(3)))
    assert len(told) == 3


async def test_since_gives_what_is_newer(store: Store) -> None:
    start = store.revision
    first = await store.put(key("x"), thing("x"), 0)
    await store.put(key("o", "a", "others"), thing("o"), 0)
    await store.put(key("x"), thing("x", "blue"), first.revision)
    assert [e.type for e in store.since("things", start)] == ["ADDED", "MODIFIED"]
    assert [e.type for e in store.since("things", first.revision)] == ["MODIFIED"]
    assert store.since("things", store.revision) == []
    assert store.changed("things") == store.revision
    assert store.changed("others") < store.revision


async def test_history_is_bounded(store: Store) -> None:
    start = store.revision
    for n in range(60):
        await store.put(key(f"x{n}"), thing(f"x{n}"), 0)
    with pytest.raises(ApiGoneError):
        store.since("things", start)
    assert len(store.since("things", store.revision - 2)) == 2


async def test_writer_that_stops_waiting_does_not_stop_the_write(store: Store) -> None:
    task = asyncio.ensure_future(store.put(key("x"), thing("x"), 0))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(StaleError):  # waits for the write that is under way, then finds it
        await store.put(key("x"), thing("x"), 0)
