from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tonnage_box.apiserver.kinds.core.pod_columns import pod_ready, pod_restarts, pod_status, readiness_gates

Obj = dict[str, Any]
NOW = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
RUNNING = {"name": "c", "ready": True, "restartCount": 0, "state": {"running": {}}}


def pod(*statuses: Obj, phase: str = "Running", inits: list[Obj] | None = None, **meta: Any) -> Obj:
    every = inits or []
    return {
        "metadata": {"name": "p"} | meta,
        "spec": {
            "containers": [{"name": s["name"]} for s in statuses] or [{"name": "c"}],
            "initContainers": [{"name": s["name"], **s.pop("spec", {})} for s in every],
        },
        "status": {"phase": phase, "containerStatuses": list(statuses), "initContainerStatuses": every},
    }


def ended(code: int = 0, **state: Any) -> Obj:
    return {"name": "c", "ready": False, "restartCount": 0, "state": {"terminated": {"exitCode": code} | state}}


def waiting(reason: str) -> Obj:
    return {"name": "i", "ready": False, "restartCount": 0, "state": {"waiting": {"reason": reason}}}


@pytest.mark.parametrize(
    ("given", "ready", "status"),
    [
        pytest.param(pod(phase="Pending"), "0/1", "Pending", id="pending"),
        pytest.param(pod(RUNNING), "1/1", "Running", id="running"),
        pytest.param(pod(waiting("CrashLoopBackOff")), "0/1", "CrashLoopBackOff", id="crash loop"),
        pytest.param(pod(ended(reason="Completed"), phase="Succeeded"), "0/1", "Completed", id="completed"),
        pytest.param(pod(ended(2)), "0/1", "ExitCode:2", id="exit code"),
        pytest.param(pod(ended(0, signal=9)), "0/1", "Signal:9", id="signal"),
        pytest.param(pod(RUNNING, deletionTimestamp="2026-01-01T00:00:00Z"), "1/1", "Terminating", id="going"),
        pytest.param(
            pod(phase="Succeeded", deletionTimestamp="2026-01-01T00:00:00Z"), "0/1", "Succeeded", id="gone as it ended"
        ),
        pytest.param(pod(inits=[waiting("PodInitializing")]), "0/1", "Init:0/1", id="init"),
        pytest.param(pod(inits=[waiting("ErrImagePull")]), "0/1", "Init:ErrImagePull", id="init waits"),
        pytest.param(pod(inits=[ended(1) | {"name": "i"}]), "0/1", "Init:ExitCode:1", id="init failed"),
        pytest.param(
            pod(RUNNING, inits=[RUNNING | {"name": "s", "started": True, "spec": {"restartPolicy": "Always"}}]),
            "2/2",
            "Running",
            id="sidecar",
        ),
    ],
)
def test_ready_and_status(given: Obj, ready: str, status: str) -> None:
    assert (pod_ready(given), pod_status(given)) == (ready, status)


def test_restarts_say_when_the_last_was() -> None:
    last = {"terminated": {"finishedAt": "2026-01-01T00:55:00Z"}}
    assert pod_restarts(pod(RUNNING | {"restartCount": 3, "lastState": last}), NOW) == "3 (5m ago)"
    assert pod_restarts(pod(RUNNING), NOW) == "0"


def test_a_gated_pod_says_so() -> None:
    given = pod(phase="Pending")
    given["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    assert pod_status(given) == "SchedulingGated"


def test_readiness_gates() -> None:
    given = pod(RUNNING)
    assert readiness_gates(given) == "<none>"
    given["spec"]["readinessGates"] = [{"conditionType": "a"}, {"conditionType": "b"}]
    given["status"]["conditions"] = [{"type": "a", "status": "True"}]
    assert readiness_gates(given) == "1/2"
