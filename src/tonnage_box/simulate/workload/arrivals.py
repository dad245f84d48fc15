"""Arrivals: when pods come, their sizes and lifetimes, drawn from a seed.

Arrivals do not depend on what happens to the pods. Each stream has its own random source, so that one more stream
changes nothing for the others, and compared policies get the same pods. Times are seconds since the trace's midnight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from tonnage.base.errors import InvalidError
from tonnage_box.simulate.workload import amounts
from tonnage_box.simulate.workload.workload import StreamSpec, Workload

_HOUR, _GRAIN = 3600.0, 1024**2
TOGETHER = ("Deployment", "StatefulSet")
"""Kinds whose pods come and go together."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod to create.

    group: which arrival of the stream it belongs to; sizes: bytes of its volumes, in the stream's order; lifetimes:
    seconds
    of its first life and of each after a restart.
    """

    time: float
    sizes: tuple[int, ...]
    lifetimes: tuple[float, ...]
    group: int = 0


def expected(workload: Workload) -> float:
    """Expected number of pods, including restarts."""
    until = amounts.duration(workload.duration)
    return sum(amounts.rate(s.rate) * s.burst * (s.restarts + 1) * _flow(s, until) for s in workload.streams)


def fitted(workload: Workload, pods: int, *, seed: int) -> tuple[float, list[int]]:
    """The scale of the rates at which that many pods come, and how many arrivals to take of each stream.

    It is exact where a stream is of kind Pod and has no restarts; elsewhere objects come whole. Raises: InvalidError.
    """
    if not (mean := expected(workload)):
        raise InvalidError("--pods: no pod can come: within the duration each stream's share of its rate is 0")
    most = max(stream.burst * (stream.restarts + 1) for stream in workload.streams)
    low, high = 0.0, pods / mean
    counts = _counts(workload, high, seed)
    while _pods(workload, counts) < pods:
        low, high = high, high * 2
        counts = _counts(workload, high, seed)
    while (surplus := _pods(workload, counts) - pods) > max(most, pods // 100) and high - low > high * 1e-9:
        middle = (low + high) / 2
        found = _counts(workload, middle, seed)
        if _pods(workload, found) < pods:
            low = middle
        else:
            high, counts = middle, found
    for index in sorted(range(len(counts)), key=lambda i: (workload.streams[i].kind != "Pod", -counts[i])):
        stream = workload.streams[index]
        whole = 1 if stream.kind == "Pod" else stream.burst
        drop = min(surplus // ((stream.restarts + 1) * whole) * whole, counts[index])
        counts[index] -= drop
        surplus -= drop * (stream.restarts + 1)
    return high, counts


def _counts(workload: Workload, scale: float, seed: int) -> list[int]:
    """Arrivals of each stream."""
    until = amounts.duration(workload.duration)
    return [sum(1 for _ in arrivals(each, until, seed=seed, scale=scale)) for each in workload.streams]


def _pods(workload: Workload, counts: Sequence[int]) -> int:
    return sum(n * (stream.restarts + 1) for n, stream in zip(counts, workload.streams, strict=True))


def arrivals(stream: StreamSpec, until: float, *, seed: int, scale: float = 1.0) -> Iterator[Arrival]:
    """The stream's pods in order of time. scale: how many times its rate.

    Pods that a controller makes of one template have the same sizes; those of a Job end each in its own time.
    """
    random = Random(f"{seed}/{stream.name}")
    lifetime = amounts.distribution(stream.lifetime, amounts.duration)
    sizes = [amounts.distribution(volume.size, amounts.size) for volume in stream.volumes]
    for group, time in enumerate(_times(stream, until, amounts.rate(stream.rate) * scale, random)):
        first: Arrival | None = None
        for _ in range(stream.burst):
            taken = first.sizes if first and stream.kind != "Pod" else tuple(_whole(draw(random)) for draw in sizes)
            if first and stream.kind in TOGETHER:
                lives = first.lifetimes
            else:
                lives = tuple(lifetime(random) for _ in range(stream.restarts + 1))
            arrival = Arrival(time, taken, lives, group)
            first = first or arrival
            yield arrival


def _whole(drawn: float) -> int:
    """Sizes are whole MiB, as people and charts write them."""
    return max(1, round(drawn / _GRAIN)) * _GRAIN


def _times(stream: StreamSpec, until: float, rate: float, random: Random) -> Iterator[float]:
    """Times of arrivals: the stream's time runs as fast as the day's share."""
    even = stream.arrivals == "even"
    flowed = 0.0
    time, hour = 0.0, 0
    while True:
        flowed += 1 / rate if even else random.expovariate(rate)
        while True:
            share, end = _share(stream, hour % 24), (hour + 1) * _HOUR
            if share * (end - time) >= flowed and share > 0:
                time, flowed = time + flowed / share, 0.0
                break
            flowed -= share * (end - time)
            time, hour = end, hour + 1
            if time >= until:
                return
        if time >= until:
            return
        yield time


def _share(stream: StreamSpec, hour: int) -> float:
    """The share that holds in an hour: of the last hour named up to then, going round midnight."""
    if not stream.day:
        return 1.0
    return stream.day[max((h for h in stream.day if h <= hour), default=max(stream.day))]


def _flow(stream: StreamSpec, until: float) -> float:
    """Seconds at full flow until then."""
    hours, rest = divmod(until, _HOUR)
    return sum(_share(stream, h % 24) for h in range(int(hours))) * _HOUR + rest * _share(stream, int(hours) % 24)
