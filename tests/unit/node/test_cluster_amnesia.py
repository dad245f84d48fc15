"""However a cluster forgets, no byte is lost that a pod wrote and whose claim its user did not delete.

A small cluster with all of the box's controllers, its scheduler and two agents, in virtual time. Kubelets write into
the volumes of pods. Users create and delete pods, claims and snapshots. At any moment the API server returns to a
backup, loses all its objects or some, or belongs to another cluster; records of pools are lost, older or foreign; agents and controllers are killed at whatever they
wait for; the clocks jump eight days. `--histories` says how many.

What each kind of pool does with such records is the subject of tests/unit/storage/pools and tests/conformance.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.forgetful import ForgetfulPool, foreign
from tests.restored import Backup, Front, Line

from tonnage.base.aio.clock import LoopClock, VirtualLoop
from tonnage.base.aio.tasks import Background, supervise
from tonnage.base.errors import ApiError, UnavailableError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.local import local_client
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.hooks import NoHooks
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.pods import Pod, claim_name
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Request, Response
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.scheduler.scheduler import Scheduler
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage_box import bootstrap
from tonnage_box.apiserver.storage.store import ObjectKey
from tonnage_box.control_plane import control_plane
from tonnage_box.simulate.cluster import bodies
from tonnage_box.simulate.cluster.kubelets import Kubelets
from tonnage_box.simulate.workload.workload import SimulatedNodes

GIB = 1 << 30
NODES = ("node-0", "node-1")
CLASSES: Mapping[str, Mapping[str, Any]] = {
    "deleted": {},
    "retained": {"reclaimPolicy": "Retain"},
    "rolled-back": {"parameters": {"pool": "scratch", names.ROLLBACK: "true"}},
}
KINDS: Sequence[Kind[Any]] = (
    *(kinds.NAMESPACES, kinds.NODES, kinds.PODS, kinds.CLAIMS, kinds.VOLUMES, kinds.EVENTS, kinds.CONFIG_MAPS),
    *(kinds.SERVICE_ACCOUNTS, kinds.PRIORITY_CLASSES, kinds.STORAGE_CLASSES, kinds.CSI_DRIVERS, kinds.CSI_NODES),
    *(kinds.CAPACITIES, kinds.SNAPSHOT_CLASSES, kinds.SNAPSHOT_CONTENTS, kinds.SNAPSHOTS),
)
"""Kinds of which a history may have objects."""
STEPS = 40
DAY = 86400.0


class Narrow:
    """A transport for informers, to which there are no objects of other kinds than KINDS: no list, no watch of those.

    World.check() sees to it that this is true. The garbage collector watches all kinds, so most requests of a history
    would be about nothing.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._paths = {kind.path() for kind in KINDS}

    async def request(self, request: Request) -> Response:
        """See Transport."""
        if request.path in self._paths:
            return await self._line.request(request)
        return Response(200, b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Transport."""
        if request.path not in self._paths:
            await asyncio.get_running_loop().create_future()
        async with self._line.stream(request) as chunks:
            yield chunks

    async def close(self) -> None:
        """See Transport."""


class Node(NoHooks):
    """A node's driver, whose content is never lost, and its agent, which is killed and started again."""

    def __init__(self, name: str, line: Line, state: Path, clock: LoopClock) -> None:
        self.name, self.line, self._state, self._clock = name, line, state, clock
        self._client = Client(line)
        self.pool = ForgetfulPool("scratch", 20 * GIB, clock=clock)
        self.driver = Driver(
            name, {"scratch": self.pool}, Path(f"/simulated/{name}"), default_pool="scratch", clock=clock,
            hooks=self,
        )  # fmt: skip
        self.kubelet: CsiClient = local_client(self.driver)
        self._task: asyncio.Task[None] | None = None
        self._agent: NodeAgent | None = None
        self.earlier: list[dict[str, VolumeRecord]] = []

    async def before_stage(self, handle: str) -> None:
        """The driver is in the agent's process: without the one there is no other."""
        if self._agent is None:
            raise UnavailableError("there is no agent")
        await self._agent.before_stage(handle)

    def start(self) -> None:
        """Start the agent, as its process does."""
        self._task = asyncio.ensure_future(supervise(f"agent {self.name}", self._run))

    async def _run(self) -> None:
        while True:
            cluster = (await self._client.get(kinds.NAMESPACES, "kube-system")).metadata.uid
            config = AgentConfig(
                self.name, scope="label", capacity="exact", cluster_uid=cluster, poll=0, sweep_every=43200,
                state=self._state,
            )  # fmt: skip
            self._agent = NodeAgent(self._client, config, clients=[local_client(self.driver)], clock=self._clock)
            await self._agent.run()

    async def kill(self) -> None:
        """End the agent at whatever it waits for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._agent = None

    async def identities(self) -> dict[str, float]:
        """Volumes and snapshots of the pool -> when each was made: a new one under the same name has other bytes."""
        return self.pool.fake.content | {record.name: record.created for record in self.pool.fake.all_snapshots()}


@dataclass(frozen=True)
class Written:
    """Bytes in a volume or snapshot. owner: uid of the claim that it is for. made: see Node.identities()."""

    node: str
    owner: str
    made: float


@dataclass
class World:
    """The cluster. data: name of a volume or snapshot -> what is in it, and must stay."""

    random: Random
    folder: Path
    clock: LoopClock = field(default_factory=LoopClock)
    data: dict[str, Written] = field(default_factory=dict)
    backups: list[Backup] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.front = Front(self.clock, self.random)
        line = self.front.line()
        self.client, self._watching = Client(line), Client(Narrow(line))
        self.nodes = {name: Node(name, self.front.line(), self.folder / name, self.clock) for name in NODES}
        self._plane: Background | None = None
        self._ends: list[Callable[[], Awaitable[None]]] = []

    # The cluster

    async def start(self) -> None:
        for node in self.nodes.values():
            (self.folder / node.name).mkdir()
        await self.front.restore(None)
        await self.register_again()
        await self.start_controllers()
        for node in self.nodes.values():
            node.start()
        await asyncio.sleep(90)

    async def stop(self) -> None:
        await self.stop_controllers()
        for node in self.nodes.values():
            await node.kill()
        await self.front.stop()

    async def make_objects(self) -> None:
        await bootstrap.ensure_drivers(self.client, [names.DRIVER])
        with suppress(ApiError):
            await self.client.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
        for name, more in CLASSES.items():
            body = {**bootstrap.storage_class(names.DRIVER, parameters={"pool": "scratch"}), **more}
            await self._create(kinds.STORAGE_CLASSES, {**body, "metadata": {"name": name}})
        snapshots = {"metadata": {"name": "snapshots"}, "driver": names.DRIVER, "deletionPolicy": "Delete"}
        await self._create(kinds.SNAPSHOT_CLASSES, snapshots)

    async def register(self, name: str) -> None:
        """As the kubelet of that node does."""
        body = bodies.node(name, SimulatedNodes({"scratch": "20Gi"}))
        with suppress(ApiError):
            node = await self.client.create(kinds.NODES, body)
            await self.client.patch(kinds.NODES, name, {"status": body["status"]}, subresource="status")
            await self._create(kinds.CSI_NODES, bodies.csi_node(node))

    async def start_controllers(self) -> None:
        self._plane, informers = Background("control plane"), Informers(self._watching)
        plane = self._plane

        def recorder(component: str) -> EventRecorder:
            made = EventRecorder(self.client, component, clock=self.clock)
            plane.start(supervise(f"events of {component}", made.run), "events")
            return made

        kubelets = Kubelets(self.client, informers, self.clock, lambda _pod: None)
        scheduler = Scheduler(self.client, informers, recorder("scheduler"), clock=self.clock)
        loops = control_plane(self.client, informers, recorder, clock=self.clock, scheduler=scheduler)
        informers.start()
        for name, loop in loops.items():
            plane.start(supervise(name, loop.run), name)
        self._ends = [kubelets.close, plane.close, informers.close]

    async def stop_controllers(self) -> None:
        for end in self._ends:
            await end()
        self._ends = []

    async def _create(self, kind: Kind[Any], body: Mapping[str, Any], namespace: str = "") -> None:
        with suppress(ApiError):
            await self.client.create(kind, body, namespace)

    # What users do

    async def make_pod(self) -> None:
        """One with a new claim, an existing one, or an ephemeral volume."""
        self.made += 1
        kind = self.random.choice(("claim", "again", "ephemeral", "two"))
        storage = self.random.choice(sorted(CLASSES))
        spec = bodies.claim_spec(storage, self.random.choice((1, 3, 9)) * GIB)
        claims = [claim.metadata.name for claim in await self.claims() if not claim.metadata.owner_references]
        if kind == "ephemeral":
            await self._pod([{"name": "v0", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}])
        elif kind == "again" and claims:
            await self._pod_of([self.random.choice(claims)])
        else:
            wanted = [f"claim-{self.made}-{number}" for number in range(2 if kind == "two" else 1)]
            for claim in wanted:
                await self._create(kinds.CLAIMS, {"metadata": {"name": claim}, "spec": spec}, "default")
            await self._pod_of(wanted)

    async def _pod_of(self, claims: Sequence[str]) -> None:
        await self._pod([{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims])

    async def _pod(self, volumes: Sequence[Mapping[str, Any]]) -> None:
        spec = {"containers": [{"name": "main", "image": "simulated"}], "volumes": volumes}
        await self._create(kinds.PODS, {"metadata": {"name": f"pod-{self.made}"}, "spec": spec}, "default")

    async def delete_pod(self) -> None:
        if pods := await self.pods():
            pod = self.random.choice(pods)
            for claim in await self.claims():
                if any(owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references):
                    self.forget(claim.metadata.uid)
            with suppress(ApiError):
                await self.client.delete(kinds.PODS, pod.metadata.name, "default", grace_seconds=0)

    async def delete_claim(self) -> None:
        if claims := await self.claims():
            claim = self.random.choice(claims)
            self.forget(claim.metadata.uid)
            with suppress(ApiError):
                await self.client.delete(kinds.CLAIMS, claim.metadata.name, "default", uid=claim.metadata.uid)

    async def reuse(self) -> None:
        """A person gives the volume of a deleted claim to another one; a backup may have it as it was between the two."""
        bound = [
            claim for claim in await self.claims() if claim.status.phase == "Bound" and not claim.metadata.deleting
        ]
        if not bound:
            return
        claim = self.random.choice(bound)
        for node in self.nodes.values():
            await node.kill()
        self.forget(claim.metadata.uid)
        with suppress(ApiError):
            volume = await self.client.get(kinds.VOLUMES, claim.spec.volume_name)
            self.data.pop(_made(volume), None)  # also what another claim wrote that a backup does not know
            for pod in await self.pods():
                if claim.metadata.name in pod.claim_names():
                    await self.client.delete(kinds.PODS, pod.metadata.name, "default", grace_seconds=0)
            await self.client.delete(kinds.CLAIMS, claim.metadata.name, "default")
            await asyncio.sleep(40)
            await self.back_up()
            self.made += 1
            name = await self.random.choice((self._free, self._write_another))(claim.spec.volume_name)
            spec = bodies.claim_spec(claim.spec.storage_class_name or "", GIB) | {"volumeName": name}
            await self._create(kinds.CLAIMS, {"metadata": {"name": f"claim-{self.made}"}, "spec": spec}, "default")
            await self._pod_of([f"claim-{self.made}"])
            await asyncio.sleep(40)
        for node in self.nodes.values():
            node.start()
        await asyncio.sleep(self.random.choice((0.01, 1, 60)))
        await self.write()

    async def _free(self, name: str) -> str:
        """A PersistentVolume that any claim may have."""
        spec = {"claimRef": None, "persistentVolumeReclaimPolicy": "Retain"}
        await self.client.patch(kinds.VOLUMES, name, {"spec": spec})
        return name

    async def _write_another(self, name: str) -> str:
        """Another PersistentVolume of the same volume, with or without the first one."""
        old = json.loads(await self.client.read(f"/api/v1/persistentvolumes/{name}"))["spec"]
        kept = {"persistentVolumeReclaimPolicy": "Retain"}
        await self.client.patch(kinds.VOLUMES, name, {"metadata": {"finalizers": None}, "spec": kept})
        if self.random.random() < 0.5:
            await self.client.delete(kinds.VOLUMES, name)
        made, left_out = f"mine-{self.made}", ("claimRef", "persistentVolumeReclaimPolicy")
        spec = {key: value for key, value in old.items() if key not in left_out}
        await self.client.create(kinds.VOLUMES, {"metadata": {"name": made}, "spec": {**spec, **kept}})
        return made

    async def make_snapshot(self) -> None:
        claims = [claim.metadata.name for claim in await self.claims() if claim.status.phase == "Bound"]
        if claims:
            self.made += 1
            source = {"persistentVolumeClaimName": self.random.choice(claims)}
            spec = {"source": source, "volumeSnapshotClassName": "snapshots"}
            body = {"metadata": {"name": f"snapshot-{self.made}"}, "spec": spec}
            await self._create(kinds.SNAPSHOTS, body, "default")

    async def delete_snapshot(self) -> None:
        found = (await self.client.list(kinds.SNAPSHOTS, "default")).items
        if found:
            snapshot = self.random.choice(found)
            self.forget(snapshot.metadata.uid)
            with suppress(ApiError):
                await self.client.delete(kinds.SNAPSHOTS, snapshot.metadata.name, "default")

    def forget(self, owner: str) -> None:
        """Its user deletes it: the data may go from now on."""
        self.data = {name: written for name, written in self.data.items() if written.owner != owner}

    async def forget_gone_nodes(self) -> None:
        """Pods of a node without a Node object are deleted by Kubernetes, and with them their ephemeral claims."""
        present = {node.metadata.name for node in (await self.client.list(kinds.NODES)).items}
        ended = {pod.metadata.uid for pod in await self.pods() if pod.spec.node_name not in {"", *present}}
        for claim in await self.claims():
            if ended & {owner.uid for owner in claim.metadata.owner_references}:
                self.forget(claim.metadata.uid)

    # What kubelets and the snapshot controller do

    async def write(self) -> None:
        """Pods that run write into their volumes, and snapshots that are ready are to be kept."""
        claims = {claim.metadata.name: claim for claim in await self.claims()}
        for pod in await self.pods():
            if pod.metadata.deleting or pod.status.phase != "Running":
                continue
            for volume in pod.spec.volumes:
                name = claim_name(pod.metadata.name, volume)
                if (claim := claims.get(name)) is not None and not claim.metadata.deleting:
                    await self._write_volume(pod.spec.node_name, claim)
        for content in (await self.client.list(kinds.SNAPSHOT_CONTENTS)).items:
            handle, meta = content.status.snapshot_handle, content.metadata
            if handle and content.status.ready_to_use and not meta.deleting:
                await self._keep(meta.labels.get(names.NODE_LABEL, ""), handle, content.spec.volume_snapshot_ref.uid)

    async def _write_volume(self, node: str, claim: PersistentVolumeClaim) -> None:
        with suppress(ApiError, CsiError):
            volume = await self.client.get(kinds.VOLUMES, claim.spec.volume_name)
            ref, csi = volume.spec.claim_ref, volume.spec.csi
            if ref is None or ref.uid != claim.metadata.uid or csi is None:
                return
            place = self.folder / "stage"
            await self.nodes[node].kubelet.stage(csi.volume_handle, place, VolumeCapability())
            await self._keep(node, csi.volume_handle, claim.metadata.uid)
            await self.nodes[node].kubelet.unstage(csi.volume_handle, place)

    async def _keep(self, node: str, handle: str, owner: str) -> bool:
        """Note that there are bytes; False where it is not there (any more), which is no fault where nobody wrote."""
        name = handle.rpartition("/")[2]
        made = (await self.nodes[node].identities()).get(name) if node in self.nodes else None
        if made is None:
            return False
        self.nodes[node].pool.fake.used.add(name)
        known = self.data.get(name)
        is_first = name == names.volume_name(owner)  # a backup may be of the time before a person gave it away
        assert known is None or known.owner == owner or is_first, f"{name} of {known} was given to {owner}"
        self.data.setdefault(name, Written(node, owner, made))
        return True

    # What happens to clusters

    async def back_up(self) -> None:
        self.backups.append(self.front.back_up())
        self.keep_records()

    def keep_records(self) -> None:
        """Of each pool, as they are now."""
        for node in self.nodes.values():
            node.earlier.append(dict(node.pool.fake.records.volumes))

    async def restore(self) -> None:
        if self.backups:
            await self.front.restore(self.random.choice(self.backups))

    async def restore_while_an_agent_is_away(self) -> None:
        """Others write until the API server's version is past the one that it saw."""
        line = self.nodes[self.random.choice(NODES)].line
        line.cut()
        await self.restore()
        await self._write_others(self.random.choice((0, 300)))
        await asyncio.sleep(self.random.choice((0.1, 30)))
        line.mend()

    async def _write_others(self, count: int) -> None:
        """Writes of others: one object, past validation and admission, which nothing here is about."""
        store, key, revision = self.front.server.store, ObjectKey(kinds.CONFIG_MAPS.key, "default", "others"), 0
        if (found := store.get(key)) is not None:
            revision = found.revision
        for number in range(count):
            meta = {"name": key.name, "namespace": key.namespace, "uid": key.name}
            body = {**kinds.CONFIG_MAPS.head(), "metadata": meta, "data": {"number": str(number)}}
            revision = (await store.put(key, body, revision)).revision
            if number % 16 == 0:  # everybody else has a turn between
                await asyncio.sleep(0)

    async def lose_all(self) -> None:
        """The database is empty: another uid of kube-system, and the same names."""
        await self.front.restore(None)
        await self.make_objects()

    async def lose_some(self) -> None:
        """Objects vanish that no user deletes."""
        store = self.front.server.store
        kind = self.random.choice(
            (kinds.VOLUMES, kinds.NODES, kinds.SNAPSHOT_CONTENTS, kinds.CAPACITIES, kinds.STORAGE_CLASSES)
        )
        if records := store.records(kind.plural):
            victim = self.random.choice(records)
            await store.remove(victim.key, victim.decode(), victim.revision)

    async def register_again(self) -> None:
        await self.make_objects()
        for name in NODES:
            await self.register(name)

    async def forget_records(self) -> None:
        """While a node's driver is down, records of its pool are lost, replaced by older ones, or by a stranger's."""
        node = self.nodes[self.random.choice(NODES)]
        await node.kill()
        pool, how = node.pool.fake, self.random.choice(("lost", "all lost", "older", "foreign", "put back"))
        records = dict(pool.records.volumes)
        if how == "lost" and records:
            del records[self.random.choice(sorted(records))]
        elif how == "all lost":
            records = {}
        elif how == "older" and node.earlier:
            records = self.random.choice(node.earlier)
        elif how == "foreign":
            records = {name: foreign(record) for name, record in records.items()}
        elif how == "put back":
            records = pool.newest
        pool.put(records)
        node.start()

    async def put_records_back(self) -> None:
        """As a person does who has copies."""
        for node in self.nodes.values():
            await node.kill()
            node.pool.fake.put(node.pool.fake.newest)
            node.start()

    async def kill_agent(self) -> None:
        node = self.nodes[self.random.choice(NODES)]
        await node.kill()
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.choice((0.1, 30, 700)))
        node.start()

    async def kill_controllers(self) -> None:
        await self.stop_controllers()
        await self.start_controllers()

    async def a_person_says_so(self) -> None:
        """Having looked at the PersistentVolumes that are Released, as docs/tasks/restore-cluster.md says."""
        living = {claim.metadata.uid for claim in await self.claims()}
        for volume in (await self.client.list(kinds.VOLUMES)).items:
            if volume.spec.claim_ref is not None and volume.spec.claim_ref.uid not in living:
                self.data.pop(_made(volume), None)
        for name in NODES:
            notes = {"metadata": {"annotations": {names.DELETIONS_STOPPED: None}}}
            with suppress(ApiError):
                await self.client.patch(kinds.NODES, name, notes)

    async def wait(self) -> None:
        await asyncio.sleep(self.random.choice((0.01, 0.3, 2, 40, 700)))

    async def jump(self) -> None:
        """The clocks jump eight days."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.advance(8 * DAY)
        await asyncio.sleep(2)

    # What must hold

    async def check(self) -> None:
        assert set(self.front.server.store.collections()) <= {kind.key for kind in KINDS}, "a kind is missing in KINDS"
        found = {name: await node.identities() for name, node in self.nodes.items()}
        for name, written in self.data.items():
            made = found[written.node].get(name)
            assert made == written.made, (
                f"{name} on {written.node} is {'gone' if made is None else 'another'}: {written}"
            )

    async def claims(self) -> list[PersistentVolumeClaim]:
        return list((await self.client.list(kinds.CLAIMS, "default")).items)

    async def pods(self) -> list[Pod]:
        return list((await self.client.list(kinds.PODS, "default")).items)


def _made(volume: PersistentVolume) -> str:
    """Name of a PersistentVolume's volume."""
    return volume.spec.csi.volume_handle.rpartition("/")[2] if volume.spec.csi is not None else ""


RULES: Mapping[str, int] = {
    "make_pod": 8, "delete_pod": 4, "delete_claim": 2, "reuse": 1, "make_snapshot": 2, "delete_snapshot": 1, "write": 6, "back_up": 3,
    "restore": 1, "restore_while_an_agent_is_away": 1, "lose_all": 1, "lose_some": 2, "register_again": 2, "kill_agent": 2, "forget_records": 2, "put_records_back": 1, "kill_controllers": 1,
    "a_person_says_so": 1, "wait": 8, "jump": 1,
}  # fmt: skip
"""Step -> how often it is taken, of all."""


async def _live(seed: int, folder: Path) -> Counter[str]:
    """One history. Returns how often each step was taken, and how many written volumes there were at the end."""
    random = Random(seed)
    world, counts = World(random, folder), Counter[str]()
    await world.start()
    try:
        for _ in range(STEPS):
            step = random.choices(list(RULES), list(RULES.values()))[0]
            world.told.append(step)
            counts[step] += 1
            await getattr(world, step)()
            await world.forget_gone_nodes()
            await world.check()
        await world.register_again()
        await world.put_records_back()
        await world.jump()
        await asyncio.sleep(700)  # each agent has swept
        await world.check()
        counts["volumes with data"] += len(world.data)
    except AssertionError as failure:
        failure.add_note(f"seed {seed}: {', '.join(world.told)}")
        raise
    finally:
        await world.stop()
    return counts


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_lost_that_a_pod_wrote(request: pytest.FixtureRequest) -> None:
    lives, first = request.config.getoption("--histories"), request.config.getoption("--history-seed")
    counts = Counter[str]()
    for seed in range(first, first + lives):
        with tempfile.TemporaryDirectory() as folder:
            loop = VirtualLoop()
            try:
                counts += loop.run_until_complete(_live(seed, Path(folder)))
            finally:
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()
    assert counts["volumes with data"], "nothing was shown"
    print(f"{lives} histories of a cluster: {dict(counts)}")
