"""Validation of a pod's scheduling fields: tolerations, affinity, topology spread, gates."""

from __future__ import annotations

from typing import Any

from tonnage.box.apiserver.validation.field_errors import Faults
from tonnage.box.apiserver.validation.meta import (
    label_selector,
    label_value,
    labels,
    node_selector_term,
    node_selector_terms,
    qualified_name,
)

Obj = dict[str, Any]
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")


def scheduling(faults: Faults, spec: Obj) -> None:
    """nodeSelector, tolerations, affinity, topologySpreadConstraints, schedulingGates."""
    labels(faults, spec.get("nodeSelector") or {}, "spec.nodeSelector")
    tolerations(faults, spec.get("tolerations") or [], "spec.tolerations")
    affinity = spec.get("affinity") or {}
    _node_affinity(faults, affinity.get("nodeAffinity") or {}, "spec.affinity.nodeAffinity")
    for word in ("podAffinity", "podAntiAffinity"):
        _pod_affinity(faults, affinity.get(word) or {}, f"spec.affinity.{word}")
    _spread(faults, spec.get("topologySpreadConstraints") or [], "spec.topologySpreadConstraints")
    _gates(faults, spec, "spec.schedulingGates")


def tolerations(faults: Faults, every: list[Obj], path: str) -> None:
    """Tolerations."""
    for index, toleration in enumerate(every):
        here, key = f"{path}[{index}]", toleration.get("key", "")
        operator, effect = toleration.get("operator", ""), toleration.get("effect", "")
        if key:
            faults.each(f"{here}.key", key, qualified_name(key))
        elif operator != "Exists":
            detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            faults.invalid(f"{here}.operator", operator, detail)
        if "tolerationSeconds" in toleration and effect != "NoExecute":
            faults.invalid(f"{here}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        _value(faults, toleration, operator, here)
        if effect and effect not in _EFFECTS:
            faults.not_supported(f"{here}.effect", effect, _EFFECTS)


def _value(faults: Faults, toleration: Obj, operator: str, path: str) -> None:
    value = toleration.get("value", "")
    if operator in ("", "Equal"):
        messages = label_value(value)
        if messages:
            faults.invalid(f"{path}.operator", value, ";".join(messages))
    elif operator == "Exists":
        if value:
            faults.invalid(f"{path}.operator", value, "value must be empty when `operator` is 'Exists'")
    else:
        faults.not_supported(f"{path}.operator", operator, ("Equal", "Exists"))


def _node_affinity(faults: Faults, affinity: Obj, path: str) -> None:
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        terms = required.get("nodeSelectorTerms") or []
        node_selector_terms(faults, terms, f"{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms")
    for index, term in enumerate(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        here = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        _weight(faults, term, here)
        node_selector_term(faults, term.get("preference") or {}, f"{here}.preference")


def _weight(faults: Faults, term: Obj, path: str) -> None:
    if not 1 <= term.get("weight", 0) <= 100:
        faults.invalid(f"{path}.weight", term.get("weight", 0), "must be in the range 1-100")


def _pod_affinity(faults: Faults, affinity: Obj, path: str) -> None:
    for index, term in enumerate(affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()):
        _pod_term(faults, term, f"{path}.requiredDuringSchedulingIgnoredDuringExecution[{index}]")
    for index, term in enumerate(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        here = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        _weight(faults, term, here)
        _pod_term(faults, term.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")


def _pod_term(faults: Faults, term: Obj, path: str) -> None:
    for word in ("labelSelector", "namespaceSelector"):
        if word in term:
            label_selector(faults, term[word], f"{path}.{word}")
    key = term.get("topologyKey", "")
    if not key:
        faults.required(f"{path}.topologyKey", "can not be empty")
    else:
        faults.each(f"{path}.topologyKey", key, qualified_name(key))


def _spread(faults: Faults, constraints: list[Obj], path: str) -> None:
    for index, constraint in enumerate(constraints):
        here, key = f"{path}[{index}]", constraint.get("topologyKey", "")
        if constraint.get("maxSkew", 0) <= 0:
            faults.invalid(f"{here}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero")
        if not key:
            faults.required(f"{here}.topologyKey", "can not be empty")
        else:
            faults.each(f"{here}.topologyKey", key, qualified_name(key))
        when = constraint.get("whenUnsatisfiable", "")
        if when not in _UNSATISFIABLE:
            faults.not_supported(f"{here}.whenUnsatisfiable", when, _UNSATISFIABLE)
        if "labelSelector" in constraint:
            label_selector(faults, constraint["labelSelector"], f"{here}.labelSelector")


def _gates(faults: Faults, spec: Obj, path: str) -> None:
    names: set[str] = set()
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        name = gate.get("name", "")
        faults.each(f"{path}[{index}]", name, qualified_name(name))
        if name in names:
            faults.duplicate(f"{path}[{index}]", name)
        names.add(name)


def added_tolerations(faults: Faults, new: list[Obj], old: list[Obj], path: str) -> None:
    """Tolerations may be added, and their seconds changed."""
    for was in old:
        if not any(_untimed(was) == _untimed(now) for now in new):
            faults.forbidden(path, "existing toleration can not be modified except its tolerationSeconds")
            return


def _untimed(toleration: Obj) -> Obj:
    return {k: v for k, v in toleration.items() if k != "tolerationSeconds"}


def removed_gates(faults: Faults, new: list[Obj], old: list[Obj], path: str) -> None:
    """Scheduling gates may only be taken away."""
    known = {g.get("name") for g in old}
    for index, gate in enumerate(new):
        if gate.get("name") not in known:
            detail = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            faults.forbidden(f"{path}[{index}].name", detail)
