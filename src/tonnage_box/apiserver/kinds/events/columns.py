"""Columns of `kubectl get events.events.k8s.io`: those of core's Events."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from tonnage_box.apiserver.kinds.core.columns import EVENT
from tonnage_box.apiserver.kinds.events import versions as event_versions
from tonnage_box.apiserver.printers.table import Cell, Obj


def _read_new(cell: Cell, obj: Obj, now: datetime) -> Any:
    """The same cell, read from an events.k8s.io Event."""
    return cell(event_versions.inward(obj), now)


EVENT_NEW = tuple(replace(column, cell=partial(_read_new, column.cell)) for column in EVENT)
