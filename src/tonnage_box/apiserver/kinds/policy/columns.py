"""Columns of `kubectl get priorityclasses,pdb` (pkg/printers/internalversion)."""

from __future__ import annotations

from functools import partial

from tonnage_box.apiserver.printers.table import AGE, NAME, Obj, at, dig, of

PRIORITY_CLASS = (
    NAME,
    at("Value", "value", empty=0, kind="integer"),
    at("Global-Default", "globalDefault", empty=False, kind="boolean"),
    AGE,
    at("PreemptionPolicy", "preemptionPolicy"),
)


def _bound(word: str, obj: Obj) -> str:
    value = dig(obj, "spec", word)
    return "N/A" if value is None else str(value)


DISRUPTION_BUDGET = (
    NAME,
    of("Min Available", partial(_bound, "minAvailable")),
    of("Max Unavailable", partial(_bound, "maxUnavailable")),
    at("Allowed Disruptions", "status", "disruptionsAllowed", empty=0, kind="integer"),
    AGE,
)
