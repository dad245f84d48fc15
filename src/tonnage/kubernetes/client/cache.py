"""A cache of objects as last seen, with indexes. No I/O; informers fill it. Its content is frozen and shared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Generic, TypeVar

from tonnage.kubernetes.api.meta import KubeObject

T = TypeVar("T", bound=KubeObject)
Indexer = Callable[[T], Iterable[str]]
Handler = Callable[[T | None, T | None], None]


class Cache(Generic[T]):
    """Objects by `namespace/name` (or name), and by the values of indexers.

    Handlers are called as handler(old, new) after each change: old None is an addition, new None a removal. A removed
    object is deleted or no longer matches the informer's selectors. If a handler fails, all others are still called;
    then its exception is raised.
    """

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}
        self._indexers: dict[str, Indexer[T]] = {}
        self._indexes: dict[str, dict[str, dict[str, T]]] = {}
        self._handlers: list[Handler[T]] = []

    def __len__(self) -> int:
        """How many objects."""
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        """All objects; the cache must not change while it is iterated over (no await between)."""
        return iter(self._objects.values())

    def get(self, key: str) -> T | None:
        """The object of that key, or None."""
        return self._objects.get(key)

    def keys(self) -> list[str]:
        """All keys."""
        return list(self._objects)

    def by(self, index: str, value: str) -> list[T]:
        """Objects for which the indexer of that name returned value."""
        return list(self._indexes[index].get(value, {}).values())

    def add_index(self, name: str, indexer: Indexer[T]) -> None:
        """Add an index. An existing name is left alone: use one name only for one indexer."""
        if name in self._indexers:
            return
        self._indexers[name] = indexer
        self._indexes[name] = {}
        for key, obj in self._objects.items():
            for value in indexer(obj):
                self._indexes[name].setdefault(value, {})[key] = obj

    def on_change(self, handler: Handler[T]) -> None:
        """Call handler for each later change, and now as an addition for each present object."""
        self._handlers.append(handler)
        for obj in list(self._objects.values()):
            handler(None, obj)

    def put(self, obj: T) -> None:
        """Add or replace an object."""
        key = obj.key
        old = self._objects.get(key)
        if old is not None and old.metadata.resource_version == obj.metadata.resource_version:
            return
        self._objects[key] = obj
        self._reindex(key, old, obj)
        self._tell(old, obj)

    def remove(self, key: str) -> None:
        """Remove an object; an unknown one is ignored."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._reindex(key, old, None)
            self._tell(old, None)

    def replace(self, objects: Iterable[T], *, keep: Collection[str] = ()) -> None:
        """Replace all objects (after a new list); handlers get only the differences.

        keep: keys of objects that stay unchanged although they are not in the list.
        """
        fresh = {obj.key: obj for obj in objects}
        gone = [key for key in self._objects if key not in fresh and key not in keep]
        _all([*(partial(self.remove, key) for key in gone), *(partial(self.put, obj) for obj in fresh.values())])

    def _reindex(self, key: str, old: T | None, new: T | None) -> None:
        for name, indexer in self._indexers.items():
            index = self._indexes[name]
            for value in indexer(old) if old is not None else ():
                bucket = index.get(value)
                if bucket is not None:
                    bucket.pop(key, None)
                    if not bucket:
                        del index[value]
            for value in indexer(new) if new is not None else ():
                index.setdefault(value, {})[key] = new  # type: ignore[assignment]

    def _tell(self, old: T | None, new: T | None) -> None:
        _all([partial(handler, old, new) for handler in self._handlers])


def _all(calls: Iterable[Callable[[], None]]) -> None:
    """Make all calls, even after one has failed. Raises the first exception."""
    failures: list[Exception] = []
    for call in calls:
        try:
            call()
        except Exception as failure:
            failures.append(failure)
    if failures:
        raise failures[0]
