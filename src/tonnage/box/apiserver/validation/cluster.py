"""Validation of Namespace, Node, Event, ResourceQuota, LimitRange and Lease."""

from __future__ import annotations

from typing import Any

from tonnage.api.quantity import Quantity
from tonnage.box.apiserver.validation.field_errors import Faults, immutable
from tonnage.box.apiserver.validation.meta import dns_label, label_value, metadata, path_segment, qualified_name
from tonnage.errors import FieldCause

Obj = dict[str, Any]
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LIMIT_TYPES = ("Container", "PersistentVolumeClaim", "Pod")
# Which bound may not exceed which, at which of them the fault is shown, and how the two are called.
_LIMIT_ORDER = (
    ("min", "max", "min", ("min", "max")),
    ("min", "defaultRequest", "defaultRequest", ("min", "default request")),
    ("defaultRequest", "max", "defaultRequest", ("default request", "max")),
    ("defaultRequest", "default", "defaultRequest", ("default request", "default limit")),
    ("min", "default", "default", ("min", "default")),
    ("default", "max", "default", ("default", "max")),
)
_SCOPELESS = "quota scopes are not offered by this server; leave them out"
_EVENT_MESSAGE = 1024
_EVENT_FIXED = ("regarding", "reason", "note", "type", "eventTime", "action", "related", "reportingController")
_EVENT_OLD = ("deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount")
_ELSEWHERE = "does not match event.namespace"


def namespace(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """Namespace: its name is a DNS label."""
    faults = Faults()
    metadata(faults, new, dns_label, old=old)
    for finalizer in (new.get("spec") or {}).get("finalizers") or ():
        faults.each("spec.finalizers", finalizer, qualified_name(finalizer))
    phase = (new.get("status") or {}).get("phase", "Active")
    if subresource == "status":
        leaving = new["metadata"].get("deletionTimestamp") or (old or new)["metadata"].get("deletionTimestamp")
        if bool(leaving) != (phase == "Terminating"):
            want = "Terminating" if leaving else "Active"
            why = "is not empty" if leaving else "is empty"
            faults.invalid("status.Phase", phase, f"may only be '{want}' if `deletionTimestamp` {why}")
    return faults


def node(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """Node: taints, addresses, resources; the pod range and provider id may be set once."""
    faults = Faults()
    metadata(faults, new, old=old)
    spec, status = new.get("spec") or {}, new.get("status") or {}
    _taints(faults, spec.get("taints") or [])
    for word in ("capacity", "allocatable"):
        for resource, text in (status.get(word) or {}).items():
            if Quantity.parse(text).nanos < 0:
                faults.invalid(f"status.{word}.{resource}", text, "must be greater than or equal to 0")
    addresses = status.get("addresses") or []
    for index, address in enumerate(addresses):
        if address in addresses[:index]:
            faults.duplicate(f"status.addresses[{index}]", address)
    if old is not None:
        before = old.get("spec") or {}
        if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
            faults.forbidden("spec.podCIDRs", 'node updates may not change podCIDR except from "" to valid')
        if before.get("providerID") and spec.get("providerID") != before["providerID"]:
            faults.forbidden("spec.providerID", 'node updates may not change providerID except from "" to valid')
    return faults


def _taints(faults: Faults, taints: list[Obj]) -> None:
    seen = set()
    for index, taint in enumerate(taints):
        path, key = f"metadata.taints[{index}]", taint.get("key", "")
        faults.each(f"{path}.key", key, qualified_name(key))
        faults.each(f"{path}.value", taint.get("value", ""), label_value(taint.get("value", "")))
        effect = taint.get("effect")
        if not effect:
            faults.required(f"{path}.effect")
        elif effect not in _EFFECTS:
            faults.not_supported(f"{path}.effect", effect, _EFFECTS)
        if (key, effect) in seen:
            faults.duplicate(path, taint)
        seen.add((key, effect))


def event(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """Event in its core form: its namespace is that of its object (`default` for cluster-scoped objects)."""
    faults = Faults()
    metadata(faults, new, path_segment, old=old)
    if new.get("eventTime"):
        _new_style(faults, new, new.get("involvedObject") or {}, "reportingComponent")
    else:
        where = (new.get("involvedObject") or {}).get("namespace", "")
        if new["metadata"].get("namespace", "") != (where or "default"):
            faults.invalid("involvedObject.namespace", where, _ELSEWHERE)
    return faults


def new_event(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """Event of events.k8s.io: says who reports, why and what was done; afterwards only its series changes."""
    faults = Faults()
    metadata(faults, new, old=old)
    if old is not None:
        for word in _EVENT_FIXED:
            immutable(faults, new.get(word), old.get(word), "involvedObject" if word == "regarding" else word)
        return faults
    if not new.get("eventTime"):
        faults.required("eventTime")
    _new_style(faults, new, new.get("regarding") or {}, "reportingController")
    if new.get("type") not in ("Normal", "Warning"):
        faults.invalid("type", "", f"has invalid value: {new.get('type', '')}")
    for word in _EVENT_OLD:
        if new.get(word):
            faults.invalid(word.removeprefix("deprecated"), "", "needs to be unset")
    return faults


def _new_style(faults: Faults, new: Obj, about: Obj, controller: str) -> None:
    if not about.get("namespace") and new["metadata"].get("namespace") not in ("default", "kube-system"):
        faults.invalid("involvedObject.namespace", "", _ELSEWHERE)
    if not new.get(controller):
        faults.required(controller)
    else:
        faults.each(controller, new[controller], qualified_name(new[controller]))
    if len((new.get("note") or new.get("message") or "").encode()) > _EVENT_MESSAGE:
        faults.invalid("message", "", f"can have at most {_EVENT_MESSAGE} characters")
    for word, limit in (("reportingInstance", 128), ("action", 128), ("reason", 128)):
        if not new.get(word):
            faults.required(word)
        elif len(new[word].encode()) > limit:
            faults.invalid(word, "", f"can have at most {limit} characters")


def resource_quota(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """ResourceQuota. Scopes are refused: a quota that were not enforced would be worse than none."""
    faults = Faults()
    metadata(faults, new, old=old)
    spec = new.get("spec") or {}
    for resource, text in (spec.get("hard") or {}).items():
        path = f"spec.hard[{resource}]"
        faults.each(path, resource, qualified_name(resource))
        amount = Quantity.parse(text)
        if amount.nanos < 0:
            faults.invalid(path, text, "must be greater than or equal to 0")
        elif amount.nanos % 10**9 and (resource.startswith("count/") or resource.endswith("s")):
            faults.invalid(path, text, "must be an integer")
    for word in ("scopes", "scopeSelector"):
        if spec.get(word):
            faults.forbidden(f"spec.{word}", _SCOPELESS)
    return faults


def limit_range(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """LimitRange: one item a type, min <= default request <= default <= max."""
    faults = Faults()
    metadata(faults, new, old=old)
    kinds = set()
    for index, item in enumerate((new.get("spec") or {}).get("limits") or ()):
        path, kind = f"spec.limits[{index}]", item.get("type", "")
        if kind not in _LIMIT_TYPES:
            faults.not_supported(f"{path}.type", kind, _LIMIT_TYPES)
        if kind in kinds:
            faults.duplicate(f"{path}.type", kind)
        kinds.add(kind)
        _limits(faults, item, kind, path)
    return faults


def _limits(faults: Faults, item: Obj, kind: str, path: str) -> None:
    if kind == "PersistentVolumeClaim" and not ((item.get("min") or {}) | (item.get("max") or {})).get("storage"):
        detail = "either minimum or maximum storage value is required, but neither was provided"
        faults.required(f"{path}.limits", detail)
    if kind == "Pod":
        for word in ("default", "defaultRequest"):
            if item.get(word):
                faults.forbidden(f"{path}.{word}", f"may not be specified when `type` is '{kind}'")
    if item.get("maxLimitRequestRatio"):
        faults.forbidden(f"{path}.maxLimitRequestRatio", "is not offered by this server; leave it out")
    for low, high, place, words in _LIMIT_ORDER:
        lower, upper = item.get(low) or {}, item.get(high) or {}
        for resource in sorted(lower.keys() & upper.keys()):
            if Quantity.parse(lower[resource]).nanos > Quantity.parse(upper[resource]).nanos:
                what = f"{words[0]} value {lower[resource]} is greater than {words[1]} value {upper[resource]}"
                wrong = (item.get(place) or {})[resource]
                faults.invalid(f"{path}.{place}[{resource}]", wrong, what)


def lease(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """Lease."""
    faults = Faults()
    metadata(faults, new, old=old)
    spec = new.get("spec") or {}
    for word, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
        if word in spec and spec[word] < least:
            bound = "must be greater than 0" if least else "must be greater than or equal to 0"
            faults.invalid(f"spec.{word}", spec[word], bound)
    if "preferredHolder" in spec and not spec.get("strategy"):
        faults.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined")
    return faults
