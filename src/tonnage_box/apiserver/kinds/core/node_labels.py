"""Labels of nodes that Kubernetes has given up, and the warnings about terms that name them (pkg/api/node). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.meta import label_value

OLD_LABELS: Mapping[str, str] = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": 'deprecated since v1.17; use "topology.kubernetes.io/region" instead',
    "failure-domain.beta.kubernetes.io/zone": 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead',
    "beta.kubernetes.io/instance-type": 'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead',
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}


def of_terms(terms: Iterable[Obj], path: str) -> list[str]:
    """Return the warnings about terms of a required node affinity."""
    return [warning for index, term in enumerate(terms) for warning in of_term(term, f"{path}[{index}]")]


def of_term(term: Obj, path: str, *, values: bool = False) -> list[str]:
    """Return the warnings about one term. values: also about those that no label can have, which are accepted."""
    warnings = []
    for index, expression in enumerate(term.get("matchExpressions") or ()):
        key, here = expression.get("key", ""), f"{path}.matchExpressions[{index}]"
        if key in OLD_LABELS:
            warnings.append(f"{here}.key: {key} is {OLD_LABELS[key]}")
        for number, value in enumerate((expression.get("values") or ()) if values else ()):
            warnings += [f"{here}.values[{number}]: {value} is invalid, {why}" for why in label_value(value)]
    return warnings
