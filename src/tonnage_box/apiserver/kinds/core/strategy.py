"""Create and update strategies of core/v1: drop fields that clients may not set (pkg/registry/core/*/strategy.go).

These are the hooks `prepare` of the rows.
"""

from __future__ import annotations

import base64
import copy
from typing import Any

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.origin import PROVISIONED
from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.storage.store import Obj


def namespace(new: Obj, old: Obj | None) -> None:
    """A namespace starts Active and is held by the finalizer that its controller takes off."""
    if old is None:
        finalizers = (new.get("spec") or {}).get("finalizers") or []
        remaining = [f for f in finalizers if f != names.NAMESPACE_FINALIZER]
        new["spec"] = {"finalizers": [names.NAMESPACE_FINALIZER, *remaining]}
        new["status"] = {"phase": "Active"}
    else:
        new["spec"] = copy.deepcopy(old.get("spec", {}))


def pod(new: Obj, old: Obj | None) -> None:
    """A pod starts Pending, with the quality of service that its requests give it."""
    if old is None:
        new["status"] = {"phase": "Pending", "qosClass": quality(new.get("spec") or {})}
        if (new.get("spec") or {}).get("schedulingGates"):
            gated = {
                "type": "PodScheduled",
                "status": "False",
                "lastTransitionTime": new["metadata"].get("creationTimestamp"),
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
            new["status"]["conditions"] = [gated]


def quality(spec: Obj) -> str:
    """Guaranteed, Burstable or BestEffort (component-helpers, ComputePodQOS). Bad quantities count as given."""
    every = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    resources = [c.get("resources") or {} for c in every if isinstance(c, dict)]
    requests = [_compute(r.get("requests")) for r in resources]
    limits = [_compute(r.get("limits")) for r in resources]
    if not any(requests) and not any(limits):
        return "BestEffort"
    # A missing request is the limit, a given one must equal it.
    full = all(lim.keys() == {"cpu", "memory"} and lim == lim | req for lim, req in zip(limits, requests, strict=True))
    return "Guaranteed" if full else "Burstable"


def _compute(amounts: Any) -> dict[str, int]:
    found = {}
    for word in ("cpu", "memory"):
        try:
            number = Quantity.parse(str(amounts[word])).nanos if isinstance(amounts, dict) and word in amounts else 0
        except InvalidError:
            number = 1
        if number:
            found[word] = number
    return found


def claim(new: Obj, old: Obj | None) -> None:
    """A claim starts Pending. dataSource and dataSourceRef are made equal (pkg/api/persistentvolumeclaim, KEP-1495).

    dataSource alone may name a claim or a snapshot. Any other kind is dropped, as before dataSourceRef existed. A
    reference into another namespace is not copied.
    """
    spec, before = new.get("spec") or {}, (old or {}).get("spec") or {}
    if old is None:
        new["status"] = {"phase": "Pending"}
    elif before.get("dataSource") or before.get("dataSourceRef"):
        # A client that knows one field only leaves the other out. What is stored with one field keeps that one.
        for field in _SOURCES:
            if field in before and field not in spec and len(_SOURCES & spec.keys()) == 1:
                spec[field] = copy.deepcopy(before[field])
        return
    source, ref = spec.get("dataSource"), spec.get("dataSourceRef")
    if source and not ref:
        if (source.get("apiGroup") or "", source.get("kind")) in PROVISIONED:
            spec["dataSourceRef"] = dict(source)
        else:
            del spec["dataSource"]
    elif ref and not source and not ref.get("namespace"):
        spec["dataSource"] = {k: v for k, v in ref.items() if k != "namespace"}


_SOURCES = {"dataSource", "dataSourceRef"}


def volume(new: Obj, old: Obj | None) -> None:
    """A volume starts Pending."""
    if old is None:
        new["status"] = {"phase": "Pending"}


def secret(new: Obj, old: Obj | None) -> None:
    """stringData is how data is written, never how it is stored."""
    for key, text in (new.pop("stringData", None) or {}).items():
        new.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()
