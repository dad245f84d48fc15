"""Patches of plain JSON values: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge patch (Kubernetes).

All functions return a new value and never change their arguments; the result may share unchanged parts with them. A
malformed patch raises InvalidError; a valid one that does not fit the object raises ApiInvalidError.

JSON patches follow the API server's library (evanphx/json-patch v4) where it differs from the RFC: a missing member of
an existing object reads as null (replace, test, copy), and negative list indexes count from the end.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from tonnage.errors import ApiInvalidError, InvalidError

Json = Any
_MAX_OPERATIONS = 10_000
_MAX_SHOWN = 500
MAX_COPIED = 3 << 20
"""Limit of copies: copies of copies double with each operation, so a small body could exhaust the memory."""


def merge(target: Json, patch: Json) -> Json:
    """Apply a merge patch: null deletes, objects merge, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


# JSON patch


def apply_json_patch(target: Json, operations: Json) -> Json:
    """Apply a JSON patch.

    Raises InvalidError (malformed) and ApiInvalidError (a path that is not there, a failed test).
    """
    if not isinstance(operations, list):
        raise InvalidError("a JSON patch is a list of operations")
    if len(operations) > _MAX_OPERATIONS:
        raise InvalidError(f"a JSON patch has at most {_MAX_OPERATIONS} operations, this one has {len(operations)}")
    result, copied = copy.deepcopy(target), 0
    for operation in operations:
        act = _OPERATIONS.get(str(operation.get("op"))) if isinstance(operation, dict) else None
        if act is None:
            raise InvalidError(
                f"JSON patch: {_shown(operation)} is not an operation (add, remove, replace, move, copy, test)"
            )
        if operation["op"] == "copy":
            copied += _weight(_read(result, _pointer(operation, "from")))
            if copied > MAX_COPIED:
                raise ApiInvalidError(f"JSON patch: its copies come to more than {MAX_COPIED} bytes together")
        result = act(result, operation)
    return result


def copies(operations: Json) -> bool:
    """Whether a JSON patch has a copy operation."""
    return isinstance(operations, list) and any(isinstance(o, dict) and o.get("op") == "copy" for o in operations)


def _weight(value: Json) -> int:
    """Approximate bytes of a value as JSON."""
    if isinstance(value, dict):
        return 2 + sum(len(key) + _weight(item) + 2 for key, item in value.items())
    if isinstance(value, list):
        return 2 + sum(_weight(item) + 1 for item in value)
    return len(value) + 2 if isinstance(value, str) else 8


def _pointer(operation: Mapping[str, Json], member: str) -> list[str]:
    path = operation.get(member)
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise InvalidError(f"JSON patch: {member} {path!r} of {operation.get('op')} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _value(operation: Mapping[str, Json]) -> Json:
    if "value" not in operation:
        raise InvalidError(f"JSON patch: {operation['op']} of {operation.get('path')!r} has no value")
    return copy.deepcopy(operation["value"])


def _missing(path: list[str]) -> ApiInvalidError:
    return ApiInvalidError(f"JSON patch: there is nothing at /{'/'.join(path)}")


def _index(part: str, length: int, path: list[str]) -> int:
    """A list index from 0 to below length; a negative one counts from the end. Raises ApiInvalidError."""
    digits = part.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or (part != "0" and digits.startswith("0")) or len(digits) > 9:
        raise ApiInvalidError(f"JSON patch: {part!r} of /{'/'.join(path)} is not a list index")
    index = int(part)
    if not -length <= index < length:
        raise _missing(path)
    return index if index >= 0 else index + length


def _at(value: Json, path: list[str]) -> Json:
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list):
            value = value[_index(part, len(value), path)]
        else:
            raise _missing(path)
    return value


def _read(target: Json, path: list[str]) -> Json:
    """The value at path; None for a missing member of an existing object. Raises ApiInvalidError."""
    parent = _at(target, path[:-1])
    return parent.get(path[-1]) if path and isinstance(parent, dict) else _at(target, path)


def _add_at(target: Json, path: list[str], value: Json) -> Json:
    if not path:
        return value
    parent, last = _at(target, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(last, len(parent) + 1, path), value)
    else:
        raise _missing(path)
    return target


def _remove_at(target: Json, path: list[str]) -> Json:
    """Remove in place and return the removed value."""
    if not path:
        raise InvalidError("JSON patch: the whole object cannot be removed")
    parent, last = _at(target, path[:-1]), path[-1]
    if isinstance(parent, dict) and last in parent:
        return parent.pop(last)
    if isinstance(parent, list):
        return parent.pop(_index(last, len(parent), path))
    raise _missing(path)


def _op_add(target: Json, operation: Mapping[str, Json]) -> Json:
    return _add_at(target, _pointer(operation, "path"), _value(operation))


def _op_remove(target: Json, operation: Mapping[str, Json]) -> Json:
    _remove_at(target, _pointer(operation, "path"))
    return target


def _op_replace(target: Json, operation: Mapping[str, Json]) -> Json:
    path, value = _pointer(operation, "path"), _value(operation)
    if not path:
        return value
    parent = _at(target, path[:-1])
    if isinstance(parent, dict):
        parent[path[-1]] = value
    elif isinstance(parent, list):
        parent[_index(path[-1], len(parent), path)] = value
    else:
        raise _missing(path)
    return target


def _op_move(target: Json, operation: Mapping[str, Json]) -> Json:
    source, path = _pointer(operation, "from"), _pointer(operation, "path")
    if source == path[: len(source)] and source != path:
        raise InvalidError("JSON patch: a value cannot be moved into itself")
    if source == path:
        _at(target, source)
        return target
    return _add_at(target, path, _remove_at(target, source))


def _op_copy(target: Json, operation: Mapping[str, Json]) -> Json:
    return _add_at(target, _pointer(operation, "path"), copy.deepcopy(_read(target, _pointer(operation, "from"))))


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ..."


def _op_test(target: Json, operation: Mapping[str, Json]) -> Json:
    path, wanted = _pointer(operation, "path"), _value(operation)
    found = _read(target, path)
    if not same(found, wanted):
        raise ApiInvalidError(
            f"JSON patch: test of /{'/'.join(path)} failed: want {_shown(wanted)}, found {_shown(found)}"
        )
    return target


_OPERATIONS: dict[str, Callable[[Json, Mapping[str, Json]], Json]] = {
    "add": _op_add,
    "remove": _op_remove,
    "replace": _op_replace,
    "move": _op_move,
    "copy": _op_copy,
    "test": _op_test,
}


def same(one: Json, other: Json) -> bool:
    """Equality of JSON values: numbers by value, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
