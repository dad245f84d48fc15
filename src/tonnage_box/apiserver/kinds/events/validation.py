"""Validation of Event of events.k8s.io (pkg/apis/core/validation)."""

from __future__ import annotations

from tonnage_box.apiserver.kinds.core.validation.event import new_style
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import kind_rules

_EVENT_FIXED = ("reason", "note", "type", "eventTime", "action", "related", "reportingController")
_EVENT_OLD = ("deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount")


@kind_rules()
def new_event(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Event of events.k8s.io: says who reports, why and what was done; afterwards only its series changes."""
    if old is not None:
        faults.immutable("involvedObject", new.get("regarding"), old.get("regarding"))
        faults.fixed("", new, old, *_EVENT_FIXED)
        return
    if not new.get("eventTime"):
        faults.required("eventTime")
    new_style(faults, new, new.get("regarding") or {}, "reportingController")
    if new.get("type") not in ("Normal", "Warning"):
        faults.invalid("type", "", f"has invalid value: {new.get('type', '')}")
    for word in _EVENT_OLD:
        if new.get(word):
            faults.invalid(word.removeprefix("deprecated"), "", "needs to be unset")
