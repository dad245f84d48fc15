"""meta/v1: metadata of every object. Structs have only the fields that we read, so never PUT them back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class Object(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of all partial Structs: frozen, camelCase on the wire, defaults left out."""


def version_number(resource_version: str) -> int:
    """A resourceVersion as a number, 0 for "" and for the opaque text of a foreign API server."""
    return int(resource_version) if resource_version.isdecimal() else 0


class OwnerReference(Object, frozen=True):
    """Who an object belongs to."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Object, frozen=True):
    """metadata of an object. Times are RFC 3339 text."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []

    @property
    def key(self) -> str:
        """`<namespace>/<name>`, or the name alone where there is no namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def version(self) -> int:
        """The resourceVersion as a number, 0 without one. A later one of a kind is higher (KEP-5504)."""
        return version_number(self.resource_version)

    @property
    def deleting(self) -> bool:
        """Whether it has a deletionTimestamp."""
        return self.deletion_timestamp is not None

    def controller_uid(self) -> str:
        """uid of the owner with controller: true, or an empty string."""
        return next((o.uid for o in self.owner_references if o.controller), "")


class KubeObject(Object, frozen=True):
    """Any object with metadata."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        return self.metadata.key


class ListMeta(Object, frozen=True):
    """metadata of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class SelectorRequirement(Object, frozen=True):
    """One expression of a label or node selector: In, NotIn, Exists, DoesNotExist (node selectors: Gt, Lt too)."""

    key: str = ""
    operator: str = ""
    values: list[str] = []


class LabelSelector(Object, frozen=True):
    """metav1.LabelSelector: all of both parts must hold; an empty one selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: list[SelectorRequirement] = []


class Condition(Object, frozen=True):
    """A condition of a status."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


def condition(
    before: Iterable[Condition], kind: str, status: str, reason: str = "", message: str = "", *, now: str
) -> Condition:
    """The next condition of a type: the time of its transition stays while its status is the same. now: RFC 3339."""
    since = next((old.last_transition_time for old in before if (old.type, old.status) == (kind, status)), None)
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=since or now)


class ObjectReference(Object, frozen=True):
    """core/v1 ObjectReference: what an Event or a claimRef points to."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class PartialObject(KubeObject, frozen=True):
    """Metadata of anything."""


def to_builtins(obj: Any) -> Any:
    """Convert a Struct to plain dicts and lists with JSON names."""
    return msgspec.to_builtins(obj)
