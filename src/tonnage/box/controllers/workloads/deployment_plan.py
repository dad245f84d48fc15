"""Deployment plan: the new ReplicaSet, its name and annotations, and sizes during a rollout. Pure.

Source: pkg/controller/deployment/util.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage.api import names
from tonnage.api.kinds import DEPLOYMENTS
from tonnage.api.meta import to_builtins
from tonnage.api.number import whole
from tonnage.api.workloads import Deployment, ReplicaSet, RollingUpdate
from tonnage.box.controllers.podcontrol.pod_template import (
    digest,
    hashed_name,
    owner_reference,
    scaled,
    with_labels,
    without_hash,
)

_NOT_COPIED = frozenset(
    {
        names.LAST_APPLIED, names.REVISION, names.REVISION_HISTORY, names.DESIRED_REPLICAS, names.MAX_REPLICAS,
        "deprecated.deployment.rollback.to",
    }
)  # fmt: skip
RECREATE = "Recreate"


def bounds_of(deployment: Deployment) -> RollingLimits:
    """Limits of the number of pods during a rollout. Recreate: no surge."""
    spec = deployment.spec
    if spec.strategy.type == RECREATE:
        return RollingLimits(spec.replicas, 0, 0)
    rolling = spec.strategy.rolling_update or RollingUpdate()
    return RollingLimits.of(spec.replicas, rolling.max_surge, rolling.max_unavailable)


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
    """Annotations of the new ReplicaSet: the Deployment's, its revision, and its earlier revisions."""
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
    """Annotations that record the Deployment's size when a ReplicaSet is scaled."""
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
    """Old ReplicaSets beyond the history limit; those with pods stay."""
    limit = deployment.spec.revision_history_limit
    empty = [one for one in olds if not one.metadata.deleting and _is_empty(one)]
    if limit is None or len(empty) <= limit:
        return []
    return sorted(empty, key=lambda one: number(one, names.REVISION))[: len(empty) - limit]


def _is_empty(one: ReplicaSet) -> bool:
    return (
        not one.spec.replicas and not one.status.replicas and one.metadata.generation <= one.status.observed_generation
    )


@dataclass(frozen=True)
class Size:
    """One ReplicaSet: desired, current and available pods.

    annotated: the annotation max-replicas of the last scaling, 0 without one.
    """

    name: str
    wanted: int
    available: int
    annotated: int = 0


@dataclass(frozen=True)
class RollingLimits:
    """Desired pods, how many more there may be (surge), and how many may be missing (unavailable)."""

    desired: int
    surge: int
    unavailable: int

    @classmethod
    def of(cls, desired: int, surge: int | str | None, unavailable: int | str | None) -> RollingLimits:
        """From what the spec says: a surge is rounded up, what may be missing down; both nothing is one missing."""
        more = scaled(surge, desired, up=True)
        less = scaled(unavailable, desired, up=False)
        if not more and not less:
            less = 1
        return cls(desired, more, min(less, desired))


def new_size(bounds: RollingLimits, new: Size, olds: Sequence[Size]) -> int:
    """Replicas that the new ReplicaSet may have now."""
    if new.wanted >= bounds.desired:
        return bounds.desired
    total = new.wanted + sum(old.wanted for old in olds)
    room = bounds.desired + bounds.surge - total
    return new.wanted + max(0, min(room, bounds.desired - new.wanted))


def old_sizes(bounds: RollingLimits, new: Size, olds: Sequence[Size]) -> dict[str, int]:
    """Old ReplicaSets (oldest first) that can do with fewer pods now, and with how many."""
    total = new.wanted + sum(old.wanted for old in olds)
    least = bounds.desired - bounds.unavailable
    room = total - least - max(0, new.wanted - new.available)
    if room <= 0:
        return {}
    sizes = _without_sick(olds, room)
    available = new.available + sum(min(old.available, sizes.get(old.name, old.wanted)) for old in olds)
    spare = available - least
    for old in olds:
        current = sizes.get(old.name, old.wanted)
        less = min(spare, current)
        if less > 0:
            sizes[old.name] = current - less
            spare -= less
    return sizes


def _without_sick(olds: Sequence[Size], room: int) -> dict[str, int]:
    """Scale down unavailable old pods first: no service depends on them."""
    sizes = {}
    for old in olds:
        less = min(room, max(0, old.wanted - old.available))
        if less > 0:
            sizes[old.name] = old.wanted - less
            room -= less
    return sizes


def proportional(bounds: RollingLimits, sets: Sequence[Size], seen: int) -> dict[str, int]:
    """Several ReplicaSets have pods while the wanted number changes: each grows or shrinks by its share.

    sets: oldest first; seen: pods that the Deployment had when it was last looked at.
    """
    allowed = bounds.desired + bounds.surge if bounds.desired else 0
    change = allowed - sum(one.wanted for one in sets)
    by_size = sorted(reversed(sets) if change > 0 else sets, key=lambda one: -one.wanted)
    sizes, done = {}, 0
    for one in by_size:
        share = _share(bounds, one, seen) if change else 0
        left = change - done
        share = max(0, min(share, left)) if change > 0 else min(0, max(share, left))
        sizes[one.name] = one.wanted + share
        done += share
    if by_size:  # what rounding has left over
        first = by_size[0].name
        sizes[first] = max(0, sizes[first] + change - done)
    return sizes


def _share(bounds: RollingLimits, one: Size, seen: int) -> int:
    if not bounds.desired:
        return -one.wanted
    before = one.annotated or seen
    if not before:
        return 0
    return round(one.wanted * (bounds.desired + bounds.surge) / before) - one.wanted
