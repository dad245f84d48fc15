"""Pod status, computed from its containers (Kubernetes' kubelet_pods and status/generate). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api.meta import condition, to_builtins
from tonnage.kubernetes.api.pods import Pod, PodStatus
from tonnage.kubernetes.client.client import StrategicPatch
from tonnage_box.kubelet.containers.containers import CREATING, INITIALIZING, Containers, Run
from tonnage_box.kubelet.containers.runtime import LostProcess, Process
from tonnage_box.kubelet.containers.termination import TOGETHER

Status = dict[str, Any]


@dataclass(frozen=True)
class PodFailure:
    """Why a pod is Failed, whatever its containers do. is_rejected: it never begins."""

    reason: str
    message: str
    is_rejected: bool = False


_SCHEDULED = "PodScheduled"


def phase(containers: Containers) -> str:
    """Pending, Running, Succeeded or Failed."""
    if containers.failed is not None:
        return "Failed"
    if containers.finishing and not containers.alive:
        well = all(run.succeeded for run in containers.mains)
        return "Succeeded" if well else "Failed"
    if not containers.initialized and not any(run.began for run in containers.mains):
        return "Pending"
    mains = containers.mains
    if any(not run.began for run in mains) and not any(run.up for run in mains):
        return "Pending"
    if any(run.ended is None or containers.restarts(run) for run in mains):
        return "Running"
    return "Failed" if any(run.ended is not None and run.ended.code != 0 for run in mains) else "Succeeded"


def build(
    pod: Pod,
    containers: Containers,
    *,
    address: str,
    started: str,
    now: float,
    ready_volumes: bool = True,
    failure: PodFailure | None = None,
) -> Status:
    """The status to write; conditions of others are not in it."""
    why = {"reason": failure.reason, "message": failure.message} if failure is not None else {}
    if failure is not None and failure.is_rejected:
        return {"phase": "Failed", "conditions": [], **why}
    current = "Failed" if failure is not None and not containers.alive else phase(containers)
    over = current in ("Succeeded", "Failed")
    ready = current == "Running" and not _unready(containers)
    is_failed = failure is not None
    conditions = _conditions(pod, containers, now, ready=ready, over=over, volumes=ready_volumes, failed=is_failed)
    status: Status = {
        "phase": current,
        "conditions": conditions,
        "hostIP": address,
        "hostIPs": [{"ip": address}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": pod.status.start_time or started,
        "containerStatuses": [_container(run, containers) for run in containers.mains],
    }
    if containers.inits:
        status["initContainerStatuses"] = [_container(run, containers) for run in containers.inits]
    if containers.ephemerals:
        status["ephemeralContainerStatuses"] = [_ephemeral(run, containers) for run in containers.ephemerals]
    if not ready_volumes:
        del status["podIP"], status["podIPs"]
    return status | why


def patch(status: Status) -> StrategicPatch:
    """The patch that writes it. A condition loses the reason that it had, and those of others stay."""
    cleared: Status = {"reason": None, "message": None}
    return StrategicPatch(status=status | {"conditions": [cleared | one for one in status["conditions"]]})


def same(pod: Pod, status: Status) -> bool:
    """Whether the API server has that status already."""
    types = {condition["type"] for condition in status["conditions"]}
    return _comparable(pod.status, types) == _comparable(msgspec.convert(status, PodStatus), types)


def _comparable(status: PodStatus, types: set[str]) -> tuple[Any, ...]:
    conditions = sorted((c.type, c.status, c.reason, c.message) for c in status.conditions if c.type in types)
    containers = status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses
    return status.phase, conditions, status.start_time, containers


def _conditions(
    pod: Pod, containers: Containers, now: float, *, ready: bool, over: bool, volumes: bool, failed: bool
) -> list[dict[str, Any]]:
    why = initialized = ("", "")
    if over:
        why = ("PodFailed" if failed or containers.failed is not None else "PodCompleted", "")
    elif not ready:
        why = _incomplete("ContainersNotReady", "unready", _unready(containers))
    gates = _closed_gates(pod)
    gated = ("ReadinessGatesNotReady", "; ".join(gates)) if gates and ready else why
    if not containers.initialized and not over:
        left = (run for run in containers.inits if not (run.started or run.succeeded))
        initialized = _incomplete("ContainersNotInitialized", "incomplete", left)
    wanted = {
        "PodReadyToStartContainers": (volumes and not over, "", ""),
        "Initialized": (not any(initialized), *initialized),
        "Ready": (ready and not gates, *gated),
        "ContainersReady": (ready, *why),
    }
    old, stamp = pod.status.conditions, rfc3339(now)
    result = [condition(old, kind, str(value), *more, now=stamp) for kind, (value, *more) in wanted.items()]
    if not any(c.type == _SCHEDULED for c in old):  # a pod whose node was set by hand
        result.append(condition((), _SCHEDULED, "True", now=stamp))
    return [to_builtins(c) for c in result]


def _closed_gates(pod: Pod) -> list[str]:
    """What is wrong with the conditions that somebody else sets (pkg/kubelet/status, GeneratePodReadyCondition)."""
    statuses = {condition.type: condition.status for condition in pod.status.conditions}
    closed = []
    for name in (gate.condition_type for gate in pod.spec.readiness_gates):
        if name not in statuses:
            closed.append(f'corresponding condition of pod readiness gate "{name}" does not exist.')
        elif statuses[name] != "True":
            closed.append(f'the status of pod readiness gate "{name}" is not "True", but {statuses[name]}')
    return closed


def _unready(containers: Containers) -> list[Run]:
    """Containers that keep the pod from being ready: sidecars count, other init containers do not."""
    return [run for run in containers.inits + containers.mains if not run.ready and (run.sidecar or not run.init)]


def _incomplete(reason: str, what: str, runs: Iterable[Run]) -> tuple[str, str]:
    return reason, f"containers with {what} status: [{' '.join(run.container.name for run in runs)}]"


def _container(run: Run, containers: Containers) -> dict[str, Any]:
    status = _full(run, containers)
    most = TOGETHER // len(containers.all)  # bytes, as the kubelet shares them out
    for state in (status["state"], status["lastState"]):
        terminated = state.get("terminated") or {}
        if len(text := terminated.get("message", "").encode()) > most:
            terminated["message"] = text[:most].decode(errors="ignore")
    return status


def _ephemeral(run: Run, containers: Containers) -> dict[str, Any]:
    status = _container(run, containers) | {"ready": False}  # nothing waits for it
    del status["started"]
    return status


def _full(run: Run, containers: Containers) -> dict[str, Any]:
    ended = run.ended
    restarting = ended is not None and containers.restarts(run)
    status: dict[str, Any] = {
        "name": run.container.name,
        "image": run.container.image,
        "imageID": run.process.image_id if run.process is not None else "",
        "restartCount": run.attempt,
        "ready": run.ready,
        "started": run.started,
        "lastState": {},
    }
    if run.process is not None and not isinstance(run.process, LostProcess):
        status["containerID"] = f"tonnage://{run.process.id}"
    if run.up:
        assert run.process is not None
        status["state"] = {"running": {"startedAt": rfc3339(run.process.started)}}
        status["lastState"] = _terminated(run.previous)
    elif ended is not None and not (restarting and run.waiting[0] not in (CREATING, INITIALIZING)):
        status["state"] = _terminated(run.process)
        status["lastState"] = _terminated(run.previous)
    else:
        reason, message = run.waiting
        status["state"] = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        status["lastState"] = _terminated(run.process if ended is not None else run.previous)
    return status


def _terminated(process: Process | None) -> dict[str, Any]:
    ended = process.ended if process is not None else None
    if process is None or ended is None:
        return {}
    state: dict[str, Any] = {"exitCode": ended.code, "reason": ended.why, "finishedAt": rfc3339(ended.at)}
    if not isinstance(process, LostProcess):
        state |= {"startedAt": rfc3339(process.started), "containerID": f"tonnage://{process.id}"}
        state |= {"signal": ended.code - 128} if ended.code > 128 else {}
    if ended.message:
        state["message"] = ended.message
    return {"terminated": state}
