"""Objects of every kind, filled at random along their schemas, in normal form."""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.protobuf.messages import UNNUMBERED
from tonnage_box.apiserver.schema import decode, schemas

_TEXTS = ("", "a", "name-1", 'with "quotes" and é😀', "two\nlines")
_SCALARS: dict[str, tuple[Any, ...]] = {
    "str": _TEXTS,
    "int": (0, 1, -1, 2**31 - 1, 1 - 2**31),
    "long": (0, 1, -1, 2**63 - 1, 1 - 2**63),
    "number": (0.0, 1.5),
    "bool": (False, True),
    "bytes": tuple(b64encode(text.encode()).decode() for text in _TEXTS),
    "quantity": ("0", "1", "100m", "1Gi", "1500M", "-3"),
    "intstr": (0, 80, -1, *_TEXTS),
    "time": ("2026-01-02T03:04:05Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:01Z"),
    "microtime": ("2026-01-02T03:04:05.000006Z", "1969-12-31T23:59:59.999999Z"),
    "any": ({"a": [1, {"b": "c"}]}, [1, 2], "text"),
}


def objects(seed: int, some: int = 1) -> Iterator[dict[str, Any]]:
    """So many objects of each served kind that has an encoding."""
    rng = random.Random(seed)
    for row in RESOURCES.values():
        if not row.is_encoded:
            continue
        for _ in range(some):
            obj = row.kind.head() | filled(rng, row.schema_name)
            decode.normalize(row.schema_name, obj)
            yield obj


def filled(rng: random.Random, name: str) -> dict[str, Any]:
    fields = [field for field in schemas.struct(name).fields.values() if field.name not in UNNUMBERED]
    made = {field.name: value(rng, field.type) for field in fields if field.required or rng.random() < 0.5}
    return {key: found for key, found in made.items() if found or _keeps_empty(schemas.struct(name).fields[key])}


def _keeps_empty(field: schemas.Field) -> bool:
    """Else an empty value is as good as none: Go leaves out the number, and protobuf has no empty lists."""
    if field.type.word in ("[]", "{}", "struct"):
        return field.type.word == "struct"
    return field.required or field.pointer or field.type.word not in ("int", "long", "number", "bytes")


def value(rng: random.Random, kind: schemas.Type) -> Any:
    if kind.word == "struct":
        return filled(rng, kind.struct)
    if kind.item is None:
        return rng.choice(_SCALARS[kind.word])
    count = rng.choice((0, 1, 1, 2))
    if kind.word == "[]":
        return [value(rng, kind.item) for _ in range(count)]
    return {f"key-{n}": value(rng, kind.item) for n in range(count)}
