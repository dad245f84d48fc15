"""The largest values of each field of each served kind, generated along the schemas."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.unit.box.cost.examples import COMMON, ITEMS, OBJECTS, WORDS

from tonnage_box.apiserver.kinds.core.validation.persistent_volume import _COMMON
from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.request.negotiate import MAX_BODY, MAX_VALUES
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.schema import schemas
from tonnage_box.apiserver.schema.schemas import Field, Type

Obj = dict[str, Any]
_ROOM = 4096
"""Bytes and values that are left for the rest of an object."""
_NUMBERS = {"int": 2**31 - 1, "long": 2**63 - 1, "number": 1.7e308}
_TEMPLATES = ("spec", "volumeClaimTemplates")
_SENT = ("apiVersion", "kind")
_IDENTITY = ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion")


@dataclass(frozen=True)
class KindField:
    """A field of a kind: the first path by which its struct is reached."""

    kind: str
    struct: str
    path: tuple[Field, ...]

    @property
    def name(self) -> str:
        """`pods spec.containers.env`."""
        return f"{self.kind} {self.dotted}"

    @property
    def dotted(self) -> str:
        """`spec.containers.env`."""
        return ".".join(field.name for field in self.path)

    @property
    def field(self) -> Field:
        """The last of the path."""
        return self.path[-1]

    @property
    def subresource(self) -> str:
        """Where it is written."""
        return "status" if self.path[0].name == "status" and "status" in self.resource.subresources else ""

    @property
    def resource(self) -> Resource:
        """Its row."""
        return RESOURCES[self.kind]

    @cached_property
    def most(self) -> int:
        """How many items, or characters, a body holds; 1 for a field of one value."""
        kind = self.field.type
        if kind.word in ("[]", "{}"):
            bytes_each, values_each = _weight(_member(self.field, 12345))
            extra = (9, 1) if kind.word == "{}" else (1, 0)
            return min((MAX_BODY - _ROOM) // (bytes_each + extra[0]), (MAX_VALUES - _ROOM) // (values_each + extra[1]))
        return (
            MAX_BODY - _ROOM if kind.word in ("str", "quantity", "intstr", "bytes", "time", "microtime", "any") else 1
        )

    def largest(self, size: int, name: str = "x") -> Obj:
        """An object with so many items or characters in this field."""
        obj: Obj = {"metadata": {}} | copy.deepcopy(OBJECTS.get(self.kind, {}))
        obj["metadata"].setdefault("name", name)
        place: Any = obj
        for field, inner in zip(self.path, self.path[1:], strict=False):
            place = _inside(place, field)
            _choose(place, _innermost(field.type).struct.rpartition(".")[2], inner.name)
        if self.field.name == "values" and "operator" in place:
            place["operator"] = "In"
        place[self.field.name] = _value(self.field, size)
        return obj


def fields(kind: str) -> Iterator[KindField]:
    """Each field of each struct of a kind, once, with the shortest path to it."""
    waiting: list[tuple[str, tuple[Field, ...]]] = [(RESOURCES[kind].schema_name, ())]
    seen = {waiting[0][0]}
    for name, path in waiting:
        for field in schemas.struct(name).fields.values():
            inner = _innermost(field.type)
            if not path and field.name in _SENT:
                continue
            found = KindField(kind, name.rpartition(".")[2], (*path, field))
            if inner.struct and inner.struct not in seen:
                seen.add(inner.struct)
                waiting.append((inner.struct, (*path, field)))
            if field.type.word not in ("struct", "bool") and found.dotted not in _IDENTITY:
                yield found


def _innermost(kind: Type) -> Type:
    return kind if kind.item is None else _innermost(kind.item)


def _inside(place: Obj, field: Field) -> Obj:
    """The struct in a field of an object: the one that is there, or a new one."""
    inner = _innermost(field.type)
    if field.type.word == "struct":
        return place.setdefault(field.name, _numbered(inner.struct, 0))  # type: ignore[no-any-return]
    if field.type.word == "{}":
        return place.setdefault(field.name, {}).setdefault("k", _numbered(inner.struct, 0))  # type: ignore[no-any-return]
    found = place.setdefault(field.name, [])
    if not found:
        found.append(_numbered(inner.struct, 0))
    return found[0]  # type: ignore[no-any-return]


def _choose(place: Obj, struct: str, field: str) -> None:
    """Leave out what the field excludes."""
    if field in COMMON.get(struct, (field,)) or (struct == "PersistentVolumeSpec" and field in _COMMON):
        return
    for other in place.keys() - {field, *COMMON[struct]}:
        del place[other]


def _value(field: Field, size: int) -> Any:
    word = field.type.word
    if word == "[]":
        return [_member(field, number) for number in range(size)]
    if word == "{}":
        return {_key(field, number): _member(field, number) for number in range(size)}
    if word in _NUMBERS:
        return _NUMBERS[word]
    if word in ("quantity", "intstr", "time", "microtime"):
        return "9" * size + ("%" if word == "intstr" else "")
    if word == "bytes":
        return "QUFB" * (size // 4)
    if word == "any":
        return {f"k{number}": "v" for number in range(min(size // 12, (MAX_VALUES - _ROOM) // 2))}
    return _text(field, size)


def _text(field: Field, size: int) -> str:
    return "/" + "x" * (size - 1) if field.name in ("mountPath", "devicePath", "path") else "x" * size


def _key(field: Field, number: int) -> str:
    return f"a.b/r{number}" if _innermost(field.type).word == "quantity" else f"k{number}"


def _member(field: Field, number: int) -> Any:
    kind = field.type.item
    assert kind is not None
    if kind.word == "struct":
        return _numbered(kind.struct, number)
    if kind.word == "[]":
        return ["x"]
    words = {"quantity": "1", "bytes": "QUFB", "bool": True, "any": {}, "time": "2026-01-01T00:00:00Z"} | dict.fromkeys(
        _NUMBERS, 1
    )
    text = WORDS.get(field.name, "v" if field.type.word == "{}" else "x{n}")
    return words.get(kind.word, text.replace("{n}", str(number)))


def _numbered(struct: str, number: int) -> Obj:
    """A small struct: the example, or what must be given."""
    example = ITEMS.get(struct.rpartition(".")[2])
    if example is None:
        example = {f.name: _least(f) for f in schemas.struct(struct).fields.values() if f.required or f.name == "name"}
    text = json.dumps(example).replace("{n}", str(number)).replace('"{port}"', str(1 + number % 65535))
    return json.loads(text)  # type: ignore[no-any-return]


def _least(field: Field) -> Any:
    kind = field.type
    if kind.word == "struct":
        return _numbered(kind.struct, 0)
    if kind.word in ("[]", "{}"):
        return [] if kind.word == "[]" else {}
    if kind.word in ("time", "microtime"):
        return "2026-01-01T00:00:00Z" if kind.word == "time" else "2026-01-01T00:00:00.000000Z"
    words = {"bool": True, "any": {}, "quantity": "1", "intstr": 1, "bytes": ""} | dict.fromkeys(_NUMBERS, 1)
    return words.get(kind.word, "x{n}")


def _weight(value: Any) -> tuple[int, int]:
    """Bytes and values, as a body counts them."""
    text = json.dumps(value, separators=(",", ":"))
    return len(text), 1 + text.count(",") + text.count(":") + text.count("{") + text.count("[")
