"""What an admission hook may read and do during one write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol

from tonnage.base.aio.tasks import KeyedLocks
from tonnage.kubernetes.api.kinds import Kind
from tonnage_box.apiserver.request.negotiate import run_in_thread_if_large
from tonnage_box.apiserver.request.user import ApiUser, Attributes
from tonnage_box.apiserver.storage.store import Obj, ObjectKey, Store

Operation = Literal["CREATE", "UPDATE", "DELETE"]
Used = Callable[[str], Awaitable[Mapping[str, int]]]
"""What the objects of a namespace use, by the names that quota gives resources, in nanos."""


class AccessControl(Protocol):
    """Access control as admission sees it."""

    @property
    def issues_tokens(self) -> bool:
        """Whether service accounts get tokens here."""
        ...

    def is_allowed(self, user: ApiUser, asked: Attributes) -> bool:
        """Whether the user may do it."""
        ...

    def missing(self, user: ApiUser, rules: Iterable[Obj], namespace: str) -> list[str]:
        """Those of the rules that the user does not have in a namespace ("": the cluster), for people."""
        ...

    def role_rules(self, kind: str, name: str, namespace: str) -> list[Obj] | None:
        """Rules of a Role or ClusterRole, None when there is none."""
        ...


@dataclass
class AdmissionContext:
    """One write; leaving it releases the locks. Reads see every write that has been answered.

    key: of the object (generated names are already made). subresource: what is written of it (status, binding), or "".
    user: the authenticated one. now: the time of the request, RFC 3339. access: who may grant what, and whether pods
    get tokens.
    """

    store: Store
    locks: KeyedLocks
    used: Used
    operation: Operation
    key: ObjectKey
    subresource: str
    user: ApiUser
    now: str
    access: AccessControl
    _held: set[str] = field(default_factory=set)
    _stack: AsyncExitStack | None = None

    @property
    def namespace(self) -> str:
        """Namespace of the object, "" where there is none."""
        return self.key.namespace

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.key.name

    def get(self, kind: Kind[Any], name: str, namespace: str = "") -> Obj | None:
        """Read one object (a copy of your own), or None."""
        record = self.store.get(ObjectKey(kind.key, namespace, name))
        return record.decode() if record is not None else None

    async def list(self, kind: Kind[Any], namespace: str | None = None) -> list[Obj]:
        """Read all objects of a kind, or those of one namespace (copies of your own)."""
        records = self.store.records(kind.key, namespace)
        size = sum(len(record.data) for record in records)
        return await run_in_thread_if_large(size, lambda: [record.decode() for record in records])

    def fields(self, kind: Kind[Any]) -> Iterator[tuple[ObjectKey, Mapping[str, str]]]:
        """Keys of all objects of a kind, with the fields by which selectors choose. Nothing is decoded."""
        return ((record.key, record.fields) for record in self.store.records(kind.key))

    async def hold(self, key: str) -> None:
        """Take the lock of key and keep it until the write has been answered (quota: check and write as one).

        Several holds of one request must come in sorted order of their keys. Idempotent.
        """
        if key not in self._held:
            self._stack = self._stack or AsyncExitStack()
            await self._stack.enter_async_context(self.locks.hold(key))
            self._held.add(key)

    async def __aenter__(self) -> AdmissionContext:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            await self._stack.aclose()
