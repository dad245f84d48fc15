"""Validation of ResourceQuota and LimitRange."""

from __future__ import annotations

from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.kinds.core.validation.containers import MAX_RESOURCES
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import kind_rules, qualified_name

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
