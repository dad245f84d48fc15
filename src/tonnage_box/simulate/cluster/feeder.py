"""Client of a simulated cluster: creates a stream's objects on arrival and deletes them at the end (--full).

Pods of Deployments, StatefulSets and Jobs are created by their controllers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count, groupby
from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api.kinds import CLAIMS, DEPLOYMENTS, JOBS, PODS, STATEFUL_SETS, Kind
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import Job
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.simulate.cluster import bodies
from tonnage_box.simulate.workload.amounts import duration
from tonnage_box.simulate.workload.arrivals import TOGETHER, Arrival
from tonnage_box.simulate.workload.workload import StreamSpec

_WORKLOADS: Mapping[str, tuple[Kind[Any], Callable[[str, StreamSpec, Sequence[int]], dict[str, Any]]]] = {
    "Deployment": (DEPLOYMENTS, bodies.deployment),
    "StatefulSet": (STATEFUL_SETS, bodies.stateful_set),
    "Job": (JOBS, bodies.job),
}


class Feeder:
    """Plays streams: run(stream, trace) plays one. zero: the loop's time at the trace's midnight."""

    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self.zero = 0.0
        self._tasks = Background("feeder")
        self._lives: dict[str, Lives] = {}
        self._gone: dict[str, asyncio.Event] = {}
        informers.of(PODS).cache.on_change(self._pod_changed)
        informers.of(JOBS).cache.on_change(self._job_changed)

    # What kubelets ask

    def lifetime(self, pod: Pod) -> float | None:
        """Seconds that a pod's containers run; None: until it is deleted."""
        lives = self._lives.get(pod.metadata.labels.get(bodies.SET_LABEL) or pod.metadata.name)
        return lives.begin(pod.metadata.name) if lives is not None else None

    # The trace

    async def run(self, stream: StreamSpec, trace: Iterable[Arrival]) -> None:
        """Create what comes, when it comes."""
        number = count()
        for _, group in groupby(trace, key=lambda arrival: arrival.group):
            burst = list(group)
            await self._clock.sleep(max(0.0, self.zero + burst[0].time - self._clock.monotonic()))
            for part in [[each] for each in burst] if stream.kind == "Pod" else [burst]:  # the pods of one object
                name = f"{stream.name}-{next(number)}"
                self._lives[name] = Lives(stream, part)
                self._tasks.start(self._live(name, stream, part[0]), name)

    async def _live(self, name: str, stream: StreamSpec, first: Arrival) -> None:
        if stream.kind == "Pod":
            await self._live_pod(name, stream, first)
            return
        kind, body = _WORKLOADS[stream.kind]
        await self._create(kind, body(name, stream, first.sizes))
        if stream.kind in TOGETHER:
            await self._lives[name].begun.wait()
            await self._clock.sleep(sum(first.lifetimes))
            await self._delete(kind, name)
            del self._lives[name]

    async def _live_pod(self, name: str, stream: StreamSpec, arrival: Arrival) -> None:
        """Run a pod without a controller; where it returns to its volumes, this client creates it again."""
        claims = [f"{name}-v{index}" for index in range(len(stream.volumes))] if stream.restarts else []
        for claim, volume, size in zip(claims, stream.volumes, arrival.sizes, strict=False):
            await self._create(CLAIMS, bodies.claim(claim, volume, size))
        for life in range(stream.restarts + 1):
            if life:
                await self._clock.sleep(duration(stream.pause))
            self._gone[name] = asyncio.Event()
            await self._create(PODS, bodies.pod(name, stream, arrival.sizes, claims))
            await self._gone[name].wait()
        del self._gone[name], self._lives[name]
        for claim in claims:
            await self._delete(CLAIMS, claim)

    async def _create(self, kind: Kind[Any], body: dict[str, Any]) -> None:
        await self._client.create(kind, body, bodies.NAMESPACE)

    async def _delete(self, kind: Kind[Any], name: str) -> None:
        with suppress(ApiNotFoundError):
            await self._client.delete(kind, name, bodies.NAMESPACE, propagation="Background")

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None and (gone := self._gone.get(old.metadata.name)) is not None:
            gone.set()

    def _job_changed(self, _old: Job | None, new: Job | None) -> None:
        """A Job that is done is taken away."""
        if new is None or new.metadata.deleting or new.metadata.name not in self._lives:
            return
        if any(c.type == "Complete" and c.status == "True" for c in new.status.conditions):
            del self._lives[new.metadata.name]
            self._tasks.start(self._delete(JOBS, new.metadata.name), "delete")

    async def close(self) -> None:
        """Do nothing more."""
        await self._tasks.close()


class Lives:
    """Lifetimes of the pods of one object."""

    def __init__(self, stream: StreamSpec, pods: list[Arrival]) -> None:
        self.begun = asyncio.Event()
        """Set when the first one runs."""
        self._kind, self._restarts = stream.kind, stream.restarts
        self._left = [pod.lifetimes for pod in reversed(pods)]
        self._lived: dict[str, int] = {}

    def begin(self, pod: str) -> float | None:
        """One more life of a pod begins: its seconds; None when it ends with the object that made it."""
        self.begun.set()
        life = self._lived[pod] = self._lived.get(pod, -1) + 1
        if self._kind == "Job":
            return (self._left.pop() if len(self._left) > 1 else self._left[0])[0]
        if self._kind == "Pod" or (self._kind == "StatefulSet" and life < self._restarts):
            return self._left[0][min(life, self._restarts)]
        return None
