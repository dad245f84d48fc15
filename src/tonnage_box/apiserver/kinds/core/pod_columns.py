"""READY, STATUS and RESTARTS of a pod for `kubectl get pods` (pkg/printers, printPod)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tonnage_box.apiserver.printers.table import age

Obj = dict[str, Any]


def pod_ready(pod: Obj) -> str:
    """`1/2`: containers that are ready, of all that run for long."""
    return f"{_Reading(pod).ready}/{_long_running(pod)}"


def pod_status(pod: Obj) -> str:
    """One word: the phase, or better why it is not further."""
    reading = _Reading(pod)
    if pod["metadata"].get("deletionTimestamp"):
        if _status(pod).get("reason") == "NodeLost":
            return "Unknown"
        if _status(pod).get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return reading.reason


def pod_restarts(pod: Obj, now: datetime) -> str:
    """`0`, or `3 (5m ago)`."""
    reading = _Reading(pod)
    if reading.restarts and reading.last_restart:
        return f"{reading.restarts} ({age(reading.last_restart, now)} ago)"
    return str(reading.restarts)


def readiness_gates(pod: Obj) -> str:
    """`1/1`, or <none>."""
    gates = [g.get("conditionType") for g in pod.get("spec", {}).get("readinessGates") or ()]
    if not gates:
        return "<none>"
    true = {c.get("type") for c in _status(pod).get("conditions") or () if c.get("status") == "True"}
    return f"{sum(g in true for g in gates)}/{len(gates)}"


def _status(pod: Obj) -> Obj:
    return pod.get("status") or {}


def _sidecars(pod: Obj) -> set[str]:
    inits = pod.get("spec", {}).get("initContainers") or ()
    return {c["name"] for c in inits if c.get("restartPolicy") == "Always"}


def _long_running(pod: Obj) -> int:
    return len(pod.get("spec", {}).get("containers") or ()) + len(_sidecars(pod))


def _has(pod: Obj, condition: str) -> bool:
    return any(c.get("type") == condition and c.get("status") == "True" for c in _status(pod).get("conditions") or ())


def _ended(state: Obj, prefix: str) -> str:
    if state.get("reason"):
        return prefix + str(state["reason"])
    return (
        f"{prefix}Signal:{state['signal']}" if state.get("signal") else f"{prefix}ExitCode:{state.get('exitCode', 0)}"
    )


class _Reading:
    """One pass over the container statuses: init containers in order, then containers from last to first."""

    def __init__(self, pod: Obj) -> None:
        status = _status(pod)
        self.ready = 0
        self.restarts = 0
        self.last_restart = ""
        self.reason = str(status.get("reason") or status.get("phase") or "")
        if any(c.get("reason") == "SchedulingGated" for c in status.get("conditions") or ()):
            self.reason = "SchedulingGated"
        initializing = self._inits(pod)
        if not initializing or _has(pod, "Initialized"):
            self._containers(pod)

    def _count(self, container: Obj) -> None:
        self.restarts += int(container.get("restartCount", 0))
        last = (container.get("lastState") or {}).get("terminated") or {}
        self.last_restart = max(self.last_restart, str(last.get("finishedAt") or ""))

    def _inits(self, pod: Obj) -> bool:
        sidecars = _sidecars(pod)
        total = len(pod.get("spec", {}).get("initContainers") or ())
        for index, container in enumerate(_status(pod).get("initContainerStatuses") or ()):
            self._count(container)
            state = container.get("state") or {}
            terminated, waiting = state.get("terminated"), state.get("waiting") or {}
            if terminated is not None and terminated.get("exitCode", 0) == 0:
                continue
            if container.get("name") in sidecars and container.get("started"):
                self.ready += bool(container.get("ready"))
                continue
            if terminated is not None:
                self.reason = _ended(terminated, "Init:")
            elif waiting.get("reason") not in (None, "", "PodInitializing"):
                self.reason = f"Init:{waiting['reason']}"
            else:
                self.reason = f"Init:{index}/{total}"
            return True
        return False

    def _containers(self, pod: Obj) -> None:
        # What ordinary init containers counted is history once they are done; sidecars go on counting.
        self.restarts, self.last_restart = 0, ""
        sidecars = _sidecars(pod)
        for container in _status(pod).get("initContainerStatuses") or ():
            if container.get("name") in sidecars:
                self._count(container)
        running = False
        for container in reversed(_status(pod).get("containerStatuses") or ()):
            self._count(container)
            state = container.get("state") or {}
            if (state.get("waiting") or {}).get("reason"):
                self.reason = str(state["waiting"]["reason"])
            elif state.get("terminated") is not None:
                self.reason = _ended(state["terminated"], "")
            elif container.get("ready") and state.get("running") is not None:
                running = True
                self.ready += 1
        if self.reason == "Completed" and running:
            self.reason = "Running" if _has(pod, "Ready") else "NotReady"
