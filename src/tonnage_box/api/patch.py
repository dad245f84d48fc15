"""Patches of plain JSON values: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge patch (Kubernetes).

All functions return a new value and never change their arguments; the result may share unchanged parts with them. A
malformed patch raises InvalidError; a valid one that does not fit the object raises ApiInvalidError.

JSON patches follow the API server's library (evanphx/json-patch v4) where it differs from the RFC: a missing member of
an existing object reads as null (replace, test, copy), and negative list indexes count from the end.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tonnage.base.errors import ApiInvalidError, InvalidError

Json = Any
_OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")
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

    Raises: InvalidError (malformed) and ApiInvalidError (a path that is not there, a failed test).
    """
    if not isinstance(operations, list):
        raise InvalidError("a JSON patch is a list of operations")
    if len(operations) > _MAX_OPERATIONS:
        raise InvalidError(f"a JSON patch has at most {_MAX_OPERATIONS} operations, this one has {len(operations)}")
    result, copied = copy.deepcopy(target), 0
    for operation in operations:
        if not isinstance(operation, dict) or operation.get("op") not in _OPERATIONS:
            raise InvalidError(f"JSON patch: {_shown(operation)} is not an operation ({', '.join(_OPERATIONS)})")
        if operation["op"] == "copy":
            copied += _weight(_read(result, _pointer(operation, "from")))
            if copied > MAX_COPIED:
                raise ApiInvalidError(f"JSON patch: its copies come to more than {MAX_COPIED} bytes together")
        result = _apply(result, operation)
    return result


def _apply(target: Json, operation: Mapping[str, Json]) -> Json:
    path = _pointer(operation, "path")
    match operation["op"]:
        case "add":
            return _add_at(target, path, _value(operation))
        case "remove":
            _remove_at(target, path)
            return target
        case "replace":
            return _replace_at(target, path, _value(operation))
        case "move":
            return _move(target, _pointer(operation, "from"), path)
        case "copy":
            return _add_at(target, path, copy.deepcopy(_read(target, _pointer(operation, "from"))))
        case _:
            return _test(target, path, _value(operation))


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
    """A list index from 0 to below length; a negative one counts from the end. Raises: ApiInvalidError."""
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
    """The value at path; None for a missing member of an existing object. Raises: ApiInvalidError."""
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


def _replace_at(target: Json, path: list[str], value: Json) -> Json:
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


def _move(target: Json, source: list[str], path: list[str]) -> Json:
    if source == path:
        _at(target, source)
        return target
    if source == path[: len(source)]:
        raise InvalidError("JSON patch: a value cannot be moved into itself")
    return _add_at(target, path, _remove_at(target, source))


def _test(target: Json, path: list[str], wanted: Json) -> Json:
    found = _read(target, path)
    if not same(found, wanted):
        raise ApiInvalidError(
            f"JSON patch: test of /{'/'.join(path)} failed: want {_shown(wanted)}, found {_shown(found)}"
        )
    return target


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ..."


def same(one: Json, other: Json) -> bool:
    """Equality of JSON values: numbers by value, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
