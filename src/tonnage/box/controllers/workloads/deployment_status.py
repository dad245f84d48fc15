"""Deployment status: replica counts, conditions Available and Progressing. Pure.

Source: pkg/controller/deployment/{sync,progress}.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tonnage.aio.clock import parse_rfc3339, rfc3339
from tonnage.api.meta import Condition, to_builtins
from tonnage.api.workloads import Deployment, DeploymentCondition, ReplicaSet
from tonnage.box.controllers.workloads.deployment_plan import bounds_of

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
    for note in notes:
        conditions = put(conditions, note)
    bounds = bounds_of(deployment)
    enough = available >= bounds.desired - bounds.unavailable
    conditions = put(conditions, _availability(now, enough=enough))
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
        words = {name: getattr(new, name) for name in new.__struct_fields__}
        new = DeploymentCondition(**words | {"last_transition_time": old.last_transition_time})
    return [*(c for c in conditions if c.type != new.type), new]


def _availability(now: float, *, enough: bool) -> DeploymentCondition:
    if enough:
        return note("Available", "MinimumReplicasAvailable", "Deployment has minimum availability.", now)
    message = "Deployment does not have minimum availability."
    return note("Available", "MinimumReplicasUnavailable", message, now, holds=False)


def _failure(condition: Condition, now: float) -> DeploymentCondition:
    return DeploymentCondition(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=condition.message,
        last_update_time=condition.last_transition_time or rfc3339(now),
        last_transition_time=condition.last_transition_time or rfc3339(now),
    )


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
