"""The durable store against a model: any order of writes, batches, and restarts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples

from tonnage.base.errors import ExhaustedError
from tonnage_box.apiserver.storage.sqlite import SqliteStore
from tonnage_box.apiserver.storage.store import ObjectKey, StaleError, Store, StoreEvent, StoreLimits

T = TypeVar("T")
KIB = 1 << 10
NAMES = st.sampled_from(["a", "b", "c", "d"])


def key(name: str) -> ObjectKey:
    return ObjectKey("things", "n", name)


class StoreMachine(RuleBasedStateMachine):
    """Model: name -> (revision, value)."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.model: dict[str, tuple[int, int]] = {}
        self.told: list[StoreEvent] = []
        self.revision = 0
        self.open()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def open(self) -> None:
        self.store = SqliteStore(Path(self.folder.name) / "state.db", lambda collection, obj: {})
        self.do(self.store.start())
        self.told.clear()
        self.store.listen(self.told.append)
        self.first = self.store.revision

    async def write(self, name: str, value: int, expected: int, *, remove: bool) -> int | None:
        obj = {"metadata": {"name": name}, "value": value}
        act = self.store.remove if remove else self.store.put
        try:
            record = await act(key(name), obj, expected)
        except StaleError:
            return None
        return record.revision

    @rule(name=NAMES, value=st.integers(0, 9), offset=st.sampled_from([0, 0, 0, 1]), remove=st.booleans())
    def write_one(self, name: str, value: int, offset: int, remove: bool) -> None:
        current = self.model.get(name, (0, 0))[0]
        if remove and not current:
            return
        revision = self.do(self.write(name, value, current + offset, remove=remove))
        assert (revision is None) == bool(offset)
        self.note(name, value, revision, remove=remove)

    @rule(names=st.lists(NAMES, unique=True, min_size=2), value=st.integers(0, 9))
    def write_many(self, names: list[str], value: int) -> None:
        async def all_of_them() -> list[int | None]:
            current = [self.model.get(n, (0, 0))[0] for n in names]
            work = (self.write(n, value, c, remove=False) for n, c in zip(names, current, strict=True))
            return await asyncio.gather(*work)

        for name, revision in zip(names, self.do(all_of_them()), strict=True):
            assert revision is not None
            self.note(name, value, revision, remove=False)

    @rule(name=NAMES)
    def race(self, name: str) -> None:
        async def both() -> list[int | None]:
            current = self.model.get(name, (0, 0))[0]
            return await asyncio.gather(*(self.write(name, v, current, remove=False) for v in (1, 2)))

        first, second = self.do(both())
        assert second is None
        self.note(name, 1, first, remove=False)

    def note(self, name: str, value: int, revision: int | None, *, remove: bool) -> None:
        if revision is None:
            return
        self.revision = max(self.revision, revision)
        if remove:
            del self.model[name]
        else:
            self.model[name] = (revision, value)

    @rule()
    @precondition(lambda self: self.told)
    def restart(self) -> None:
        self.do(self.store.stop())
        self.open()

    @invariant()
    def holds_the_model(self) -> None:
        found = {r.key.name: (r.revision, r.decode()["value"]) for r in self.store.records("things")}
        assert found == self.model
        assert self.store.revision >= self.revision
        revisions = [e.record.revision for e in self.told]
        assert revisions == sorted(set(revisions))
        assert self.store.since("things", self.first) == self.told

    def teardown(self) -> None:
        self.do(self.store.stop())
        self.loop.close()
        self.folder.cleanup()


TestStoreMachine = pytest.mark.slow(StoreMachine.TestCase)
TestStoreMachine.settings = examples(10, machine=True, stateful_step_count=20, deadline=None)


def thing(name: str, size: int, **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **meta}, "data": "x" * size}


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
async def test_a_full_store_takes_only_what_deletes(tmp_path: Path, durable: bool) -> None:
    limits = StoreLimits(objects=100 * KIB, margin=2 * KIB)

    def made() -> Store:
        if durable:
            return SqliteStore(tmp_path / "state.db", lambda *_: {}, limits=limits)
        return Store(lambda *_: {}, limits)

    store = made()
    await store.start()
    for n in range(9):
        await store.put(key(f"x{n}"), thing(f"x{n}", 10_000), 0)
    with pytest.raises(ExhaustedError, match=r"the store is full: .* 102400 at most: delete some"):
        await store.put(key("y"), thing("y", 10_000), 0)
    with pytest.raises(ExhaustedError, match="the store is full"):
        await store.put(key("x0"), thing("x0", 20_000), revision(store, "x0"))
    await store.put(key("x0"), thing("x0", 9_000), revision(store, "x0"))
    for n in range(3):  # as conditions of a status do
        await store.put(key("x0"), thing("x0", 9_000 + 1_000 * n), revision(store, "x0"))
    before = store.size
    while store.size <= 102 * KIB - 1000:
        await store.put(key("x1"), thing("x1", 10_000 + store.size - before + 1000), revision(store, "x1"))
    with pytest.raises(ExhaustedError):
        await store.put(key("x2"), thing("x2", 11_000), revision(store, "x2"))
    size = store.size
    if durable:
        await store.stop()
        store = made()
        await store.start()
    assert store.size == size
    await store.put(key("x2"), thing("x2", 10_000, deletionTimestamp="2030-01-01T00:00:00Z"), revision(store, "x2"))
    with pytest.raises(ExhaustedError):  # once
        await store.put(key("x2"), thing("x2", 11_000, deletionTimestamp="2030-01-01T00:00:00Z"), revision(store, "x2"))
    await store.remove(key("x2"), thing("x2", 99_000), revision(store, "x2"))
    await store.put(key("y"), thing("y", 1_000), 0)
    for n in range(9):
        if n != 2:
            await store.remove(key(f"x{n}"), thing(f"x{n}", 0), revision(store, f"x{n}"))
    await store.remove(key("y"), thing("y", 0), revision(store, "y"))
    assert store.size == 0
    await store.stop()


def revision(store: Store, name: str) -> int:
    found = store.get(key(name))
    assert found is not None
    return found.revision
