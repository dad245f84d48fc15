"""Validation of all requests before a service reads them (CSI 1.12, "Size Limits" and field rules).

Strings have at most 128 bytes, node ids 256, maps and mount flags 4 KiB in all. Paths are absolute without `..`. All
errors are Invalid and name the field. The checks of a message type are compiled once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tonnage.base.errors import InvalidError

MAX_STRING = 128
MAX_NODE_ID = 256
MAX_MAP = 4096
MAX_PATH = 4095
# CSI bans these in names: control characters but the usual white space.
_BANNED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

_IDS = frozenset({"volume_id", "name", "snapshot_id", "group_snapshot_id"})
_LISTS_OF_IDS = frozenset({"source_volume_ids", "snapshot_ids"})
Check = Callable[[Any], object]


def check_request(request: Message) -> None:
    """Check all fields of a request that are set. Raises: InvalidError."""
    for check in _checks(request.DESCRIPTOR):
        check(request)


def check_id(field: str, text: str) -> str:
    """Check a volume id or name: not empty, at most 128 bytes, no control characters, no `..` as a component."""
    if not text:
        raise InvalidError(f"{field} is missing")
    _check_text(field, text, MAX_STRING)
    if _BANNED.search(text):
        raise InvalidError(f"{field} {text[:40]!r} contains control characters")
    if ".." in text.split("/"):
        raise InvalidError(f"{field} {text[:40]!r} must not contain '..'")
    return text


def check_path(field: str, text: str) -> str:
    """Check a path: absolute, at most 4095 bytes, no NUL, no `..`. Raises: InvalidError."""
    if not text:
        raise InvalidError(f"{field} is missing")
    if not text.startswith("/"):
        raise InvalidError(f"{field} {text[:80]!r}: want an absolute path")
    _check_plain_path(field, text)
    return text


def _check_plain_path(field: str, text: str) -> None:
    if "\0" in text:
        raise InvalidError(f"{field} {text[:40]!r} contains NUL")
    _check_text(field, text, MAX_PATH)
    if ".." in text.split("/"):
        raise InvalidError(f"{field} {text[:80]!r} must not contain '..'")


def _check_text(field: str, text: str, limit: int) -> None:
    # Most strings are short ASCII: count the bytes only where it can matter.
    if len(text) * 4 > limit and (size := len(text.encode())) > limit:
        raise InvalidError(f"{field} has {size} bytes, at most {limit} are allowed")


def _check_total(field: str, size: int) -> None:
    if size > MAX_MAP:
        raise InvalidError(f"{field} has {size} bytes in all, at most {MAX_MAP} are allowed")


def _map_size(pairs: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in pairs.items())


@cache
def _checks(message: Descriptor) -> tuple[Check, ...]:
    found = (_check_for(field) for field in message.fields)
    return tuple(check for check in found if check is not None)


def _check_for(field: FieldDescriptor) -> Check | None:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return lambda request: _check_total(name, _map_size(getattr(request, name)))
    if field.message_type is not None:
        return _check_nested(field)
    if field.type != FieldDescriptor.TYPE_STRING:
        return None
    if field.is_repeated and name in _LISTS_OF_IDS:
        return lambda request: [check_id(name, item) for item in getattr(request, name)]
    if field.is_repeated:
        return lambda request: _check_total(name, sum(len(item.encode()) for item in getattr(request, name)))
    if name == "volume_path":  # a relative one is not rejected: nothing is there, which is NOT_FOUND
        return lambda request: _check_plain_path(name, getattr(request, name))
    if name.endswith("_path"):
        return lambda request: _check_optional(check_path, name, getattr(request, name))
    if name in _IDS:
        if _is_required(field):
            return lambda request: check_id(name, getattr(request, name))
        return lambda request: _check_optional(check_id, name, getattr(request, name))
    limit = MAX_NODE_ID if name == "node_id" else MAX_STRING
    return lambda request: _check_text(name, getattr(request, name), limit)


def _is_required(field: FieldDescriptor) -> bool:
    """Whether a request must have this id: all but the filter of ListSnapshots."""
    message = field.containing_type
    return message is not None and message.name.endswith("Request") and message.name != "ListSnapshotsRequest"


def _check_optional(check: Callable[[str, str], str], field: str, text: str) -> None:
    """Check fields if set. The service decides which are required: CreateVolume differs from Probe."""
    if text:
        check(field, text)


def _check_nested(field: FieldDescriptor) -> Check | None:
    name = field.name
    if not _checks(field.message_type):
        return None

    def check_all(request: Any) -> None:
        for item in getattr(request, name):
            check_request(item)

    def check_set(request: Any) -> None:
        if request.HasField(name):
            check_request(getattr(request, name))

    return check_all if field.is_repeated else check_set
