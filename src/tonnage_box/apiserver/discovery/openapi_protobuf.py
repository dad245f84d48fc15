"""OpenAPI v2 document as protobuf (gnostic's openapi.v2.Document): the definitions that kubectl reads.

kubectl accepts no other encoding where it validates on the client: for `kind: List`, as `kubectl get -o yaml` writes.
The few messages are written by hand with gnostic's field numbers. Extensions of a Schema become vendor_extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tonnage_box.apiserver.protobuf.wire import delimited

MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_SWAGGER, _INFO, _PATHS, _DEFINITIONS = 1, 2, 8, 9
_TEXTS = {"$ref": 1, "format": 2, "description": 4}
_REQUIRED, _ADDITIONAL, _TYPE, _ITEMS, _PROPERTIES, _VENDOR = 19, 21, 22, 23, 25, 31


def encode(document: Mapping[str, Any]) -> bytes:
    """The document without its paths, which only say again what discovery says."""
    info = document["info"]
    return b"".join(
        (
            _text(_SWAGGER, document["swagger"]),
            delimited(_INFO, _text(1, info["title"]) + _text(2, info["version"])),
            delimited(_PATHS, b""),
            delimited(_DEFINITIONS, _named(document["definitions"])),
        )
    )


def _named(schemas: Mapping[str, Any]) -> bytes:
    """Repeated NamedSchema."""
    return b"".join(delimited(1, _text(1, name) + delimited(2, _schema(schema))) for name, schema in schemas.items())


def _schema(schema: Mapping[str, Any]) -> bytes:
    """A Schema. Raises: KeyError for a word that is not known here: nothing is left out unseen."""
    return b"".join(_word(name, value) for name, value in schema.items())


def _word(name: str, value: Any) -> bytes:
    if name.startswith("x-"):
        text = msgspec.json.encode(value).decode()  # JSON is YAML
        return delimited(_VENDOR, _text(1, name) + delimited(2, _text(2, text)))
    match name:
        case "required":
            return b"".join(_text(_REQUIRED, item) for item in value)
        case "additionalProperties":
            return delimited(_ADDITIONAL, delimited(1, _schema(value)))
        case "items":
            return delimited(_ITEMS, delimited(1, _schema(value)))
        case "properties":
            return delimited(_PROPERTIES, _named(value))
        case "type":
            return delimited(_TYPE, _text(1, value))
    return _text(_TEXTS[name], value)


def _text(number: int, value: str) -> bytes:
    return delimited(number, value.encode())
