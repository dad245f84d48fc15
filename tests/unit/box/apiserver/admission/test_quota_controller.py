"""The keeper of quota status, when writes go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tonnage.base.errors import UnavailableError
from tonnage_box.apiserver.admission.quota_controller import QuotaController
from tonnage_box.apiserver.request.negotiate import MAX_INSIDE
from tonnage_box.apiserver.server.server import extractor
from tonnage_box.apiserver.storage.store import ObjectKey, StaleError, Store, StoredObject

Obj = dict[str, Any]
QUOTA = ObjectKey("resourcequotas", "ns", "q")


class Patience:
    """A clock that only counts how long it was asked to wait."""

    def __init__(self) -> None:
        self.waited = 0.0

    def time(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.waited += seconds


class Moody(Store):
    """A store whose next writes of a quota's status fail."""

    def __init__(self) -> None:
        super().__init__(extractor())
        self.moods: list[Callable[[], Exception]] = []
        self.status_writes = 0

    async def put(self, key: ObjectKey, obj: Obj, expected: int) -> StoredObject:
        if key == QUOTA and "status" in obj:
            self.status_writes += 1
            if self.moods:
                raise self.moods.pop(0)()
        return await super().put(key, obj, expected)


@pytest.fixture
async def store() -> Moody:
    made = Moody()
    await made.put(QUOTA, {"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "3"}}}, 0)
    return made


@pytest.fixture
async def keeper(store: Moody) -> AsyncIterator[tuple[QuotaController, Patience]]:
    clock = Patience()
    made = QuotaController(store, clock)
    yield made, clock
    await made.stop()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def used(store: Moody) -> Obj | None:
    record = store.get(QUOTA)
    assert record is not None
    status = record.decode().get("status")
    return status and status["used"]


async def add(store: Moody, name: str) -> None:
    await store.put(ObjectKey("configmaps", "ns", name), {"metadata": {"name": name}}, 0)


async def test_what_was_there_at_the_start_is_counted(store: Moody, keeper: tuple[QuotaController, Patience]) -> None:
    await add(store, "a")
    keeper[0].start()
    await settle()
    assert used(store) == {"configmaps": "1"}


async def test_many_changes_at_once_are_one_write(store: Moody, keeper: tuple[QuotaController, Patience]) -> None:
    keeper[0].start()
    await settle()
    before = store.status_writes
    for name in "abc":
        await add(store, name)
    await settle()
    assert used(store) == {"configmaps": "3"}
    assert store.status_writes == before + 1


@pytest.mark.parametrize(
    ("mood", "waits"),
    [
        pytest.param(lambda: StaleError("q"), 0.0, id="somebody else wrote"),
        pytest.param(lambda: UnavailableError("disk"), 5.0, id="the disk is full"),
    ],
)
async def test_a_write_that_fails_is_repeated(
    store: Moody, keeper: tuple[QuotaController, Patience], mood: Callable[[], Exception], waits: float
) -> None:
    store.moods = [mood]
    keeper[0].start()
    await settle()
    assert used(store) == {"configmaps": "0"}
    assert keeper[1].waited == waits


async def test_when_the_last_quota_goes_counting_ends(store: Moody, keeper: tuple[QuotaController, Patience]) -> None:
    keeper[0].start()
    await settle()
    record = store.get(QUOTA)
    assert record is not None
    await store.remove(QUOTA, record.decode(), record.revision)
    assert keeper[0]._used == {}


async def test_counting_that_was_cancelled_before_it_began_keeps_nobody_waiting(
    store: Moody, keeper: tuple[QuotaController, Patience]
) -> None:
    large = {"metadata": {"name": "a"}, "data": {"a": "x" * (MAX_INSIDE + 1)}}
    await store.put(ObjectKey("configmaps", "ns", "a"), large, 0)
    keeper[0].start()
    await keeper[0].stop()
    async with asyncio.timeout(10):
        assert await keeper[0].used("ns") == {}

    found = store.get(ObjectKey("configmaps", "ns", "a"))
    assert found is not None
    await store.remove(found.key, large, found.revision)
    async with asyncio.timeout(10):
        used = await keeper[0].used("ns")
    assert used["configmaps"] == 0, "the next large change counts what was left"
