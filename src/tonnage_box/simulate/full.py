"""Full simulation (--full): real controllers, scheduler, agents and API server in one process on a virtual clock.

Kubelets, pools and the network are simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from tonnage.base.aio.tasks import Background, supervise
from tonnage.csi.client.local import local_client
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, CSI_NODES, NAMESPACES, NODES, PODS, STORAGE_CLASSES
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.scheduler.framework.plugin import Diagnosis, SchedulingDecision
from tonnage.scheduler.framework.pod_info import Ask
from tonnage.scheduler.scheduler import Scheduler
from tonnage_box import bootstrap
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.control_plane import control_plane
from tonnage_box.simulate import tally
from tonnage_box.simulate.cluster import bodies, heap
from tonnage_box.simulate.cluster.feeder import Feeder
from tonnage_box.simulate.cluster.kubelets import Kubelets
from tonnage_box.simulate.cluster.node import SimulatedNode
from tonnage_box.simulate.cluster.objects import template
from tonnage_box.simulate.cluster.transport import SlowTransport, Traffic
from tonnage_box.simulate.policy import Policy
from tonnage_box.simulate.simulation import PROGRESS_STEPS, RunOptions
from tonnage_box.simulate.stranded import SAMPLES, Stranded
from tonnage_box.simulate.tally import Result, Series, Tally
from tonnage_box.simulate.virtual_time import LoopClock, VirtualLoop
from tonnage_box.simulate.workload.amounts import duration, size
from tonnage_box.simulate.workload.workload import SimulatedNodes, Workload

_PUBLISHED_SECONDS = 60.0


class FullSimulation:
    """One run with everything. The arguments are those of Simulation.

    The same arguments give the same Result. Polls for foreign changes of disks, and heartbeats, are left out: these
    disks have no other users, and these nodes do not fail.
    """

    def __init__(
        self,
        workload: Workload,
        nodes: Sequence[SimulatedNodes],
        policy: Policy,
        options: RunOptions | None = None,
    ) -> None:
        self._options = options = options or RunOptions()
        self._workload, self._policy = workload, policy
        self._delays = workload.delays.seconds()
        self.tally, self.traffic, self.series = Tally(), Traffic(), Series()
        self._specs = [spec for spec in nodes for _ in range(spec.count)]
        self.total_bytes = sum(int(size(text)) for spec in self._specs for text in spec.pools.values())
        self._loop = VirtualLoop()
        self._clock = LoopClock()
        self._tasks = Background("simulation")
        self.nodes: list[SimulatedNode] = []
        self._since: dict[str, float] = {}  # uids of pods without a node -> when they were created

    def run(self) -> Result:
        """Play the trace."""
        try:
            return self._loop.run_until_complete(self._run())
        finally:
            self._loop.close()

    async def _run(self) -> Result:
        server = ApiServer(Store(extractor()), clock=self._clock, entropy=Random(self._options.seed))
        await server.start()
        transport = SlowTransport(
            server.transport(), self.traffic, self._clock, write=self._delays["write"], watch=self._delays["watch"]
        )
        client = Client(transport)
        informers = Informers(client)
        feeder = Feeder(client, informers, self._clock)
        kubelets = Kubelets(client, informers, self._clock, feeder.lifetime)
        informers.of(PODS).cache.on_change(self._pod_changed)
        try:
            await self._make_objects(client)
            scheduler = await self._start_controllers(client, informers)
            await self._start_agents(client, server.cluster_id())
            await self._wait_published(informers)
            with heap.settled():
                await self._play(feeder, scheduler)
        finally:
            await feeder.close()
            await kubelets.close()
            await self._tasks.close()
            await informers.close()
            await server.stop()
        return tally.conclude(
            self._policy.name, self.tally, total_bytes=self.total_bytes, messages=self.traffic.messages
        )

    # The cluster

    async def _make_objects(self, client: Client) -> None:
        await bootstrap.ensure_drivers(client, [names.DRIVER])
        await client.create(NAMESPACES, {"metadata": {"name": bodies.NAMESPACE}})
        for name in self._classes():
            body = bootstrap.storage_class(names.DRIVER, parameters={"pool": self._workload.pool_of(name)})
            await client.create(STORAGE_CLASSES, {**body, "metadata": {"name": name}})
        for index, spec in enumerate(self._specs):
            node = await client.create(NODES, bodies.node(f"node-{index}", spec))
            status = bodies.node(f"node-{index}", spec)["status"]
            await client.patch(NODES, node.metadata.name, {"status": status}, subresource="status")
            await client.create(CSI_NODES, bodies.csi_node(node))

    def _classes(self) -> list[str]:
        return sorted({volume.storage_class for stream in self._workload.streams for volume in stream.volumes})

    async def _start_controllers(self, client: Client, informers: Informers) -> Scheduler:
        scheduler = Scheduler(
            client, informers, self._events(client, "scheduler"), clock=self._clock, strategy=self._policy.strategy
        )
        self._prepare(scheduler)
        recorder = partial(self._events, client)
        loops = control_plane(client, informers, recorder, clock=self._clock, scheduler=scheduler)
        informers.start()
        for name, loop in loops.items():
            self._tasks.start(supervise(name, loop.run), name)
        await informers.wait_synced()
        return scheduler

    def _events(self, client: Client, component: str) -> EventRecorder:
        numbers = Random(f"{self._options.seed}/{component}")
        recorder = EventRecorder(client, component, clock=self._clock, suffix=lambda: f"{numbers.getrandbits(64):016x}")
        self._tasks.start(supervise(f"events of {component}", recorder.run), "events")
        return recorder

    def _prepare(self, scheduler: Scheduler) -> None:
        """Let decisions take virtual time, and count them."""
        cycle = scheduler.cycle
        cycle.share, cycle.least = self._options.share, self._options.least
        decide, roll_back = cycle.decide, cycle.roll_back

        def timed(ask: Ask, **more: Any) -> SchedulingDecision | Diagnosis:
            outcome = decide(ask, **more)
            self._loop.advance(self._delays["decide"])
            rejected = isinstance(outcome, Diagnosis)
            if not (isinstance(outcome, Diagnosis) and outcome.awaited):  # its claims are not there yet
                self.tally.decisions += 1
                self.tally.rejected += rejected
            return outcome

        def counted(ask: Ask, decision: SchedulingDecision) -> None:
            self.tally.rescheduled += 1
            roll_back(ask, decision)

        setattr(cycle, "decide", timed)  # noqa: B010
        setattr(cycle, "roll_back", counted)  # noqa: B010
        if not self._policy.tracked:
            setattr(scheduler.cluster.published, "reserve", lambda *_args, **_more: None)  # noqa: B010

    async def _start_agents(self, client: Client, cluster_uid: str) -> None:
        for index, spec in enumerate(self._specs):
            node = SimulatedNode(f"node-{index}", spec, self._clock, self.tally, self._delays)
            config = AgentConfig(
                node.node, scope="label", capacity="exact", cluster_uid=cluster_uid, poll=0, sweep_every=0
            )
            clients = [local_client(node.driver)]
            agent = NodeAgent(client, config, clients=clients, clock=self._clock, number=lambda: 0)
            self.nodes.append(node)
            self._tasks.start(supervise(f"agent {node.node}", agent.run), f"agent {node.node}")

    async def _wait_published(self, informers: Informers) -> None:
        """Wait until each node has published capacity for its classes."""
        wanted = sum(self._workload.pool_of(name) in spec.pools for spec in self._specs for name in self._classes())
        async with asyncio.timeout(_PUBLISHED_SECONDS):
            while len(informers.of(CAPACITIES).cache) < wanted:
                await self._clock.sleep(1.0)

    # The trace

    async def _play(self, feeder: Feeder, scheduler: Scheduler) -> None:
        self.traffic.clear()
        self.tally.writes = self.traffic.writes
        until = duration(self._workload.duration)
        feeder.zero = self._clock.monotonic()
        for index, stream in enumerate(self._workload.streams):
            trace = self._options.trace(index, stream, until)
            self._tasks.start(feeder.run(stream, trace), f"stream {stream.name}")
        asks = [template(stream) for stream in self._workload.streams]
        stranded = Stranded(scheduler.cluster, self._workload, asks, self.nodes)
        self._tasks.start(self._look(stranded, until), "stranded")
        end = until + duration(self._workload.settle)
        for step in range(1, PROGRESS_STEPS + 1):
            await self._clock.sleep(feeder.zero + end * step / PROGRESS_STEPS - self._clock.monotonic())
            self.series.sample(end * step / PROGRESS_STEPS / 3600, self.tally, total_bytes=self.total_bytes)
            self._options.progress(step / PROGRESS_STEPS)
        self.series.finish(self.tally, hours=until / 3600)

    async def _look(self, stranded: Stranded, until: float) -> None:
        for _ in range(SAMPLES):
            await self._clock.sleep(until / SAMPLES)
            stranded.sample(self.tally)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Record when each pod was created and when it was on a node."""
        if new is None:
            if old is not None:
                self._since.pop(old.metadata.uid, None)
            return
        count, uid = self.tally, new.metadata.uid
        if old is None or old.metadata.uid != uid:
            self._since[uid] = self._clock.monotonic()
            count.arrived += 1
            count.peak_waiting = max(count.peak_waiting, count.arrived - count.placed)
        if new.spec.node_name and uid in self._since:
            count.placed += 1
            count.waits.append(self._clock.monotonic() - self._since.pop(uid))
            self._options.placed(new.metadata.name, new.spec.node_name)
