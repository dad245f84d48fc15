"""Counters of a simulation, and its result."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

# Writes to the API server, as benchmarks/kubernetes counts them for one volume from create to gone (11 besides those
# of capacity), split at the moment when it is bound; and those of a pod itself: create, binding, two statuses, delete.
CLAIM_TO_BOUND, VOLUME_TO_BOUND, CLAIM_TO_GONE, VOLUME_TO_GONE = 5, 2, 2, 2
POD_TO_PLACED, POD_TO_GONE = 2, 4
WATCHERS = {"pods": 4, "claims": 4, "volumes": 3, "capacity": 2}
"""Who gets a message of each write: scheduler, controllers, and the one agent and kubelet of the node, which watch by
label. It does not depend on how many nodes there are."""

_STEPS = 20  # points of a queueing curve for each power of ten


@dataclass
class Tally:
    """Counters of one run. waits: seconds from arrival until a pod was on its node."""

    arrived: int = 0
    placed: int = 0
    decisions: int = 0
    rejected: int = 0
    rescheduled: int = 0
    created: int = 0
    writes: MutableMapping[str, int] = field(default_factory=lambda: dict.fromkeys(WATCHERS, 0))
    waits: array[float] = field(default_factory=lambda: array("d"))
    stranded: array[float] = field(default_factory=lambda: array("d"))
    held: int = 0
    peak_held: int = 0
    peak_waiting: int = 0

    def hold(self, size: int) -> None:
        """Bytes that volumes take from now on; less than 0: give back."""
        self.held += size
        self.peak_held = max(self.peak_held, self.held)


@dataclass
class Series:
    """Time series of a run.

    waiting: pods without a node at those hours; held: the share of all storage that volumes had then; stranded: at
    hours of
    its own; queueing: seconds -> the share of pods that waited longer.
    """

    hours: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    stranded_hours: list[float] = field(default_factory=list)
    stranded: list[float] = field(default_factory=list)
    queueing: dict[float, float] = field(default_factory=dict)

    def sample(self, hour: float, tally: Tally, *, total_bytes: int) -> None:
        """Note how it is now."""
        self.hours.append(hour)
        self.waiting.append(tally.arrived - tally.placed)
        self.held.append(tally.held / max(1, total_bytes))

    def finish(self, tally: Tally, *, hours: float) -> None:
        """Add what is known at the end. hours: of the trace, over which stranded storage was looked at."""
        looks = len(tally.stranded)
        self.stranded_hours = [hours * (number + 1) / looks for number in range(looks)]
        self.stranded = list(tally.stranded)
        waits = sorted(tally.waits)
        self.queueing = _tail(waits)


@dataclass(frozen=True)
class Result:
    """Result of one policy. Shares are from 0 to 1, times in seconds of the trace.

    attempts_rejected: decisions that found no node; rescheduled: pods that a node's agent rescheduled; waiting: pods
    without a
    node at the end; stranded: free storage on nodes that could take no pod of any stream, as a share of all storage;
    peak_allocation: most storage that volumes had at once, as a share of all; counted: whether writes and messages were
    counted,
    or estimated.
    """

    policy: str
    pods: int
    placed: int
    waiting: int
    placement_rate: float
    decisions: int
    attempts_rejected: int
    rescheduled: int
    volumes: int
    queue_p50: float
    queue_p99: float
    queue_max: float
    peak_waiting: int
    stranded_mean: float
    stranded_peak: float
    peak_allocation: float
    api_writes_per_pod: float
    capacity_writes_per_pod: float
    watch_messages_per_pod: float
    counted: bool = False


def conclude(policy: str, tally: Tally, *, total_bytes: int, messages: Mapping[str, int] | None = None) -> Result:
    """The result of a run on pools of so many bytes. messages: counts by resource, None: they are estimated."""
    waits = sorted(tally.waits)
    pods = max(1, tally.arrived)
    if messages is None:
        delivered = sum(count * WATCHERS[kind] for kind, count in tally.writes.items())
    else:
        delivered = sum(messages.values())
    return Result(
        policy=policy,
        pods=tally.arrived,
        placed=tally.placed,
        waiting=tally.arrived - tally.placed,
        placement_rate=tally.placed / pods,
        decisions=tally.decisions,
        attempts_rejected=tally.rejected,
        rescheduled=tally.rescheduled,
        volumes=tally.created,
        queue_p50=_quantile(waits, 0.5),
        queue_p99=_quantile(waits, 0.99),
        queue_max=waits[-1] if waits else 0.0,
        peak_waiting=tally.peak_waiting,
        stranded_mean=sum(tally.stranded) / max(1, len(tally.stranded)),
        stranded_peak=max(tally.stranded, default=0.0),
        peak_allocation=tally.peak_held / max(1, total_bytes),
        api_writes_per_pod=sum(tally.writes.values()) / pods,
        capacity_writes_per_pod=(tally.writes.get("capacity", 0) + tally.writes.get("csistoragecapacities", 0)) / pods,
        watch_messages_per_pod=delivered / pods,
        counted=messages is not None,
    )


def _tail(waits: Sequence[float]) -> dict[float, float]:
    """Seconds -> the share of pods that waited longer, evenly over the powers of ten: 50 %, 5 %, 0.5 % alike."""
    count = len(waits)
    ranks = {min(count - 1, int(count * (1 - 10 ** (-step / _STEPS)))) for step in range(int(_STEPS * 7))}
    return {waits[rank]: (count - rank - 1) / count for rank in sorted(ranks)} if waits else {}


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0
