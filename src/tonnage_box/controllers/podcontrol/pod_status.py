"""Pod predicates for workload controllers: active, ready, available (pkg/controller/controller_utils.go)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tonnage.base.aio.clock import parse_rfc3339
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import Condition
from tonnage.kubernetes.api.number import signed
from tonnage.kubernetes.api.pods import Pod

_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


def is_active(pod: Pod) -> bool:
    """Whether it runs or will run."""
    return not pod.terminated and not pod.metadata.deleting


def is_ready(pod: Pod) -> bool:
    """Whether its condition Ready holds."""
    return _ready(pod) is not None


def _ready(pod: Pod) -> Condition | None:
    return next((c for c in pod.status.conditions if (c.type, c.status) == ("Ready", "True")), None)


def available_at(pod: Pod, min_ready_seconds: int) -> float | None:
    """Since when, or from when on (seconds since the epoch), a ready pod is available; None of one not ready."""
    found = _ready(pod)
    if found is None:
        return None
    if not min_ready_seconds:
        return 0.0
    return parse_rfc3339(found.last_transition_time) + min_ready_seconds if found.last_transition_time else None


def is_available(pod: Pod, min_ready_seconds: int, now: float) -> bool:
    """Whether it has been ready for that many seconds."""
    since = available_at(pod, min_ready_seconds)
    return since is not None and since <= now


def next_available(pods: Iterable[Pod], min_ready_seconds: int, now: float) -> float | None:
    """Seconds until the next of the pods becomes available by just waiting; None if there is none."""
    times = [t for pod in pods if (t := available_at(pod, min_ready_seconds)) is not None and t > now]
    return min(times) - now if times else None


def deletion_order(pods: Iterable[Pod], on_node: Counter[str] | None = None) -> list[Pod]:
    """Sort pods in the order of their deletion (ActivePodsWithRanks).

    First come those without a node, then pending, not ready, cheap, crowded, ready for the shortest time, restarted
    most, youngest. on_node counts related pods by node.
    """
    every = list(pods)
    crowd = on_node if on_node is not None else Counter(pod.spec.node_name for pod in every)
    by_age = sorted(every, key=lambda p: p.metadata.creation_timestamp or "", reverse=True)
    by_age.sort(key=_restarts, reverse=True)
    by_age.sort(key=_ready_since, reverse=True)
    return sorted(
        by_age,
        key=lambda p: (
            bool(p.spec.node_name),
            _PHASES.get(p.status.phase, 0),
            is_ready(p),
            _cost(p),
            -crowd[p.spec.node_name],
        ),
    )


def _cost(pod: Pod) -> int:
    return signed(pod.metadata.annotations.get(names.POD_DELETION_COST, "0"), digits=10) or 0


def _ready_since(pod: Pod) -> str:
    found = _ready(pod)
    return (found.last_transition_time or "") if found is not None else ""


def _restarts(pod: Pod) -> int:
    return max((status.restart_count for status in pod.status.container_statuses), default=0)
