"""Field errors, worded as apimachinery's field.Error, which users and scripts compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tonnage.base.errors import FieldCause
from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.storage.store import Obj

NEGATIVE = "must be greater than or equal to 0"


class Faults(list[FieldCause]):
    """A list of Causes with a method for each kind of field error; path is the field's dotted path.

    above: field -> what exceeds a bound of the box there, and how much it is. Objects that are older than the bound are
    forgiven for it (`forgive`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.above: dict[str, tuple[FieldCause, int]] = {}

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

    def too_many(self, path: str, count: int, limit: int, what: str = "items") -> bool:
        """It has more items than the box allows, which are best not looked at; whether it has."""
        if count > limit:
            self._add(path, "TooMany", f"Too many: {count}", f"must have at most {limit} {what}")
            self.above[path] = self[-1], count
        return count > limit

    def too_large(self, path: str, number: int, limit: int) -> None:
        """It is a larger number than the box allows."""
        if number > limit:
            self.invalid(path, number, f"must be less than or equal to {limit} in the box")
            self.above[path] = self[-1], number

    def forgive(self, before: Faults) -> None:
        """Drop what exceeds a bound of the box no more than it did before."""
        for path, (fault, number) in self.above.items():
            if path in before.above and number <= before.above[path][1]:
                self.remove(fault)

    def too_long(self, path: str, limit: int) -> None:
        """It has too many bytes."""
        self._add(path, "TooLong", "Too long", f"may not be more than {limit} bytes")

    def check(self, path: str, value: Any, rule: Callable[[Any], Sequence[str]]) -> bool:
        """Whether the value passes the rule; one invalid() for each message of the rule."""
        messages = rule(value)
        for message in messages:
            self.invalid(path, value, message)
        return not messages

    def name(self, path: str, value: Any, rule: Callable[[Any], Sequence[str]], detail: str = "") -> None:
        """It must be given, and pass the rule. detail: of the fault when it is not given."""
        if value:
            self.check(path, value, rule)
        else:
            self.required(path, detail)

    def optional(self, path: str, obj: Obj, rule: Callable[[Any], Sequence[str]], *words: str) -> None:
        """Fields of obj that must pass the rule, where they are given."""
        for word in words:
            if obj.get(word):
                self.check(f"{path}.{word}", obj[word], rule)

    def given(self, path: str, obj: Obj, *words: str) -> None:
        """Fields of obj that must be given."""
        for word in words:
            if not obj.get(word):
                self.required(f"{path}.{word}")

    def one_of(self, path: str, value: Any, words: Iterable[str]) -> None:
        """It must have one of these values; None counts as empty text."""
        if value not in words:
            self.not_supported(path, "" if value is None else value, words)

    def unique(self, path: str, value: Any, seen: set[Any]) -> None:
        """Its value must not be among those seen; then it is."""
        if value in seen:
            self.duplicate(path, value)
        seen.add(value)

    def not_negative(self, path: str, obj: Obj, *words: str) -> None:
        """Numbers of obj that are 0 or more, where they are given."""
        for word in words:
            if obj.get(word, 0) < 0:
                self.invalid(f"{path}.{word}", obj[word], NEGATIVE)

    def amount(self, path: str, text: str) -> None:
        """A quantity of 0 or more."""
        if Quantity.parse(text).nanos < 0:
            self.invalid(path, text, NEGATIVE)

    def in_range(self, path: str, value: int | None, low: int, high: int) -> None:
        """A number between two, where it is given."""
        if value is not None and not low <= value <= high:
            self.invalid(path, value, f"must be between {low} and {high}, inclusive")

    def immutable(self, path: str, new: Any, old: Any) -> None:
        """`field is immutable` if the value is another one."""
        if new != old:
            self.invalid(path, new, "field is immutable")

    def fixed(self, path: str, new: Obj, old: Obj, *words: str) -> None:
        """Fields of new that must be as in old. path: ends in a dot, or is empty."""
        for word in words:
            self.immutable(f"{path}{word}", new.get(word), old.get(word))

    def moved(self, found: Faults, old: str, new: str) -> None:
        """Add faults whose paths begin with old, with new in its place."""
        for fault in found:
            self.append(replace(fault, field=new + fault.field.removeprefix(old)))
            if fault.field in found.above and found.above[fault.field][0] is fault:
                self.above[self[-1].field] = self[-1], found.above[fault.field][1]

    def _add(self, path: str, reason: str, what: str, detail: str) -> None:
        self.append(FieldCause(path, f"{what}: {detail}" if detail else what, f"FieldValue{reason}"))


def shown(value: Any) -> str:
    """A value as Go quotes it: text in double quotes, numbers bare, structures as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def items(obj: Obj, word: str, path: str) -> Sequence[tuple[str, Any]]:
    """The members of a list of obj, each with its path. path: of obj, with the dot at its end, or empty."""
    members = obj.get(word)
    return [(f"{path}{word}[{index}]", item) for index, item in enumerate(members)] if members else ()


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
