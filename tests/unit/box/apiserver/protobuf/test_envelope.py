"""Whole bodies: objects of every kind, lists, frames of a watch; and bodies that are no protobuf."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.unit.box.apiserver.protobuf.samples import objects

from tonnage_box.apiserver.protobuf import envelope, messages
from tonnage_box.apiserver.protobuf.wire import WireError, delimited, fields


def decoded(body: bytes) -> dict[str, Any]:
    return envelope.decode(body, msgspec.json.decode)


@pytest.mark.parametrize("seed", range(5))
def test_objects_of_every_kind_come_back(seed: int) -> None:
    made = list(objects(seed, 4))
    assert [decoded(envelope.encode(obj)) for obj in made] == made


def test_a_list_is_metadata_and_items() -> None:
    maps = [{"metadata": {"name": name}, "data": {"key": name}} for name in ("a", "b")]
    head = {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": "x"}}
    body = envelope.encode(head | {"items": maps})
    *_, (_, start, stop, _) = [part for part in fields(body, 4, len(body)) if part[0] >> 3 == 2]
    parts = [body[at:end] for _, at, end, _ in fields(body, start, stop)]
    assert parts[0] == delimited(2, b"7") + delimited(3, b"x") or parts[0] == delimited(3, b"x") + delimited(2, b"7")
    kind = {"kind": "ConfigMap", "apiVersion": "v1"}
    assert [decoded(envelope.wrap("v1", "ConfigMap", part)) for part in parts[1:]] == [kind | one for one in maps]


def test_a_frame_begins_with_its_length() -> None:
    frame = envelope.frame("ADDED", b"body")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame[4:] == delimited(1, b"ADDED") + delimited(2, delimited(1, b"body"))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "begins with the bytes"),
        (b"{}", "begins with the bytes"),
        (b"k8s\0", "names no apiVersion and kind"),
        (envelope.wrap("v1", "", b""), "names no apiVersion and kind"),
        (envelope.wrap("v1", "Nothing", b""), "has no protobuf encoding here"),
        (envelope.wrap("v1", "Pod", b"\x0a"), "cut off"),
    ],
)
def test_what_is_no_object_is_rejected(body: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decoded(body)


def test_damaged_bodies_are_objects_or_an_error() -> None:
    rng = random.Random(1)
    bodies = [envelope.encode(obj) for obj in objects(2, 2)]
    rejected = 0
    for n in range(5000):
        body = damaged(rng, bodies[n % len(bodies)])
        try:
            assert decoded(body)["kind"]
        except (WireError, UnicodeDecodeError, msgspec.DecodeError):
            rejected += 1
    assert 500 < rejected < 5000


def damaged(rng: random.Random, body: bytes) -> bytes:
    """The body with some bytes changed, cut out or repeated."""
    data = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = data[max(0, at - 9) : at]
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 5))
        if not data:
            break
    return bytes(data)


UNKNOWN = b"\xb8\x3e\x01"
"""A field of the number 999."""


@pytest.mark.parametrize(
    "body",
    [
        envelope.wrap("v1", "ConfigMap", UNKNOWN * 1_000_000),
        envelope.wrap("v1", "ConfigMap", delimited(1, UNKNOWN * 1_000_000)),
        envelope.wrap("v1", "ConfigMap", delimited(2, UNKNOWN * 1_000_000)),
        envelope.wrap("v1", "ConfigMap", delimited(2, b"\x0a\x00" * 1_000_000)),
        envelope.MAGIC + UNKNOWN * 1_000_000,
        envelope.MAGIC + delimited(1, UNKNOWN * 1_000_000),
    ],
    ids=["object", "metadata", "entry", "key", "envelope", "kind"],
)
def test_no_more_fields_are_looked_at_than_a_body_may_have(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counted(*arguments: Any) -> Iterator[Any]:
        nonlocal looked
        for field in fields(*arguments):
            looked += 1
            yield field

    monkeypatch.setattr(messages, "fields", counted)
    monkeypatch.setattr(envelope, "fields", counted)
    with pytest.raises(WireError, match="more than 100000 fields"):
        decoded(body)
    assert looked <= messages.MAX_FIELDS + 10
