"""Record of one pod in the pod workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tonnage.api.pods import Pod
from tonnage.box.kubelet.containers.containers import Containers
from tonnage.box.kubelet.pods.status import Status
from tonnage.box.kubelet.volumes.volumes import Mounted

DEFAULT_GRACE = 30


@dataclass
class PodRecord:
    """State of one pod. pod None: its object is deleted."""

    uid: str
    pod: Pod | None
    since: float
    containers: Containers | None = None
    volumes: dict[str, Mounted] | None = None
    written: Status = field(default_factory=dict)
    started: str = ""
    evicted: str = ""
    """Why the pod is evicted; set once."""


def not_done(pod: Pod) -> list[str]:
    """Fields of a pod that this kubelet ignores, though the pod runs."""
    found = []
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        parts = {
            "livenessProbe": container.liveness_probe,
            "readinessProbe": container.readiness_probe,
            "startupProbe": container.startup_probe,
            "lifecycle": container.lifecycle,
        }
        if asked := [name for name, part in parts.items() if part]:
            found.append(f"{', '.join(asked)} of container {container.name}")
    if pod.spec.active_deadline_seconds is not None:
        found.append("activeDeadlineSeconds")
    return found


def grace_of(pod: Pod) -> float:
    """Seconds between SIGTERM and SIGKILL."""
    grace = pod.metadata.deletion_grace_period_seconds
    if grace is None:
        grace = pod.spec.termination_grace_period_seconds
    return float(DEFAULT_GRACE if grace is None else grace)
