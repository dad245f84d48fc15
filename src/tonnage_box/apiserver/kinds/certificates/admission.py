"""Who asks for a certificate, and what approval and status of a request may change (pkg/registry/certificates)."""

from __future__ import annotations

import copy

from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.storage.store import Obj

_DECIDED = ("Approved", "Denied")


async def admit(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """Sign a new request with its user; keep approval and the rest of the status apart."""
    if context.operation == "CREATE":
        spec = new["spec"]
        for word in ("uid", "extra"):
            spec.pop(word, None)
        spec |= context.user.info()
    elif context.subresource and old is not None:
        conditions = (new.get("status") or {}).get("conditions") or []
        before = (old.get("status") or {}).get("conditions") or []
        if context.subresource == "approval":
            new["status"] = copy.deepcopy(old.get("status") or {})
        else:
            conditions = [c for c in conditions if c["type"] not in _DECIDED]
            conditions = [c for c in before if c["type"] in _DECIDED] + conditions
        _timed(conditions, before, context.now)
        status = new.setdefault("status", {})
        status["conditions"] = conditions
        if not conditions:
            del status["conditions"]


def _timed(conditions: list[Obj], before: list[Obj], now: str) -> None:
    known = {(c.get("type"), c.get("status")): c for c in before}
    for condition in conditions:
        was = known.get((condition.get("type"), condition.get("status")), {})
        condition.setdefault("lastTransitionTime", was.get("lastTransitionTime", now))
        condition.setdefault("lastUpdateTime", now)
