"""Decoding of a client's object into normal form.

Types are checked. Nulls, unknown fields and empty values that Go would not write are dropped. Quantities and times
become canonical. The verbs run this first, so defaults, validation and admission may trust the types, and equality of
two objects means what it means in Kubernetes.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from tonnage.base.errors import ApiError, InvalidError
from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.schema import fast_path, schemas

_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
MAX_COMPLAINTS = 100
"""Of strict decoding, about one object (sigs.k8s.io/json saves no more strict errors)."""
MAX_PATH = 256
"""Characters of a field's path in a complaint."""
_INT = {"int": 2**31, "long": 2**63}


class DecodeError(Exception):
    """A value that does not fit its field; worded as Go's decoder words it."""


def normalize(name: str, obj: dict[str, Any]) -> list[str]:
    """Bring obj into the normal form of the struct `name` (such as "core.v1.Pod"), in place.

    Returns the complaints of strict decoding (`unknown field "spec.foo"`), MAX_COMPLAINTS at most; those fields are
    dropped.
    Raises: ApiError 400 where a value has the wrong type. Idempotent.
    """
    if fast_path.is_normal(name, obj):
        return []
    walk = _Walk()
    try:
        walk.struct(obj, schemas.struct(name), "")
    except DecodeError as error:
        raise bad_request(name, str(error)) from None
    return walk.unknown


def bad_request(name: str, complaint: str) -> ApiError:
    """400 as Kubernetes words it when an object cannot be decoded."""
    version, _, kind = name.rpartition(".")
    return ApiError(
        f'{kind} in version "{version.rpartition(".")[2]}" cannot be handled as a {kind}: {complaint}',
        code=400,
        reason="BadRequest",
    )


def strict_error(name: str, complaints: list[str]) -> ApiError:
    """400 for fieldValidation=Strict."""
    return bad_request(name, "strict decoding error: " + ", ".join(complaints))


def duplicates(data: bytes) -> list[str]:
    """The complaints about keys that occur twice in one JSON object: `duplicate field "spec.nodeName"`.

    MAX_COMPLAINTS at most. None for what is not JSON: those of YAML are found where it is read.
    """
    found = False

    def pairs(items: list[tuple[str, Any]]) -> None:
        nonlocal found
        if len({key for key, _ in items}) != len(items):
            found = True

    with suppress(ValueError):
        json.loads(data, object_pairs_hook=pairs)
    return _duplicate_paths(data) if found else []


class _Pairs(list[tuple[str, Any]]):
    """A JSON object before its keys are made unique."""


def _duplicate_paths(data: bytes) -> list[str]:
    complaints: list[str] = []

    def visit(value: Any, path: str) -> None:
        if isinstance(value, _Pairs):
            seen = set()
            for key, item in value:
                inner = _short(path, key)
                if key in seen and len(complaints) < MAX_COMPLAINTS:
                    complaints.append(f'duplicate field "{inner}"')
                seen.add(key)
                visit(item, inner)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                visit(item, _short(path, f"[{index}]", between=""))

    visit(json.loads(data, object_pairs_hook=_Pairs), "")
    return complaints


def _short(path: str, key: str, *, between: str = ".") -> str:
    """The path of a member, cut off where it is too long. It is part of each path below: none may be long."""
    if len(path) + len(key) < MAX_PATH:
        return f"{path}{between}{key}" if path else key
    return f"{path}{between if path else ''}{key[:MAX_PATH]}"[:MAX_PATH] + "..."


class _Walk:
    """Walk of one object along its schema."""

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def struct(self, value: dict[str, Any], schema: schemas.Struct, path: str) -> None:
        for key in list(value):
            field = schema.fields.get(key)
            if field is None:
                if len(self.unknown) < MAX_COMPLAINTS:
                    self.unknown.append(f'unknown field "{_short(path, key)}"')
                del value[key]
            elif value[key] is None:
                del value[key]
            else:
                item = self.value(value[key], field.type, f"{path}.{key}" if path else key, schema)
                if _is_empty(item, field):
                    del value[key]
                else:
                    value[key] = item

    def value(self, value: Any, kind: schemas.Type, path: str, owner: schemas.Struct) -> Any:
        if kind.word == "any":
            return value
        if kind.word == "struct":
            _want(type(value) is dict, value, kind, path, owner)
            self.struct(value, schemas.struct(kind.struct), path)
            return value
        if kind.word == "[]":
            assert kind.item is not None
            _want(type(value) is list, value, kind, path, owner)
            return [self.value(_filled(v, kind.item), kind.item, f"{path}[{i}]", owner) for i, v in enumerate(value)]
        if kind.word == "{}":
            assert kind.item is not None
            _want(type(value) is dict, value, kind, path, owner)
            return {k: self.value(_filled(v, kind.item), kind.item, f"{path}.{k}", owner) for k, v in value.items()}
        return _scalar(value, kind, path, owner)


def _filled(value: Any, kind: schemas.Type) -> Any:
    """An element that is null is, in Go, the zero value of its type."""
    if value is not None:
        return value
    return {"struct": {}, "{}": {}, "[]": [], "str": "", "bytes": "", "quantity": "0", "intstr": 0, "bool": False}.get(
        kind.word, 0
    )


def _is_empty(value: Any, field: schemas.Field) -> bool:
    if field.pointer or field.required:
        return False
    word = field.type.word
    return value is False or (value == "" and word == "str") or (word in ("[]", "{}") and not value)


def _scalar(value: Any, kind: schemas.Type, path: str, owner: schemas.Struct) -> Any:
    match kind.word:
        case "str":
            _want(type(value) is str, value, kind, path, owner)
        case "int" | "long":
            _want(type(value) is int and abs(value) <= _INT[kind.word] - 1, value, kind, path, owner)
        case "bool":
            _want(type(value) is bool, value, kind, path, owner)
        case "number":
            _want(type(value) in (int, float), value, kind, path, owner)
        case "intstr":
            _want(type(value) in (int, str), value, kind, path, owner)
        case "quantity":
            return _quantity(value)
        case "bytes":
            _want(type(value) is str, value, schemas.Type("str"), path, owner)
            return _bytes(value)
        case "time":
            return _time(value, "seconds")
        case "microtime":
            return _time(value, "microseconds")
    return value


def _want(right: object, value: Any, kind: schemas.Type, path: str, owner: schemas.Struct) -> None:
    if right:
        return
    words = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
    what = words[type(value)]
    if what == "number" and kind.word in ("int", "long"):
        what = f"number {value}"
    plain = re.sub(r"\[\d+\]", "", path)
    raise DecodeError(f"json: cannot unmarshal {what} into Go struct field {owner.short}.{plain} of type {kind.go}")


def _quantity(value: Any) -> str:
    if type(value) not in (str, int, float):
        raise DecodeError(_QUANTITY)
    try:
        return str(Quantity.parse(value.strip() if type(value) is str else repr(value)))
    except InvalidError:
        raise DecodeError(_QUANTITY) from None


def _bytes(value: str) -> str:
    """Base64 as Go writes it: padded, no line ends."""
    text = value.replace("\n", "").replace("\r", "")
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        wrong = re.search(r"[^A-Za-z0-9+/=]", text)
        position = wrong.start() if wrong else len(text) - len(text) % 4
        raise DecodeError(f"illegal base64 data at input byte {position}") from None
    return text


def _time(value: Any, unit: str) -> str:
    try:
        moment = datetime.fromisoformat(value) if type(value) is str and "T" in value else None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=unit) + "Z"
    except (ValueError, OverflowError):  # Overflow: in UTC it is before the year 1 or after 9999
        pass
    shown = json.dumps(value)
    raise DecodeError(
        f'parsing time {shown} as "2006-01-02T15:04:05Z07:00": cannot parse {shown} as "2006-01-02T15:04:05Z07:00"'
    )
