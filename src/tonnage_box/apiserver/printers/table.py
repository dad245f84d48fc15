"""meta.k8s.io/v1 Table: encoding of objects, times and ages for `kubectl get` (pkg/printers).

The columns of each kind are defined by the printers of that kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

Obj = dict[str, Any]
Include = Literal["Metadata", "None", "Object"]
Cell = Callable[[Obj, datetime], Any]

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400
_UNITS = {"s": 1, "m": _MINUTE, "h": _HOUR, "d": _DAY, "y": _YEAR}
# Below so many seconds a time is shown in the first unit, with the rest in the second.
_STEPS = (
    (2 * _MINUTE, "s", ""), (10 * _MINUTE, "m", "s"), (3 * _HOUR, "m", ""), (8 * _HOUR, "h", "m"), (2 * _DAY, "h", ""),
    (8 * _DAY, "d", "h"), (2 * _YEAR, "d", ""), (8 * _YEAR, "y", "d"), (math.inf, "y", ""),
)  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One column. priority: 1 is shown by -o wide only. type, format: as in OpenAPI."""

    name: str
    cell: Cell
    priority: int = 0
    type: str = "string"
    format: str = ""
    text: str = ""

    def definition(self) -> Obj:
        """metav1.TableColumnDefinition."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.text or f"{self.name}.",
            "priority": self.priority,
        }


def age(text: str | None, now: datetime) -> str:
    """Time since an RFC 3339 time, such as "5m30s"; "<unknown>" without one."""
    if not text:
        return "<unknown>"
    return duration((now - moment(text)).total_seconds())


def moment(text: str) -> datetime:
    """Read an RFC 3339 time."""
    return datetime.fromisoformat(text).astimezone(UTC)


def duration(seconds: float) -> str:
    """Seconds as kubectl shows them: two units at most, the coarser the longer (apimachinery HumanDuration)."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    unit, smaller = next((unit, smaller) for limit, unit, smaller in _STEPS if whole < limit)
    large, rest = divmod(max(whole, 0), _UNITS[unit])
    small = rest // _UNITS[smaller] if smaller else 0
    return f"{large}{unit}{small}{smaller}" if small else f"{large}{unit}"


def _name(obj: Obj, now: datetime) -> Any:
    return obj["metadata"]["name"]


def _created(obj: Obj, now: datetime) -> Any:
    return obj["metadata"].get("creationTimestamp", "")


NAME = Column("Name", _name, format="name", text="Unique within its kind and namespace.")
CREATED_AT = Column("Created At", _created, type="date", text="When the object was made.")
DEFAULT: Sequence[Column] = (NAME, CREATED_AT)


def dig(obj: Any, *path: str) -> Any:
    """The value below a path of keys, None where something is missing."""
    for key in path:
        if not isinstance(obj, Mapping):
            return None
        obj = obj.get(key)
    return obj


def at(name: str, *path: str, empty: Any = "", priority: int = 0, kind: str = "string", text: str = "") -> Column:
    """A column that shows the value below a path; empty where there is none."""

    def cell(obj: Obj, now: datetime) -> Any:
        value = dig(obj, *path)
        return empty if value is None or value == "" else value

    return Column(name, cell, priority, kind, text=text)


def of(name: str, read: Callable[[Obj], Any], priority: int = 0, kind: str = "string", text: str = "") -> Column:
    """A column that shows what a function reads."""
    return Column(name, lambda obj, now: read(obj), priority, kind, text=text)


def _age(obj: Obj, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


AGE = Column("Age", _age, text="Time since the object was made.")


def row(columns: Sequence[Column], obj: Obj, now: datetime, include: Include) -> Obj:
    """One metav1.TableRow."""
    answer: Obj = {"cells": [column.cell(obj, now) for column in columns]}
    if include == "Metadata":
        answer["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": obj.get("metadata", {}),
        }
    elif include == "Object":
        answer["object"] = obj
    return answer


def table(columns: Sequence[Column], objects: Iterable[Obj], now: datetime, include: Include, metadata: Obj) -> Obj:
    """A metav1.Table of the objects. metadata is the list's (resourceVersion, continue)."""
    columns = columns or DEFAULT
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [c.definition() for c in columns],
        "rows": [row(columns, obj, now, include) for obj in objects],
    }
