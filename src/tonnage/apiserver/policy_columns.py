"""What `kubectl get pc,pdb` shows (pkg/printers/internalversion)."""

from __future__ import annotations

from typing import Any

from tonnage.apiserver.columns import AGE, dig
from tonnage.apiserver.table import NAME, Column, Obj

PRIORITY_CLASS = (
    NAME,
    Column("Value", lambda o, _: o.get("value", 0), type="integer"),
    Column("Global-Default", lambda o, _: bool(o.get("globalDefault")), type="boolean"),
    AGE,
    Column("PreemptionPolicy", lambda o, _: o.get("preemptionPolicy", "")),
)


def _bound(obj: Obj, word: str) -> Any:
    value = dig(obj, "spec", word)
    return "N/A" if value is None else str(value)


DISRUPTION_BUDGET = (
    NAME,
    Column("Min Available", lambda o, _: _bound(o, "minAvailable")),
    Column("Max Unavailable", lambda o, _: _bound(o, "maxUnavailable")),
    Column("Allowed Disruptions", lambda o, _: dig(o, "status", "disruptionsAllowed") or 0, type="integer"),
    AGE,
)
