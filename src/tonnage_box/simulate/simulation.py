"""Simulation: plays a trace on nodes under one policy; pods arrive, are placed, run and end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from operator import itemgetter

from tonnage.base import collector
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.provisioning.claims.node_scope import CapacitySource
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.framework.plugin import SchedulingDecision
from tonnage.scheduler.framework.queue import QueuedPod
from tonnage_box.simulate import tally
from tonnage_box.simulate.cluster import heap, objects
from tonnage_box.simulate.cluster.agent import Agent, Order
from tonnage_box.simulate.cluster.events import Events
from tonnage_box.simulate.cluster.scheduling import Scheduling
from tonnage_box.simulate.policy import Policy
from tonnage_box.simulate.stranded import Stranded
from tonnage_box.simulate.tally import Result, Series, Tally
from tonnage_box.simulate.workload.amounts import duration, size
from tonnage_box.simulate.workload.arrivals import Arrival, arrivals
from tonnage_box.simulate.workload.workload import SimulatedNodes, StreamSpec, Workload

PROGRESS_STEPS = 200


@dataclass(slots=True, eq=False)
class _Pod:
    """A pod and its lives.

    waiting_since: its last arrival. claims: in their current state. orders: claims that its node creates.
    """

    uid: str
    stream: int
    lifetimes: list[float]
    claims: list[PersistentVolumeClaim]
    waiting_since: float = 0.0
    life: int = 0
    orders: list[Order] = field(default_factory=list)

    @property
    def life_uid(self) -> str:
        """uid of the pod in this life."""
        return f"{self.uid}.{self.life}" if self.life else self.uid


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    scale: factor of the workload's rates. takes: maximum arrivals of each stream. share, least: as in the scheduler's
    cycle. progress(share of the time) is called often, placed(pod, node) for each pod.
    """

    seed: int = 0
    scale: float = 1.0
    takes: Sequence[int] | None = None
    share: float = Cycle.share
    least: int = Cycle.least
    progress: Callable[[float], None] = lambda share: None
    placed: Callable[[str, str], None] = lambda pod, node: None

    def trace(self, index: int, stream: StreamSpec, until: float) -> Iterator[Arrival]:
        """Return the arrivals of the stream with that index."""
        found = arrivals(stream, until, seed=self.seed, scale=self.scale)
        return islice(found, self.takes[index] if self.takes else None)


class Simulation:
    """One run. Deterministic: the same arguments give the same Result."""

    def __init__(
        self,
        workload: Workload,
        nodes: Sequence[SimulatedNodes],
        policy: Policy,
        options: RunOptions | None = None,
    ) -> None:
        self._options = options = options or RunOptions()
        self._workload, self._policy = workload, policy
        self.events, self.tally, self.series = Events(), Tally(), Series()
        self._version = partial(next, count(1))
        """Returns a new resourceVersion."""
        self._pods: dict[str, _Pod] = {}
        delays = workload.delays.seconds()
        self._write, self._watch, self._create, self._delete = itemgetter("write", "watch", "create", "delete")(delays)
        self.scheduling = Scheduling(self.events, policy, self.tally, seconds=delays["decide"], decided=self._decided)
        self.scheduling.cycle.share, self.scheduling.cycle.least = options.share, options.least
        self.agents: dict[str, Agent] = {}
        self._sources = self._make_classes()
        with collector.paused():
            for index, spec in enumerate(each for each in nodes for _ in range(each.count)):
                self._add_node(f"node-{index}", spec)
            self.events.run(min(1.0, duration(workload.duration)))  # what nodes publish is there before the first pod
        self.tally.writes["capacity"] = 0
        self.total_bytes = sum(sum(agent.pools.values()) for agent in self.agents.values())
        self._templates = [objects.template(stream) for stream in workload.streams]
        self._until = duration(workload.duration)
        self._traces = [options.trace(index, stream, self._until) for index, stream in enumerate(workload.streams)]
        self._stranded = Stranded(self.scheduling.cluster, workload, self._templates, self.agents.values())

    def _make_classes(self) -> dict[str, CapacitySource]:
        storage = self.scheduling.objects
        storage.drivers.put(objects.driver())
        found: dict[str, CapacitySource] = {}
        for stream in self._workload.streams:
            for volume in stream.volumes:
                name = volume.storage_class
                if name not in found:
                    found[name] = CapacitySource(names.DRIVER, name, self._workload.pool_of(name))
                    storage.classes.put(objects.storage_class(name))
        return found

    def _add_node(self, name: str, spec: SimulatedNodes) -> None:
        self.scheduling.cluster.node_changed(None, objects.node(name, spec))
        pools = {pool: int(size(text)) for pool, text in spec.pools.items()}
        sources = [source for source in self._sources.values() if source.pool_key in pools]
        self.agents[name] = Agent(
            name, pools, sources, self.events, self.tally, version=self._version, publish=self._publish
        )

    def _publish(self, capacity: CSIStorageCapacity) -> None:
        self.events.after(self._write + self._watch, partial(self.scheduling.capacities.put, capacity))

    # Running

    def run(self) -> Result:
        """Play the trace. Raises: ExhaustedError when a node's ledger gave away more than its pool had."""
        with heap.settled():
            return self._play(self._until + duration(self._workload.settle))

    def _play(self, end: float) -> Result:
        for stream, trace in enumerate(self._traces):
            self._next(stream, enumerate(trace))
        self._stranded.plan(self.events, self.tally, self._until)
        for step in range(1, PROGRESS_STEPS + 1):
            self.events.run(end * step / PROGRESS_STEPS)
            self.series.sample(self.events.now / 3600, self.tally, total_bytes=self.total_bytes)
            self._options.progress(step / PROGRESS_STEPS)
        self.series.finish(self.tally, hours=self._until / 3600)
        return tally.conclude(self._policy.name, self.tally, total_bytes=self.total_bytes)

    def _next(self, stream: int, trace: Iterator[tuple[int, Arrival]]) -> None:
        if (found := next(trace, None)) is not None:
            self.events.at(found[1].time, partial(self._arrive, stream, trace, *found))

    def _arrive(self, stream: int, trace: Iterator[tuple[int, Arrival]], number: int, arrival: Arrival) -> None:
        """Create a pod of a stream."""
        spec = self._workload.streams[stream]
        uid = f"{spec.name}-{number}"
        claims = [
            objects.claim(f"{uid}.v{index}", volume.storage_class, amount, self._version())
            for index, (volume, amount) in enumerate(zip(spec.volumes, arrival.sizes, strict=True))
        ]
        for claim in claims:
            self.scheduling.objects.claims.put(claim)
        self.tally.writes["claims"] += len(claims)
        self._come(_Pod(uid, stream, list(arrival.lifetimes), claims))
        self._next(stream, trace)

    def _come(self, pod: _Pod) -> None:
        """A pod wants a node, for the first time or again."""
        self.tally.arrived += 1
        self.tally.writes["pods"] += 1
        self.tally.peak_waiting = max(self.tally.peak_waiting, self.tally.arrived - self.tally.placed)
        pod.waiting_since = self.events.now
        self._pods[pod.life_uid] = pod
        self.scheduling.add(objects.ask(self._templates[pod.stream], pod.life_uid, pod.claims))

    # The life of a pod: each yields the seconds until its next step

    def _decided(self, entry: QueuedPod, decision: SchedulingDecision) -> None:
        self.events.start(self._live(self._pods[entry.uid], entry, decision))

    def _live(self, pod: _Pod, entry: QueuedPod, decision: SchedulingDecision) -> Iterator[float]:
        """From the decision to the end of this life: the pod returns with its volumes, or all is deleted."""
        agent = self.agents[decision.node]
        if decision.plan.made and not (yield from self._provision(pod, agent)):
            self.tally.rescheduled += 1
            agent.sent_back(pod.orders)
            self.tally.writes["claims"] += len(pod.claims)
            self.scheduling.cycle.roll_back(entry.ask, decision)
            self.scheduling.queue.retry(entry, self.events.now, free=True)
            return
        yield self._write
        self.scheduling.cycle.volumes.post_bind(decision)
        self.scheduling.queue.remove(entry.uid)
        self._options.placed(pod.uid, decision.node)
        self.tally.placed += 1
        self.tally.writes["pods"] += tally.POD_TO_PLACED - 1
        self.tally.waits.append(self.events.now - pod.waiting_since)
        yield pod.lifetimes[pod.life]
        del self._pods[pod.life_uid]
        self.tally.writes["pods"] += tally.POD_TO_GONE
        self.scheduling.cluster.pod_lifted(pod.life_uid)
        pod.life += 1
        if pod.life < len(pod.lifetimes):
            yield duration(self._workload.streams[pod.stream].pause)
            self._come(pod)
            return
        for claim in pod.claims:
            self.scheduling.objects.claims.remove(claim.key)
            self.scheduling.objects.volumes.remove(claim.spec.volume_name)
        self.tally.writes["claims"] += len(pod.claims) * tally.CLAIM_TO_GONE
        self.tally.writes["volumes"] += len(pod.claims) * tally.VOLUME_TO_GONE
        yield self._watch + self._delete
        for order in pod.orders:
            agent.delete(order)

    def _provision(self, pod: _Pod, agent: Agent) -> Generator[float, None, bool]:
        """Create and bind a pod's volumes; return False when the agent rescheduled the claims."""
        pod.orders = []
        for number, claim in enumerate(pod.claims, 1):
            self.events.after(self._write * number, partial(self._send, pod, claim, agent))
        yield self._write * len(pod.claims)
        yield self._watch
        if not agent.reserve(pod.orders):
            yield self._write + self._watch
            return False
        yield self._create
        for order in pod.orders:
            agent.create(order)
        yield 2 * self._write + self._watch
        if self._workload.streams[pod.stream].restarts:  # only a pod that comes back asks where its volumes are
            for index, claim in enumerate(pod.claims):
                self.scheduling.objects.volumes.put(objects.volume(claim, agent.node, self._version()))
                pod.claims[index] = objects.bound(claim, agent.node, self._version())
                self.scheduling.objects.claims.put(pod.claims[index])
        self.tally.writes["claims"] += len(pod.claims) * (tally.CLAIM_TO_BOUND - 2)
        self.tally.writes["volumes"] += len(pod.claims) * tally.VOLUME_TO_BOUND
        return True

    def _send(self, pod: _Pod, claim: PersistentVolumeClaim, agent: Agent) -> None:
        """Write the node into a claim; its agent sees that later."""
        version, source = self._version(), self._sources[claim.spec.storage_class_name or ""]
        self.tally.writes["claims"] += 1
        self.scheduling.sent(claim.metadata.uid, version)
        amount = int(claim.spec.resources.requests["storage"])
        pod.orders.append(Order(claim.metadata.uid, source, amount, version))
        self.events.after(self._watch, partial(agent.see, pod.orders[-1]))
