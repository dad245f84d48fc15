"""Context of admission hooks, backed by the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from tonnage.aio.tasks import KeyedLocks
from tonnage.api.kinds import Kind
from tonnage.box.apiserver.request.negotiate import apart
from tonnage.box.apiserver.request.resource import Obj, Operation
from tonnage.box.apiserver.storage.store import ObjectKey, Store


def collection_of(kind: Kind[Any]) -> str:
    """The store's name of a kind's collection."""
    return f"{kind.group}/{kind.plural}" if kind.group else kind.plural


class RequestContext:
    """One write request; close() releases its locks."""

    def __init__(
        self,
        store: Store,
        locks: KeyedLocks,
        operation: Operation,
        key: ObjectKey,
        subresource: str,
        user: str,
        now: str,
        used: Callable[[str], Awaitable[Mapping[str, int]]],
    ) -> None:
        self._store = store
        self._locks = locks
        self._stack: AsyncExitStack | None = None
        self._used = used
        self._held: set[str] = set()
        self.operation: Operation = operation
        self.namespace = key.namespace
        self.name = key.name
        self.subresource = subresource
        self.user = user
        self.now = now
        self.warnings: list[str] = []

    def get(self, kind: Kind[Any], name: str, namespace: str = "") -> Obj | None:
        """See resource.Context."""
        record = self._store.get(ObjectKey(collection_of(kind), namespace, name))
        return record.decode() if record is not None else None

    async def list(self, kind: Kind[Any], namespace: str | None = None) -> list[Obj]:
        """See resource.Context."""
        records = self._store.records(collection_of(kind), namespace)
        size = sum(len(record.data) for record in records)
        return await apart(size, lambda: [record.decode() for record in records])

    async def used(self, namespace: str) -> Mapping[str, int]:
        """See resource.Context."""
        return await self._used(namespace)

    async def hold(self, key: str) -> None:
        """See resource.Context."""
        if key in self._held:
            return
        if self._stack is None:
            self._stack = AsyncExitStack()
        await self._stack.enter_async_context(self._locks.hold(key))
        self._held.add(key)

    def warn(self, message: str) -> None:
        """See resource.Context."""
        self.warnings.append(message)

    async def close(self) -> None:
        """Release the locks. Idempotent."""
        if self._stack is not None:
            await self._stack.aclose()
            self._stack = None
            self._held.clear()
