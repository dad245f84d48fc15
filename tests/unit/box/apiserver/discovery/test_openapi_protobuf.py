"""The bytes of the v2 document as protobuf; test_kubectl.py shows that kubectl reads them."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage_box.apiserver.discovery import openapi_protobuf as protobuf


def document(schema: dict[str, Any]) -> dict[str, Any]:
    return {"swagger": "2.0", "info": {"title": "K", "version": "v1"}, "definitions": {"A": schema}}


def test_fields_and_lengths() -> None:
    text = "d" * 200
    data = protobuf.encode(document({"description": text, "type": "object"}))
    schema = b"\x22\xc8\x01" + text.encode() + b"\xb2\x01\x08\x0a\x06object"
    named = b"\x0a\x01A\x12" + bytes([len(schema) & 0x7F | 0x80, len(schema) >> 7]) + schema
    entry = b"\x0a" + bytes([len(named) & 0x7F | 0x80, len(named) >> 7]) + named
    wanted = b"\x0a\x032.0" + b"\x12\x07\x0a\x01K\x12\x02v1" + b"\x42\x00"
    assert data == wanted + b"\x4a" + bytes([len(entry) & 0x7F | 0x80, len(entry) >> 7]) + entry


def test_extensions_are_json() -> None:
    assert b'x-kubernetes-list-map-keys\x12\x0a\x12\x08["name"]' in protobuf.encode(
        document({"x-kubernetes-list-map-keys": ["name"]})
    )


def test_a_word_that_is_not_known_is_not_left_out_unseen() -> None:
    with pytest.raises(KeyError, match="pattern"):
        protobuf.encode(document({"pattern": "a*"}))
