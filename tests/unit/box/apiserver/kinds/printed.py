"""What `kubectl get` prints of an object."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.printers import table

Obj = dict[str, Any]
NOW = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
META = {"name": "x", "namespace": "ns", "creationTimestamp": "2026-01-01T00:55:00Z"}


def cells(key: str, obj: Obj) -> Obj:
    """Column name -> cell."""
    columns = RESOURCES[key].columns
    made = table.table(columns, [{"metadata": META} | obj], NOW, "Metadata", {})
    return dict(zip([c["name"] for c in made["columnDefinitions"]], made["rows"][0]["cells"], strict=True))


def check_columns(key: str, names: str | None, wide: str) -> None:
    """names: columns that are always there, None if that does not matter; wide: those of -o wide."""
    columns = RESOURCES[key].columns
    if names is not None:
        assert [c.name for c in columns if not c.priority] == names.split()
    assert [c.name for c in columns if c.priority] == (wide.split("|") if wide else [])
