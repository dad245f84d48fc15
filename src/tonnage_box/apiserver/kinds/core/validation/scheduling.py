"""Validation of a pod's scheduling fields: tolerations, affinity, topology spread, gates."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation import meta
from tonnage_box.apiserver.validation.field_errors import Faults, items

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
"""Of taints and tolerations."""
MAX_TERMS = 100
"""Terms of podAffinity and podAntiAffinity together; Kubernetes has no limit. Each is compared with each pod."""
MAX_CONSTRAINTS = 32
"""Of topologySpreadConstraints; Kubernetes has no limit. Each is counted over all nodes."""
MAX_COMPARED = 500
"""Labels and expressions in the selectors of both together; Kubernetes has no limit. Each is compared with each pod."""
MAX_TOLERATIONS = 500
"""Kubernetes has no limit. Each is compared with each taint of each node."""
_ADDED = 20
"""Tolerations that controllers add to those of a template, at most."""
MAX_TAINTS = 100
"""Of a node; Kubernetes has no limit."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def scheduling(faults: Faults, spec: Obj, *, is_template: bool) -> None:
    """nodeSelector, tolerations, affinity, topologySpreadConstraints, schedulingGates."""
    node_labels(faults, spec, "spec.")
    tolerations(faults, spec, "spec.", most=MAX_TOLERATIONS - (_ADDED if is_template else 0))
    affinity = spec.get("affinity") or {}
    _node_affinity(faults, affinity.get("nodeAffinity") or {}, "spec.affinity.nodeAffinity")
    pod_terms = [affinity.get(word) or {} for word in ("podAffinity", "podAntiAffinity")]
    many = faults.too_many("spec.affinity", sum(map(_terms, pod_terms)), MAX_TERMS)
    constraints = spec.get("topologySpreadConstraints") or ()
    if not faults.too_many("spec.topologySpreadConstraints", len(constraints), MAX_CONSTRAINTS) and not many:
        _selectors(faults, spec)
    for word in ("podAffinity", "podAntiAffinity"):
        _pod_affinity(faults, affinity.get(word) or {}, f"spec.affinity.{word}.")
    for here, constraint in items(spec, "topologySpreadConstraints", "spec."):
        _spread(faults, constraint, here)
    names: set[str] = set()
    for here, gate in items(spec, "schedulingGates", "spec."):
        faults.check(here, gate.get("name", ""), meta.qualified_name)
        faults.unique(here, gate.get("name", ""), names)


def node_labels(faults: Faults, spec: Obj, path: str) -> None:
    """nodeSelector of a pod or RuntimeClass. path: of spec, with the dot at its end."""
    wanted = spec.get("nodeSelector") or {}
    faults.too_many(f"{path}nodeSelector", len(wanted), meta.MAX_REQUIREMENTS)
    meta.labels(faults, wanted, f"{path}nodeSelector")


def tolerations(faults: Faults, spec: Obj, path: str, *, most: int = MAX_TOLERATIONS) -> None:
    """tolerations of a pod or RuntimeClass. path: of spec, with the dot at its end."""
    if faults.too_many(f"{path}tolerations", len(spec.get("tolerations") or ()), most):
        return
    for here, toleration in items(spec, "tolerations", path):
        _toleration(faults, toleration, here)


def _toleration(faults: Faults, toleration: Obj, path: str) -> None:
    key, operator, effect = toleration.get("key", ""), toleration.get("operator", ""), toleration.get("effect", "")
    if key:
        faults.check(f"{path}.key", key, meta.qualified_name)
    elif operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        faults.invalid(f"{path}.operator", operator, detail)
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        faults.invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
    _value(faults, toleration, operator, path)
    if effect:
        faults.one_of(f"{path}.effect", effect, EFFECTS)


def _value(faults: Faults, toleration: Obj, operator: str, path: str) -> None:
    value = toleration.get("value", "")
    if operator in ("", "Equal"):
        messages = meta.label_value(value)
        if messages:
            faults.invalid(f"{path}.operator", value, ";".join(messages))
    elif operator == "Exists":
        if value:
            faults.invalid(f"{path}.operator", value, "value must be empty when `operator` is 'Exists'")
    else:
        faults.not_supported(f"{path}.operator", operator, ("Equal", "Exists"))


def _node_affinity(faults: Faults, affinity: Obj, path: str) -> None:
    if _REQUIRED in affinity:
        meta.node_selector_terms(faults, affinity[_REQUIRED], f"{path}.{_REQUIRED}")
    preferred = items(affinity, _PREFERRED, f"{path}.")
    count = sum(meta.node_requirements(term.get("preference") or {}) for _, term in preferred)
    if faults.too_many(f"{path}.{_PREFERRED}", count, meta.MAX_REQUIREMENTS, "requirements"):
        return
    for here, term in preferred:
        _weight(faults, term, here)
        meta.node_selector_term(faults, term.get("preference") or {}, f"{here}.preference")


def _weight(faults: Faults, term: Obj, path: str) -> None:
    if not 1 <= term.get("weight", 0) <= 100:
        faults.invalid(f"{path}.weight", term.get("weight", 0), "must be in the range 1-100")


def _terms(affinity: Obj) -> int:
    return len(affinity.get(_REQUIRED) or ()) + len(affinity.get(_PREFERRED) or ())


def _selectors(faults: Faults, spec: Obj) -> None:
    """The selectors of affinity terms and spread constraints, with the labels that they take from the pod."""
    affinity, found = spec.get("affinity") or {}, list(spec.get("topologySpreadConstraints") or ())
    for word in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(word) or {}
        found += terms.get(_REQUIRED) or ()
        found += [term.get("podAffinityTerm") or {} for term in terms.get(_PREFERRED) or ()]
    what = "requirements in the selectors of affinity terms and topologySpreadConstraints"
    faults.too_many("spec", sum(map(_compared, found)), MAX_COMPARED, what)


def _compared(term: Obj) -> int:
    same = (len(term.get(word) or ()) for word in ("matchLabelKeys", "mismatchLabelKeys"))
    return meta.requirements(term.get("labelSelector") or {}) + sum(same)


def _pod_affinity(faults: Faults, affinity: Obj, path: str) -> None:
    for here, term in items(affinity, _REQUIRED, path):
        _pod_term(faults, term, here)
    for here, term in items(affinity, _PREFERRED, path):
        _weight(faults, term, here)
        _pod_term(faults, term.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")


def _pod_term(faults: Faults, term: Obj, path: str) -> None:
    for word in ("labelSelector", "namespaceSelector"):
        meta.label_selector(faults, term.get(word) or {}, f"{path}.{word}")
    _topology_key(faults, term, path)


def _topology_key(faults: Faults, term: Obj, path: str) -> None:
    faults.name(f"{path}.topologyKey", term.get("topologyKey"), meta.qualified_name, "can not be empty")


def _spread(faults: Faults, constraint: Obj, path: str) -> None:
    if constraint.get("maxSkew", 0) <= 0:
        faults.invalid(f"{path}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero")
    _topology_key(faults, constraint, path)
    when = constraint.get("whenUnsatisfiable")
    faults.one_of(f"{path}.whenUnsatisfiable", when, ("DoNotSchedule", "ScheduleAnyway"))
    meta.label_selector(faults, constraint.get("labelSelector") or {}, f"{path}.labelSelector")


def added_tolerations(faults: Faults, new: Obj, old: Obj) -> None:
    """Tolerations may be added, and their seconds changed."""
    there = {_untimed(toleration) for toleration in new.get("tolerations") or ()}
    if any(_untimed(toleration) not in there for toleration in old.get("tolerations") or ()):
        faults.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")


def _untimed(toleration: Obj) -> frozenset[tuple[str, str]]:
    return frozenset((k, v) for k, v in toleration.items() if k != "tolerationSeconds")


def removed_gates(faults: Faults, new: Obj, old: Obj) -> None:
    """Scheduling gates may only be taken away."""
    known = {g.get("name") for g in old.get("schedulingGates") or ()}
    for here, gate in items(new, "schedulingGates", "spec."):
        if gate.get("name") not in known:
            detail = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            faults.forbidden(f"{here}.name", detail)
