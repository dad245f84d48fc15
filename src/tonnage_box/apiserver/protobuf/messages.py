"""Messages of the served kinds: the schemas' structs with their numbers, as readers and writers of protobuf.

Types, and which empty values are preserved, are those of the schemas; the table adds only the numbers. A number such as
2.5 belongs to a field that JSON shows one level higher: Volume has a VolumeSource inline.
"""

from __future__ import annotations

import functools
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from tonnage_box.apiserver.protobuf.wire import (
    BYTES,
    FIXED64,
    VARINT,
    WIRE_TYPES,
    WireError,
    delimited,
    fields,
    read_varint,
    signed,
    varint,
)
from tonnage_box.apiserver.schema import schemas

NUMBERS = "numbers.txt"
"""The file of a group of kinds."""
ALIASES = {"policy.v1.Condition": "meta.v1.Condition"}
"""Structs of the schemas that Kubernetes has by another name."""
UNNUMBERED = frozenset(["apiVersion", "kind"])
"""Fields that only JSON has: the envelope names them."""
MAX_FIELDS = 100_000
"""Of a body, at all depths: two bytes may be an empty message of many bytes in memory."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EMPTY: dict[str, Any] = {"str": "", "bytes": "", "bool": False, "number": 0.0, "quantity": "0", "[]": [], "{}": {}}

ReadJson = Callable[[bytes], Any]
Bytes = bytes | bytearray
Write = Callable[[Any], Bytes]
"""The content of a length-delimited field, or the whole value of another."""


@dataclass(slots=True)
class Input:
    """A body that is read. read_json: decodes JSON inside of it, within the limits for JSON bodies."""

    data: bytes
    read_json: ReadJson
    fields: int = 0

    def count(self, some: int) -> None:
        """Raises: WireError when there are more than MAX_FIELDS."""
        self.fields += some
        if self.fields > MAX_FIELDS:
            raise WireError(f"the message has more than {MAX_FIELDS} fields")


Read = Callable[[Input, int, int], Any]
"""(input, start, stop) -> value; for a VARINT, start is the number."""


class FieldReader(NamedTuple):
    """How one tag is read. many: "", "[]", "{}", "packed" or "inline"; message: of one struct, and of an inline one."""

    name: str
    read: Read
    keeps_empty: bool = True
    many: str = ""
    message: Message | None = None


class FieldWriter(NamedTuple):
    """How one JSON field is written: tag (as bytes), content; prefix: number of the inline message that has it."""

    tag: bytes
    write: Write
    sized: bool
    many: str
    prefix: int


@dataclass(slots=True)
class Message:
    """One message: fields by tag and by name."""

    name: str
    readers: dict[int, FieldReader] = field(default_factory=dict)
    writers: dict[str, FieldWriter] = field(default_factory=dict)

    def read(self, source: Input, start: int, stop: int, into: dict[str, Any] | None = None) -> dict[str, Any]:
        """The object between two places, added to one that began before. Raises: WireError, UnicodeDecodeError."""
        found: dict[str, Any] = {} if into is None else into
        readers = self.readers
        for tag, at, end, _ in fields(source.data, start, stop):
            source.count(1)
            reader = readers.get(tag)
            if reader is None:
                self._skip(tag)
                continue
            name, read, keeps_empty, many, inner = reader
            if not many:
                if inner is not None:  # of a message that comes twice, the parts are merged
                    found[name] = inner.read(source, at, end, found.get(name))
                elif ((value := read(source, at, end)) or keeps_empty) and value is not None:
                    found[name] = value
            elif many == "[]":
                found.setdefault(name, []).append(read(source, at, end))
            elif many == "{}":
                key, value = read(source, at, end)
                found.setdefault(name, {})[key] = value
            elif many == "packed":
                found.setdefault(name, []).extend(read(source, at, end))
            elif inner is not None:
                inner.read(source, at, end, found)
        return found

    def _skip(self, tag: int) -> None:
        """Ignore a field of a newer Kubernetes. Raises: WireError for one that we know by another type."""
        for wire in WIRE_TYPES:
            reader = self.readers.get(tag & ~7 | wire)
            if reader is not None:
                raise WireError(f"{self.name}.{reader.name} has wire type {tag & 7}, not {wire}")

    def write(self, obj: dict[str, Any]) -> Bytes:
        """The message of an object that the schemas have passed; fields without number are left out."""
        out, inline, writers = bytearray(), dict[int, bytearray](), self.writers
        for name, value in obj.items():
            writer = writers.get(name)
            if writer is None or value is None:
                continue
            tag, write, sized, many, prefix = writer
            into = out if not prefix else inline.setdefault(prefix, bytearray())
            for item in (value,) if not many else value if many == "[]" else sorted(value.items()):
                data = write(item)
                into += tag
                if sized:
                    into += varint(len(data))
                into += data
        for number, part in inline.items():
            out += delimited(number, part)
        return out


# Scalars, and the messages that are scalars in JSON.


def _read_str(source: Input, start: int, stop: int) -> str:
    return str(source.data[start:stop], "utf-8")


def _read_bytes(source: Input, start: int, stop: int) -> str:
    return b64encode(source.data[start:stop]).decode()


def _read_number(source: Input, start: int, stop: int) -> float:
    found: float = struct.unpack_from("<d", source.data, start)[0]
    return found


def _parts(source: Input, start: int, stop: int) -> dict[int, int | bytes]:
    """Fields of a small message, by their tags."""
    data, found = source.data, dict[int, int | bytes]()
    for tag, at, end, _ in fields(data, start, stop):
        found[tag] = at if tag & 7 == VARINT else data[at:end]
        source.count(1)
    return found


def _text(parts: dict[int, int | bytes], number: int) -> str:
    found = parts.get(number << 3 | BYTES, b"")
    assert isinstance(found, bytes)
    return str(found, "utf-8")


def _number(parts: dict[int, int | bytes], number: int) -> int:
    found = parts.get(number << 3 | VARINT, 0)
    assert isinstance(found, int)
    return signed(found)


def _read_quantity(source: Input, start: int, stop: int) -> str:
    return _text(_parts(source, start, stop), 1) or "0"


def _read_intstr(source: Input, start: int, stop: int) -> int | str:
    parts = _parts(source, start, stop)
    return _text(parts, 3) if _number(parts, 1) else _number(parts, 2)


def _read_time(source: Input, start: int, stop: int, unit: str = "seconds") -> str | None:
    """None for an empty message: Go writes one for a time that is not set."""
    if start == stop:
        return None
    parts = _parts(source, start, stop)
    try:
        moment = _EPOCH + timedelta(seconds=_number(parts, 1), microseconds=_number(parts, 2) // 1000)
    except OverflowError:
        raise WireError(f"{_number(parts, 1)} seconds since 1970 are beyond the year 9999") from None
    return moment.replace(tzinfo=None).isoformat(timespec=unit) + "Z"


def _read_any(source: Input, start: int, stop: int) -> Any:
    raw = _parts(source, start, stop).get(1 << 3 | BYTES)
    return source.read_json(raw) if raw and isinstance(raw, bytes) else None


def _write_intstr(value: int | str) -> bytes:
    if isinstance(value, str):
        return b"\x08\x01\x10\x00" + delimited(3, value.encode())
    return b"\x08\x00\x10" + varint(value) + b"\x1a\x00"


def _write_time(value: str) -> bytes:
    since = datetime.fromisoformat(value) - _EPOCH
    return b"\x08" + varint(since.days * 86_400 + since.seconds) + b"\x10" + varint(since.microseconds * 1000)


_SCALARS: dict[str, tuple[int, Read, Write]] = {
    "str": (BYTES, _read_str, str.encode),
    "int": (VARINT, lambda _source, start, _stop: signed(start), varint),
    "long": (VARINT, lambda _source, start, _stop: signed(start), varint),
    "bool": (VARINT, lambda _source, start, _stop: start != 0, lambda value: b"\x01" if value else b"\x00"),
    "number": (FIXED64, _read_number, lambda value: struct.pack("<d", value)),
    "bytes": (BYTES, _read_bytes, b64decode),
    "quantity": (BYTES, _read_quantity, lambda value: delimited(1, str(value).encode())),
    "intstr": (BYTES, _read_intstr, _write_intstr),
    "time": (BYTES, _read_time, _write_time),
    "microtime": (BYTES, functools.partial(_read_time, unit="microseconds"), _write_time),
    "any": (BYTES, _read_any, lambda value: delimited(1, msgspec.json.encode(value))),
}


# Compilation of the table.


def _wire_type(kind: schemas.Type) -> int:
    return _SCALARS[kind.word][0] if kind.word in _SCALARS else BYTES


def _reading(kind: schemas.Type) -> Read:
    if kind.word == "struct":
        return message(kind.struct).read
    if kind.word == "[]":  # inside of a map or list, Kubernetes wraps a list into a message
        assert kind.item is not None
        inner = _reading(kind.item)

        def items(source: Input, start: int, stop: int) -> list[Any]:
            found = []
            for tag, at, end, _ in fields(source.data, start, stop):
                source.count(1)
                if tag >> 3 == 1:
                    found.append(inner(source, at, end))
            return found

        return items
    return _SCALARS[kind.word][1]


def _writing(kind: schemas.Type) -> Write:
    if kind.word == "struct":
        return message(kind.struct).write
    if kind.word == "[]":
        assert kind.item is not None
        inner = _writing(kind.item)
        return lambda value: b"".join(delimited(1, inner(item)) for item in value)
    return _SCALARS[kind.word][2]


def _entry_reading(kind: schemas.Type) -> Read:
    """Of an entry of a map, a message of key and value."""
    inner, expected = _reading(kind), 2 << 3 | _wire_type(kind)

    def read(source: Input, start: int, stop: int) -> tuple[str, Any]:
        key, value = "", _empty(kind)
        for number, (tag, at, end, _) in enumerate(fields(source.data, start, stop)):
            source.count(int(number > 1))  # the first two are counted as one, with the entry itself
            if tag == 1 << 3 | BYTES:
                key = _read_str(source, at, end)
            elif tag == expected:
                value = inner(source, at, end)
            elif tag >> 3 <= 2:
                raise WireError(f"a map's entry has wire type {tag & 7}")
        return key, value

    return read


def _entry_writing(kind: schemas.Type) -> Callable[[tuple[str, Any]], Bytes]:
    inner, head, sized = _writing(kind), varint(2 << 3 | _wire_type(kind)), _wire_type(kind) == BYTES

    def write(item: tuple[str, Any]) -> Bytes:
        key, data = item[0].encode(), inner(item[1])
        out = bytearray(b"\x0a")
        out += varint(len(key))
        out += key
        out += head
        if sized:
            out += varint(len(data))
        out += data
        return out

    return write


def _empty(kind: schemas.Type) -> Any:
    found = _EMPTY.get(kind.word, {} if kind.word == "struct" else 0)
    return found.copy() if isinstance(found, (list, dict)) else found


def _packed(kind: schemas.Type) -> Read:
    inner = _reading(kind)

    def read(source: Input, start: int, stop: int) -> Iterator[Any]:
        while start < stop:
            value, start = read_varint(source.data, start, stop)
            source.count(1)
            yield inner(source, value, start)

    return read


def _add(made: Message, one: schemas.Field, number: int, prefix: int) -> None:
    kind, many = one.type, one.type.word if one.type.item is not None else ""
    item = kind.item if kind.item is not None else kind
    wire = BYTES if many == "{}" else _wire_type(item)
    tag = number << 3 | wire
    nested = message(item.struct) if item.struct and not many else None
    keeps = one.pointer or one.required or (wire == BYTES and item.word not in ("str", "bytes"))
    read = _entry_reading(item) if many == "{}" else _reading(item)
    made.readers[tag] = FieldReader(one.name, read, keeps, many, nested)
    if many == "[]" and wire == VARINT:
        made.readers[number << 3 | BYTES] = FieldReader(one.name, _packed(item), True, "packed")
    write: Write = _entry_writing(item) if many == "{}" else _writing(item)
    writer = FieldWriter(varint(tag), write, wire == BYTES, many, prefix)
    made.writers[one.name] = writer


@functools.cache
def message(name: str) -> Message:
    """The message of a struct, such as "core.v1.Pod". Raises: KeyError for what has no protobuf encoding."""
    numbers, made = _table()[name], Message(name)
    inline: dict[int, Message] = {}
    for one in schemas.struct(name).fields.values():
        way = numbers.get(one.name, "")
        *prefix, number = map(int, way.split(".")) if way else [0]
        if not number:
            continue
        if not prefix:
            _add(made, one, number, 0)
            continue
        inner = inline.setdefault(prefix[0], Message(name))
        _add(inner, one, number, prefix[0])
        made.writers[one.name] = inner.writers[one.name]
    for number, inner in inline.items():
        made.readers[number << 3 | BYTES] = FieldReader("", inner.read, True, "inline", inner)
    return made


def is_encoded(name: str) -> bool:
    """Whether a struct has a protobuf encoding: those of custom resources have none."""
    return ALIASES.get(name, name) in _table()


@functools.cache
def _table() -> dict[str, dict[str, str]]:
    """Struct -> field -> number, as text."""
    files = (group / NUMBERS for group in schemas.KINDS.iterdir())
    lines = chain.from_iterable(file.read_text(encoding="utf-8").splitlines() for file in files if file.exists())
    rows = (line.split() for line in lines if not line.startswith("#"))
    return {name: dict(pair.split("=", 1) for pair in pairs) for name, *pairs in rows}
