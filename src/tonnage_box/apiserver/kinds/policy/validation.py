"""Validation of PriorityClass and PodDisruptionBudget (pkg/apis/{scheduling,policy}/validation)."""

from __future__ import annotations

from tonnage.kubernetes.api.policy import LOWER, NEVER, SYSTEM_CLASSES
from tonnage_box.apiserver.kinds.apps.validation import at_most_all, int_or_percent
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import kind_rules, label_selector

_HIGHEST = 1_000_000_000
_SYSTEM_PREFIX = "system-"


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


_UNHEALTHY = ("AlwaysAllow", "IfHealthyBudget")


@kind_rules(whole=True)
def budget(faults: Faults, new: Obj, old: Obj | None) -> None:
    """PodDisruptionBudget: one of the two bounds."""
    spec = new.setdefault("spec", {})
    if "minAvailable" in spec and "maxUnavailable" in spec:
        faults.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    for word in ("minAvailable", "maxUnavailable"):
        if word in spec:
            int_or_percent(faults, spec[word], f"spec.{word}")
            at_most_all(faults, spec[word], f"spec.{word}")
    label_selector(faults, spec.get("selector") or {}, "spec.selector")
    policy = spec.get("unhealthyPodEvictionPolicy", "IfHealthyBudget")
    faults.one_of("spec.unhealthyPodEvictionPolicy", policy, _UNHEALTHY)
