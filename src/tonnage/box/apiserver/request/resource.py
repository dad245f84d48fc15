"""Resource: what the generic verbs need to know about one kind.

The registry provides `RESOURCES: Mapping[str, Resource]`, by Resource.key. For each write the verbs run, in this
order: prepare_* -> default -> strict fields (schema) -> validate -> admit -> store. All hooks work on plain dicts as
decoded from JSON; they may change `new`, but not `old`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tonnage.api.kinds import Kind
from tonnage.errors import FieldCause

Operation = Literal["CREATE", "UPDATE", "DELETE"]
Obj = dict[str, Any]

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Context(Protocol):
    """What an admission hook may read. Reads see every write that has been answered."""

    @property
    def operation(self) -> Operation:
        """CREATE, UPDATE or DELETE."""

    @property
    def namespace(self) -> str:
        """Namespace of the object, "" where there is none."""

    @property
    def name(self) -> str:
        """Name of the object (generated names are already made)."""

    @property
    def subresource(self) -> str:
        """The subresource that is written (status, binding, resize), or ""."""

    @property
    def user(self) -> str:
        """The authenticated user."""

    @property
    def now(self) -> str:
        """The time of the request, RFC 3339."""

    def get(self, kind: Kind[Any], name: str, namespace: str = "") -> Obj | None:
        """Read one object (a copy of your own), or None."""

    async def list(self, kind: Kind[Any], namespace: str | None = None) -> list[Obj]:
        """Read all objects of a kind, or those of one namespace (copies of your own)."""

    async def used(self, namespace: str) -> Mapping[str, int]:
        """What the objects of a namespace use, by the names quota gives resources, in nanos (quota.Ledger)."""

    async def hold(self, key: str) -> None:
        """Take the lock of key and keep it until the write has been answered (quota: check and write as one).

        Several holds of one request must come in sorted order of their keys. Idempotent.
        """

    def warn(self, message: str) -> None:
        """Add a Warning header to the answer, as kubectl prints it."""


class Default(Protocol):
    """Sets fields that the client left out, in place."""

    def __call__(self, obj: Obj) -> None: ...


class Validate(Protocol):
    """Returns the field errors of new; old is None on create. subresource is "" or status, ..."""

    def __call__(self, new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]: ...


class Admit(Protocol):
    """Admission before the store: may change new (default class, quota ...) or raise an ApiError.

    On DELETE new is the object to delete (changing it has no effect) and old is the same.
    """

    def __call__(self, context: Context, new: Obj, old: Obj | None, operation: Operation) -> Awaitable[None]: ...


class Prepare(Protocol):
    """Runs before defaulting: on create (old None) drops fields that clients may not set, on update restores fixed
    fields.
    """

    def __call__(self, new: Obj, old: Obj | None) -> None: ...


def _nothing(obj: Obj) -> None:
    """Has no defaults."""


def _valid(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    return []


def _no_fields(obj: Obj) -> Mapping[str, str]:
    return {}


async def _admitted(context: Context, new: Obj, old: Obj | None, operation: Operation) -> None:
    """Lets everything pass."""


def _as_is(new: Obj, old: Obj | None) -> None:
    """Keeps what came."""


@dataclass(frozen=True)
class Resource:
    """One row of the registry.

    subresources: names served below the object ("status", "binding", "eviction", "log", "finalize").
    fields: values for field selectors besides metadata.name and metadata.namespace, which are always there; it must
        return the same keys for every object of the kind, and field_names lists them.
    columns: the Table's columns of this kind.
    schema: JSON schema (OpenAPI v3 dialect, with "$ref"s) for strict fields and `explain`; unknown
        names the dotted paths of fields an object has and the schema has not.
    stored_as: the store's name of the collection when two kinds show the same objects; inward turns the served shape
        into the stored one, outward back (both may return their argument).
    graceful: deletion waits for somebody who ends the thing (pods).
    """

    kind: Kind[Any]
    subresources: frozenset[str] = frozenset()
    verbs: tuple[str, ...] = VERBS
    categories: tuple[str, ...] = ()
    default: Default = _nothing
    validate: Validate = _valid
    admit: Admit = _admitted
    prepare_create: Prepare = _as_is
    prepare_update: Prepare = _as_is
    fields: Callable[[Obj], Mapping[str, str]] = _no_fields
    field_names: frozenset[str] = frozenset()
    columns: Sequence[Any] = ()
    schema: Mapping[str, Any] | None = None
    unknown: Callable[[Obj], Iterable[str]] | None = None
    stored_as: str = ""
    inward: Callable[[Obj], Obj] | None = None
    outward: Callable[[Obj], Obj] | None = None
    graceful: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """`<plural>` for the core group, `<group>/<plural>` otherwise."""
        return f"{self.kind.group}/{self.kind.plural}" if self.kind.group else self.kind.plural

    @property
    def collection(self) -> str:
        """Name of the collection in the store."""
        return self.stored_as or self.key

    @property
    def qualified(self) -> str:
        """`pods`, `storageclasses.storage.k8s.io`: how messages name the resource."""
        return f"{self.kind.plural}.{self.kind.group}" if self.kind.group else self.kind.plural


SYSTEM = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Classes that every cluster has, and their values."""
