"""The ReplicaSets of a Deployment: which is the new one, what it is called, what its annotations say
(pkg/controller/deployment/util). Computes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tonnage.api import names
from tonnage.api.kinds import DEPLOYMENTS
from tonnage.api.meta import to_builtins
from tonnage.api.number import whole
from tonnage.api.workloads import Deployment, ReplicaSet, RollingUpdate
from tonnage.controllers.pod_templates import digest, hashed_name, owner_reference, with_labels, without_hash
from tonnage.controllers.rolling import Bounds, Size

_NOT_COPIED = frozenset(
    {
        names.LAST_APPLIED, names.REVISION, names.REVISION_HISTORY, names.DESIRED_REPLICAS, names.MAX_REPLICAS,
        "deprecated.deployment.rollback.to",
    }
)  # fmt: skip
RECREATE = "Recreate"


def bounds_of(deployment: Deployment) -> Bounds:
    """How many pods there may be and must be. Recreate: none above the number."""
    spec = deployment.spec
    if spec.strategy.type == RECREATE:
        return Bounds(spec.replicas, 0, 0)
    rolling = spec.strategy.rolling_update or RollingUpdate()
    return Bounds.of(spec.replicas, rolling.max_surge, rolling.max_unavailable)


def find_new(deployment: Deployment, sets: Sequence[ReplicaSet]) -> ReplicaSet | None:
    """The (oldest) ReplicaSet whose template is the Deployment's."""
    wanted = without_hash(deployment.spec.template)
    return next((one for one in sets if without_hash(one.spec.template) == wanted), None)


def size_of(one: ReplicaSet) -> Size:
    """Its numbers. What is available beyond what is wanted is about to go."""
    available = min(one.status.available_replicas, one.spec.replicas)
    return Size(one.metadata.name, one.spec.replicas, available, number(one, names.MAX_REPLICAS))


def number(obj: ReplicaSet | Deployment, annotation: str) -> int:
    """A number in an annotation, 0 if there is none."""
    return number_text(obj.metadata.annotations.get(annotation, ""))


def last_revision(sets: Sequence[ReplicaSet]) -> int:
    """The highest revision that any of them has had."""
    return max((number(one, names.REVISION) for one in sets), default=0)


def set_annotations(
    deployment: Deployment, one: ReplicaSet | None, revision: int, *, existing: bool
) -> Mapping[str, str]:
    """What annotations the new ReplicaSet is to have: the Deployment's, its revision, and revisions it had before."""
    found = dict(one.metadata.annotations) if one is not None else {}
    before = found.get(names.REVISION, "")
    if number_text(before) < revision:
        found[names.REVISION] = str(revision)
        if existing and before:
            history = [r for r in found.get(names.REVISION_HISTORY, "").split(",") if r]
            found[names.REVISION_HISTORY] = ",".join([*history, before])
    for key, value in deployment.metadata.annotations.items():
        if key not in _NOT_COPIED:
            found[key] = value
    return found if existing else {**found, **size_annotations(deployment)}


def number_text(text: str) -> int:
    """The number that a text is, 0 for anything else."""
    return whole(text) or 0


def size_annotations(deployment: Deployment) -> Mapping[str, str]:
    """How large the Deployment was when a ReplicaSet was scaled, for the next time it is."""
    bounds = bounds_of(deployment)
    return {
        names.DESIRED_REPLICAS: str(bounds.desired),
        names.MAX_REPLICAS: str(bounds.desired + bounds.surge),
    }


def new_set(deployment: Deployment, revision: int, replicas: int) -> dict[str, Any]:
    """The ReplicaSet of the Deployment's template, to be created."""
    spec = deployment.spec
    template = without_hash(spec.template)
    hashed = digest(template, deployment.status.collision_count)
    labels = {names.POD_TEMPLATE_HASH: hashed}
    selector = to_builtins(spec.selector)
    selector["matchLabels"] = {**selector.get("matchLabels", {}), **labels}
    hashed_template = with_labels(template, labels)
    return {
        "metadata": {
            "name": hashed_name(deployment.metadata.name, hashed),
            "labels": hashed_template["metadata"]["labels"],
            "annotations": set_annotations(deployment, None, revision, existing=False),
            "ownerReferences": [owner_reference(DEPLOYMENTS, deployment)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": spec.min_ready_seconds,
            "selector": selector,
            "template": hashed_template,
        },
    }


def superfluous(deployment: Deployment, olds: Sequence[ReplicaSet]) -> list[ReplicaSet]:
    """Old ReplicaSets beyond the history that is kept; those with pods stay."""
    limit = deployment.spec.revision_history_limit
    empty = [one for one in olds if not one.metadata.deleting and _is_empty(one)]
    if limit is None or len(empty) <= limit:
        return []
    return sorted(empty, key=lambda one: number(one, names.REVISION))[: len(empty) - limit]


def _is_empty(one: ReplicaSet) -> bool:
    return (
        not one.spec.replicas and not one.status.replicas and one.metadata.generation <= one.status.observed_generation
    )
