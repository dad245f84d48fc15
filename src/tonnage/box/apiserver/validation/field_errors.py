"""Field errors, worded as apimachinery's field.Error, which users and scripts compare."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tonnage.errors import FieldCause


class Faults(list[FieldCause]):
    """A list of Causes with a method for each kind of field error; path is the field's dotted path."""

    def required(self, path: str, detail: str = "") -> None:
        """It must be given."""
        self._add(path, "Required", "Required value", detail)

    def invalid(self, path: str, value: Any, detail: str) -> None:
        """Its value will not do."""
        self._add(path, "Invalid", f"Invalid value: {shown(value)}", detail)

    def forbidden(self, path: str, detail: str) -> None:
        """It may not be set, or not be changed."""
        self._add(path, "Forbidden", "Forbidden", detail)

    def duplicate(self, path: str, value: Any) -> None:
        """Its value occurs twice."""
        self._add(path, "Duplicate", f"Duplicate value: {shown(value)}", "")

    def not_found(self, path: str, value: Any) -> None:
        """It names something that is not there."""
        self._add(path, "NotFound", f"Not found: {shown(value)}", "")

    def not_supported(self, path: str, value: Any, supported: Iterable[str]) -> None:
        """Its value is not one of these, which are shown in their order."""
        words = ", ".join(f'"{word}"' for word in supported)
        self._add(path, "NotSupported", f"Unsupported value: {shown(value)}", f"supported values: {words}")

    def too_long(self, path: str, limit: int) -> None:
        """It has too many bytes."""
        self._add(path, "TooLong", "Too long", f"may not be more than {limit} bytes")

    def too_many(self, path: str, count: int, limit: int) -> None:
        """It has too many items."""
        self._add(path, "TooMany", f"Too many: {count}", f"must have at most {limit} items")

    def each(self, path: str, value: Any, messages: Iterable[str]) -> None:
        """One invalid() for each message."""
        for message in messages:
            self.invalid(path, value, message)

    def _add(self, path: str, reason: str, what: str, detail: str) -> None:
        self.append(FieldCause(path, f"{what}: {detail}" if detail else what, f"FieldValue{reason}"))


def shown(value: Any) -> str:
    """A value as Go quotes it: text in double quotes, numbers bare, structures as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def immutable(faults: Faults, new: Any, old: Any, path: str) -> None:
    """`field is immutable` if the value is another one."""
    if new != old:
        faults.invalid(path, new, "field is immutable")


def difference(new: Any, old: Any) -> str:
    """Where two structures differ, a line each, to end the message about a spec that may not change."""
    lines: list[str] = []
    _compare(new, old, "", lines)
    return "\n".join(lines[:10])


def _compare(new: Any, old: Any, path: str, lines: list[str]) -> None:
    if new == old:
        return
    if isinstance(new, dict) and isinstance(old, dict):
        for key in sorted(new.keys() | old.keys()):
            _compare(new.get(key), old.get(key), f"{path}.{key}" if path else key, lines)
    elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        for index, (a, b) in enumerate(zip(new, old, strict=True)):
            _compare(a, b, f"{path}[{index}]", lines)
    else:
        lines.append(f"  {path}: {shown(old)} -> {shown(new)}")
