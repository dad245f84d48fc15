"""Deployment plan: the new ReplicaSet, sizes during a rollout, and the status with its conditions. Pure.

Source: pkg/controller/deployment/util, and {sync,progress}.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tonnage.base.aio.clock import parse_rfc3339, rfc3339
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.kinds import DEPLOYMENTS
from tonnage.kubernetes.api.meta import Condition, to_builtins
from tonnage.kubernetes.api.number import whole
from tonnage.kubernetes.api.workloads import Deployment, DeploymentCondition, ReplicaSet, RollingUpdate
from tonnage_box.controllers.podcontrol.pod_template import (
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
    return whole(obj.metadata.annotations.get(annotation, "")) or 0


def last_revision(sets: Sequence[ReplicaSet]) -> int:
    """The highest revision that any of them has had."""
    return max((number(one, names.REVISION) for one in sets), default=0)


def set_annotations(deployment: Deployment, one: ReplicaSet | None, revision: int) -> Mapping[str, str]:
    """Annotations of the new ReplicaSet: the Deployment's, its revision, and its earlier revisions.

    one: that ReplicaSet, None before it is created; then they record its size too.
    """
    found = dict(one.metadata.annotations) if one is not None else dict(size_annotations(deployment))
    before = found.get(names.REVISION, "")
    if (whole(before) or 0) < revision:
        found[names.REVISION] = str(revision)
        if before:
            history = [r for r in found.get(names.REVISION_HISTORY, "").split(",") if r]
            found[names.REVISION_HISTORY] = ",".join([*history, before])
    copied = {key: text for key, text in deployment.metadata.annotations.items() if key not in _NOT_COPIED}
    return found | copied


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
            "annotations": set_annotations(deployment, None, revision),
            "ownerReferences": [owner_reference(DEPLOYMENTS, deployment)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": spec.min_ready_seconds,
            "selector": selector,
            "template": hashed_template,
        },
    }


def beyond_history(deployment: Deployment, olds: Sequence[ReplicaSet]) -> list[ReplicaSet]:
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
    budget = bounds.desired + bounds.surge - total
    return new.wanted + max(0, min(budget, bounds.desired - new.wanted))


def old_sizes(bounds: RollingLimits, new: Size, olds: Sequence[Size]) -> dict[str, int]:
    """Old ReplicaSets (oldest first) that can do with fewer pods now, and with how many."""
    total = new.wanted + sum(old.wanted for old in olds)
    least = bounds.desired - bounds.unavailable
    budget = total - least - max(0, new.wanted - new.available)
    if budget <= 0:
        return {}
    sizes = _without_sick(olds, budget)
    available = new.available + sum(min(old.available, sizes.get(old.name, old.wanted)) for old in olds)
    spare = available - least
    for old in olds:
        current = sizes.get(old.name, old.wanted)
        less = min(spare, current)
        if less > 0:
            sizes[old.name] = current - less
            spare -= less
    return sizes


def _without_sick(olds: Sequence[Size], budget: int) -> dict[str, int]:
    """Scale down unavailable old pods first: no service depends on them."""
    sizes = {}
    for old in olds:
        less = min(budget, max(0, old.wanted - old.available))
        if less > 0:
            sizes[old.name] = old.wanted - less
            budget -= less
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


Status = dict[str, Any]
_FOREVER = 2**31 - 1
DONE, TIMED_OUT = "NewReplicaSetAvailable", "ProgressDeadlineExceeded"
PAUSED, RESUMED = "DeploymentPaused", "DeploymentResumed"
_COUNTS = ("updatedReplicas", "readyReplicas", "availableReplicas")


def status(
    deployment: Deployment,
    new: ReplicaSet | None,
    sets: Sequence[ReplicaSet],
    now: float,
    *,
    notes: Sequence[DeploymentCondition] = (),
) -> Status:
    """The status to write. notes: conditions from this reconcile (a ReplicaSet was created ...)."""
    available = sum(one.status.available_replicas for one in sets)
    total = sum(one.status.replicas for one in sets)
    wanted: Status = {
        "observedGeneration": deployment.metadata.generation,
        "replicas": total,
        "updatedReplicas": new.status.replicas if new is not None else 0,
        "readyReplicas": sum(one.status.ready_replicas for one in sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, sum(one.spec.replicas for one in sets) - available),
    }
    conditions = list(deployment.status.conditions)
    for one in notes:
        conditions = put(conditions, one)
    bounds = bounds_of(deployment)
    enough = available >= bounds.desired - bounds.unavailable
    reason, has = ("Available", "has") if enough else ("Unavailable", "does not have")
    message = f"Deployment {has} minimum availability."
    conditions = put(conditions, note("Available", f"MinimumReplicas{reason}", message, now, holds=enough))
    conditions = _progress(deployment, wanted, conditions, new, now)
    failures = [c for one in sets for c in one.status.conditions if c.type == "ReplicaFailure"]
    conditions = [c for c in conditions if c.type != "ReplicaFailure"]
    if failures:
        conditions.append(_failure(failures[0], now))
    wanted["conditions"] = [to_builtins(c) for c in conditions]
    return wanted


def note(kind: str, reason: str, message: str, now: float, *, holds: bool | None = True) -> DeploymentCondition:
    """A condition; holds None for Unknown."""
    text = {True: "True", False: "False", None: "Unknown"}[holds]
    stamp = rfc3339(now)
    return DeploymentCondition(
        type=kind, status=text, reason=reason, message=message, last_update_time=stamp, last_transition_time=stamp
    )


def put(conditions: Sequence[DeploymentCondition], new: DeploymentCondition) -> list[DeploymentCondition]:
    """The conditions with a new one: the same status and reason changes nothing, the same status keeps its time."""
    old = next((c for c in conditions if c.type == new.type), None)
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return list(conditions)
    return _replace(conditions, new)


def _replace(conditions: Sequence[DeploymentCondition], new: DeploymentCondition) -> list[DeploymentCondition]:
    old = next((c for c in conditions if c.type == new.type), None)
    if old is not None and old.status == new.status:
        new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
    return [*(c for c in conditions if c.type != new.type), new]


def _failure(condition: Condition, now: float) -> DeploymentCondition:
    stamped = {"lastTransitionTime": rfc3339(now), **to_builtins(condition)}
    return convert({**stamped, "lastUpdateTime": stamped["lastTransitionTime"]}, DeploymentCondition)


def progressing(deployment: Deployment) -> DeploymentCondition | None:
    """Its condition Progressing, as last written."""
    return next((c for c in deployment.status.conditions if c.type == "Progressing"), None)


def is_complete(deployment: Deployment, wanted: Status) -> bool:
    """Whether all pods are of the new template and available."""
    desired = deployment.spec.replicas
    return bool(wanted["updatedReplicas"] == wanted["replicas"] == wanted["availableReplicas"] == desired)


def watched(deployment: Deployment) -> bool:
    """Whether a rollout of it has a deadline."""
    deadline = deployment.spec.progress_deadline_seconds
    return deadline is not None and deadline != _FOREVER


def _progress(
    deployment: Deployment,
    wanted: Status,
    conditions: Sequence[DeploymentCondition],
    new: ReplicaSet | None,
    now: float,
) -> list[DeploymentCondition]:
    if not watched(deployment):
        return [c for c in conditions if c.type != "Progressing"]
    current = next((c for c in conditions if c.type == "Progressing"), None)
    settled = current is not None and current.reason == DONE and wanted["replicas"] == wanted["updatedReplicas"]
    if settled or deployment.spec.paused:
        return list(conditions)
    what = f'ReplicaSet "{new.metadata.name}"' if new is not None else f'Deployment "{deployment.metadata.name}"'
    if is_complete(deployment, wanted):
        return put(conditions, note("Progressing", DONE, f"{what} has successfully progressed.", now))
    if _moves(deployment, wanted):
        return _replace(conditions, note("Progressing", "ReplicaSetUpdated", f"{what} is progressing.", now))
    if current is not None and left(deployment, current, now) == 0:
        return put(conditions, note("Progressing", TIMED_OUT, f"{what} has timed out progressing.", now, holds=False))
    return list(conditions)


def _moves(deployment: Deployment, wanted: Status) -> bool:
    """Whether there are more new or fewer old pods than at the last reconcile."""
    before = deployment.status
    counts = (before.updated_replicas, before.ready_replicas, before.available_replicas)
    grows = any(wanted[word] > count for word, count in zip(_COUNTS, counts, strict=True))
    return grows or wanted["replicas"] - wanted["updatedReplicas"] < before.replicas - before.updated_replicas


def left(deployment: Deployment, current: Condition, now: float) -> float | None:
    """Seconds until the rollout is too late, 0 when it is; None when nothing need be waited for."""
    deadline = deployment.spec.progress_deadline_seconds
    if not watched(deployment) or deadline is None or current.reason in (DONE, PAUSED):
        return None
    if current.reason == TIMED_OUT:
        return 0
    since = getattr(current, "last_update_time", None) or current.last_transition_time
    return max(0.0, parse_rfc3339(since) + deadline - now) if since else None
