"""Validation of Event, in its core form."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import kind_rules, path_segment, qualified_name

_EVENT_MESSAGE, _EVENT_WORD = 1024, 128
_ELSEWHERE = "does not match event.namespace"


@kind_rules(path_segment)
def event(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Event in its core form: its namespace is that of its object (`default` for cluster-scoped objects)."""
    if new.get("eventTime"):
        new_style(faults, new, new.get("involvedObject") or {}, "reportingComponent")
    else:
        where = (new.get("involvedObject") or {}).get("namespace", "")
        if new["metadata"].get("namespace", "") != (where or "default"):
            faults.invalid("involvedObject.namespace", where, _ELSEWHERE)


def new_style(faults: Faults, new: Obj, about: Obj, controller: str) -> None:
    """What is asked of an Event in either form. about: its object; controller: the field that names who reports."""
    if not about.get("namespace") and new["metadata"].get("namespace") not in ("default", "kube-system"):
        faults.invalid("involvedObject.namespace", "", _ELSEWHERE)
    faults.name(controller, new.get(controller), qualified_name)
    if len((new.get("note") or new.get("message") or "").encode()) > _EVENT_MESSAGE:
        faults.invalid("message", "", f"can have at most {_EVENT_MESSAGE} characters")
    for word in ("reportingInstance", "action", "reason"):
        if not new.get(word):
            faults.required(word)
        elif len(new[word].encode()) > _EVENT_WORD:
            faults.invalid(word, "", f"can have at most {_EVENT_WORD} characters")
