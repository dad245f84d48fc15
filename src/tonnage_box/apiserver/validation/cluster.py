"""Validation of Namespace, Node, Event, ResourceQuota, LimitRange, Lease and PriorityClass."""

from __future__ import annotations

from tonnage.kubernetes.api.policy import LOWER, NEVER, SYSTEM_CLASSES
from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.containers import MAX_RESOURCES
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import dns_label, kind_rules, label_value, path_segment, qualified_name
from tonnage_box.apiserver.validation.scheduling import EFFECTS, MAX_TAINTS

_MAX_HARD = 1000
"""Resources of a quota; Kubernetes has no limit. Each is counted at each write."""
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
ATTRIBUTES_SCOPE = "VolumeAttributesClass"
"""The only scope of quotas: claims by the classes that they want, have, or are on the way to."""
_SCOPELESS = f"of the scopes of quotas this server offers only {ATTRIBUTES_SCOPE}; leave others out"
_OF_CLAIMS = ("persistentvolumeclaims", "requests.storage")
_OF_CLASSES = tuple(f".storageclass.storage.k8s.io/{resource}" for resource in _OF_CLAIMS)
_CLAIMS_ONLY = "unsupported scope applied to resource"
_EVENT_MESSAGE, _EVENT_WORD = 1024, 128
_EVENT_FIXED = ("reason", "note", "type", "eventTime", "action", "related", "reportingController")
_EVENT_OLD = ("deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount")
_HIGHEST = 1_000_000_000
_SYSTEM_PREFIX = "system-"
_ELSEWHERE = "does not match event.namespace"


def _phase(faults: Faults, new: Obj, old: Obj | None) -> None:
    phase = (new.get("status") or {}).get("phase", "Active")
    leaving = new["metadata"].get("deletionTimestamp") or (old or new)["metadata"].get("deletionTimestamp")
    if bool(leaving) != (phase == "Terminating"):
        want, why = ("Terminating", "is not empty") if leaving else ("Active", "is empty")
        faults.invalid("status.Phase", phase, f"may only be '{want}' if `deletionTimestamp` {why}")


@kind_rules(dns_label, status=_phase)
def namespace(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Namespace: its name is a DNS label."""
    for finalizer in (new.get("spec") or {}).get("finalizers") or ():
        faults.check("spec.finalizers", finalizer, qualified_name)


@kind_rules()
def node(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Node: taints, addresses, resources; the pod range and provider id may be set once."""
    spec, status = new.get("spec") or {}, new.get("status") or {}
    _taints(faults, spec)
    for word in ("capacity", "allocatable"):
        faults.too_many(f"status.{word}", len(status.get(word) or ()), MAX_RESOURCES)
        for resource, text in (status.get(word) or {}).items():
            faults.amount(f"status.{word}.{resource}", text)
    addresses = status.get("addresses") or []
    seen: set[tuple[str, str]] = set()
    for index, address in enumerate(addresses):
        key = address.get("type", ""), address.get("address", "")
        if key in seen:
            faults.duplicate(f"status.addresses[{index}]", address)
        seen.add(key)
    before = ((old or {}).get("spec")) or {}
    for field, shown in (("podCIDRs", "podCIDR"), ("providerID", "providerID")):
        if before.get(field) and spec.get(field) != before[field]:
            faults.forbidden(f"spec.{field}", f'node updates may not change {shown} except from "" to valid')


def _taints(faults: Faults, spec: Obj) -> None:
    if faults.too_many("spec.taints", len(spec.get("taints") or ()), MAX_TAINTS):
        return
    seen = set()
    for path, taint in items(spec, "taints", "metadata."):
        key, effect = taint.get("key", ""), taint.get("effect")
        faults.check(f"{path}.key", key, qualified_name)
        faults.check(f"{path}.value", taint.get("value", ""), label_value)
        if effect:
            faults.one_of(f"{path}.effect", effect, EFFECTS)
        else:
            faults.required(f"{path}.effect")
        if (key, effect) in seen:
            faults.duplicate(path, taint)
        seen.add((key, effect))


@kind_rules(path_segment)
def event(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Event in its core form: its namespace is that of its object (`default` for cluster-scoped objects)."""
    if new.get("eventTime"):
        _new_style(faults, new, new.get("involvedObject") or {}, "reportingComponent")
    else:
        where = (new.get("involvedObject") or {}).get("namespace", "")
        if new["metadata"].get("namespace", "") != (where or "default"):
            faults.invalid("involvedObject.namespace", where, _ELSEWHERE)


@kind_rules()
def new_event(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Event of events.k8s.io: says who reports, why and what was done; afterwards only its series changes."""
    if old is not None:
        faults.immutable("involvedObject", new.get("regarding"), old.get("regarding"))
        faults.fixed("", new, old, *_EVENT_FIXED)
        return
    if not new.get("eventTime"):
        faults.required("eventTime")
    _new_style(faults, new, new.get("regarding") or {}, "reportingController")
    if new.get("type") not in ("Normal", "Warning"):
        faults.invalid("type", "", f"has invalid value: {new.get('type', '')}")
    for word in _EVENT_OLD:
        if new.get(word):
            faults.invalid(word.removeprefix("deprecated"), "", "needs to be unset")


def _new_style(faults: Faults, new: Obj, about: Obj, controller: str) -> None:
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


@kind_rules()
def resource_quota(faults: Faults, new: Obj, old: Obj | None) -> None:
    """ResourceQuota. Scopes but one are rejected: a quota that were not enforced would be worse than none."""
    spec = new.get("spec") or {}
    if faults.too_many("spec.hard", len(spec.get("hard") or ()), _MAX_HARD):
        return
    for resource, text in (spec.get("hard") or {}).items():
        path = f"spec.hard[{resource}]"
        faults.check(path, resource, qualified_name)
        faults.amount(path, text)
        nanos = Quantity.parse(text).nanos
        if nanos > 0 and nanos % 10**9 and (resource.startswith("count/") or resource.endswith("s")):
            faults.invalid(path, text, "must be an integer")
    for name in spec.get("scopes") or ():
        _scope(faults, {"scopeName": name, "operator": "Exists"}, "spec.scopes", "spec.scopes")
    selector = "spec.scopeSelector.matchExpressions"
    for requirement in (spec.get("scopeSelector") or {}).get("matchExpressions") or ():
        _scope(faults, requirement, selector, f"{selector}.scopeName")
    if spec.get("scopes") or spec.get("scopeSelector"):
        for resource in spec.get("hard") or {}:
            if resource not in _OF_CLAIMS and not resource.endswith(_OF_CLASSES):
                faults.invalid("spec.scopes", ATTRIBUTES_SCOPE, f"{_CLAIMS_ONLY} {resource}")


def _scope(faults: Faults, requirement: Obj, path: str, named: str) -> None:
    if requirement.get("scopeName") != ATTRIBUTES_SCOPE:
        faults.forbidden(named, _SCOPELESS)
    operator, values = requirement.get("operator", ""), requirement.get("values") or ()
    faults.one_of(f"{path}.operator", operator, ("In", "NotIn", "Exists", "DoesNotExist"))
    if operator in ("In", "NotIn") and not values:
        faults.required(f"{path}.values", "must be at least one value when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist") and values:
        faults.invalid(f"{path}.values", list(values), "must be no value when `operator` is 'Exists' or 'DoesNotExist'")


@kind_rules()
def limit_range(faults: Faults, new: Obj, old: Obj | None) -> None:
    """LimitRange: one item a type, min <= default request <= default <= max."""
    kinds: set[str] = set()
    for path, item in items(new.get("spec") or {}, "limits", "spec."):
        kind = item.get("type", "")
        faults.one_of(f"{path}.type", kind, _LIMIT_TYPES)
        faults.unique(f"{path}.type", kind, kinds)
        _limits(faults, item, kind, path)


def _limits(faults: Faults, item: Obj, kind: str, path: str) -> None:
    maps = ("min", "max", "default", "defaultRequest")
    if any(faults.too_many(f"{path}.{word}", len(item.get(word) or ()), MAX_RESOURCES) for word in maps):
        return
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


@kind_rules()
def lease(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Lease."""
    spec = new.get("spec") or {}
    if spec.get("leaseDurationSeconds", 1) < 1:
        faults.invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    faults.not_negative("spec", spec, "leaseTransitions")
    if "preferredHolder" in spec and not spec.get("strategy"):
        faults.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined")


@kind_rules()
def priority_class(faults: Faults, new: Obj, old: Obj | None) -> None:
    """PriorityClass: its number and policy stay as they are, for pods have copies of them."""
    if old is not None:
        if new.get("value") != old.get("value"):
            faults.forbidden("value", "may not be changed in an update.")
        faults.fixed("", new, old, "preemptionPolicy")
        return
    name, value = new["metadata"].get("name", ""), new.get("value", 0)
    if name.startswith(_SYSTEM_PREFIX):
        if SYSTEM_CLASSES.get(name) != value:
            detail = f"priority class names with '{_SYSTEM_PREFIX}' prefix are reserved for system use only"
            faults.forbidden("metadata.name", detail)
    elif value > _HIGHEST:
        faults.forbidden("value", f"maximum allowed value of a user defined priority is {_HIGHEST}")
    faults.one_of("preemptionPolicy", new.get("preemptionPolicy"), (LOWER, NEVER))
