"""Resource: what the generic verbs need to know about one kind.

The groups of kinds provide `RESOURCES: Mapping[str, Resource]`, by Resource.key. For each write the verbs run, in this
order: normalize -> prepare -> default -> validate -> admit -> store. All hooks work on plain dicts as decoded from
JSON; they may change `new`, but not `old`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from tonnage.base.errors import FieldCause
from tonnage.kubernetes.api.kinds import Kind
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.schema import decode
from tonnage_box.apiserver.storage.store import Obj

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


Default = Callable[[Obj], None]
"""Sets fields that the client left out, in place."""
Prepare = Callable[[Obj, Obj | None], None]
"""Runs before defaulting, with the new and the old object.

On create (old None) it drops fields that clients may not set, on update it restores fixed fields.
"""
Admit = Callable[[AdmissionContext, Obj, Obj | None], Awaitable[None]]
"""Admission before the store: may change the new object (default class, quota ...) or raise an ApiError.

On DELETE new is the object to delete (changing it has no effect) and old is the same.
"""


class Validate(Protocol):
    """Returns the field errors of new; old is None on create. subresource is "" or status, ..."""

    def __call__(self, new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]: ...


def nothing(new: Obj, old: Obj | None = None) -> None:
    """Change nothing."""


def _valid(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    return []


def _no_fields(obj: Obj) -> Mapping[str, str]:
    return {}


async def _admitted(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """Lets everything pass."""


def _no_warnings(new: Obj, old: Obj | None) -> list[str]:
    return []


def _same(obj: Obj) -> Obj:
    return obj


@dataclass(frozen=True)
class Resource:
    """One row of a group of kinds.

    subresources: names served below the object ("status", "binding", "eviction", "log", "finalize").
    fields: values for field selectors besides metadata.name and metadata.namespace, which are always there; the same
        keys for every object of the kind.
    columns: the Table's columns of this kind.
    stored_as: the store's name of the collection when two kinds show the same objects; inward turns the served shape
        into the stored one, outward back (both may return their argument).
    notice: the warning that answers each create and update of what has no effect here; delete_warning: each deletion.
    warn: warnings that answer a create or update, of the new and the old object.
    generation: metadata.generation of a new object: 1, 0 where it is counted from the first change on, None where
        Kubernetes does not count; counted_metadata: the part of its metadata of which changes count, too.
    shows_deleted: deletion is answered by the object, and not by a Status.
    graceful: deletion waits for the kubelet that ends the thing (pods).
    """

    kind: Kind[Any]
    subresources: frozenset[str] = frozenset()
    verbs: tuple[str, ...] = VERBS
    categories: tuple[str, ...] = ()
    default: Default = nothing
    validate: Validate = _valid
    admit: Admit = _admitted
    prepare: Prepare = nothing
    fields: Callable[[Obj], Mapping[str, str]] = _no_fields
    columns: Sequence[Any] = ()
    stored_as: str = ""
    inward: Callable[[Obj], Obj] = _same
    outward: Callable[[Obj], Obj] = _same
    generation: int | None = None
    counted_metadata: str = ""
    shows_deleted: bool = False
    graceful: bool = False
    warn: Callable[[Obj, Obj | None], list[str]] = _no_warnings
    notice: str = ""
    delete_warning: str = ""

    @cached_property
    def key(self) -> str:
        """Key in the table: with the version, where another version of the kind is the stored one."""
        kind = self.kind
        return kind.key if self.stored_as != kind.key else f"{kind.group}/{kind.version}/{kind.plural}"

    @cached_property
    def collection(self) -> str:
        """Name of the collection in the store."""
        return self.stored_as or self.key

    @cached_property
    def schema_name(self) -> str:
        """The kind's struct in the schemas."""
        return f"{self.kind.group.split('.')[0] or 'core'}.{self.kind.version}.{self.kind.kind}"

    @cached_property
    def is_encoded(self) -> bool:
        """Whether it has a protobuf encoding, as all kinds but custom resources have."""
        from tonnage_box.apiserver.protobuf import messages  # late: many clients never speak it

        return messages.is_encoded(self.schema_name)

    @cached_property
    def field_names(self) -> frozenset[str]:
        """What field selectors may name, besides metadata.name and metadata.namespace."""
        return frozenset(self.fields({}))

    def normalize(self, obj: Obj) -> list[str]:
        """Bring a client's object into normal form, in place; the complaints of strict decoding. Raises: a 400."""
        return decode.normalize(self.schema_name, obj)
