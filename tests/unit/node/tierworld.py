"""Nodes with real publishers and ledgers, the controller's real loops and a scheduler that believes what is published, as
kube-scheduler does; all over a FakeKube, one step at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from tests.unit.controller.contexts import context
from tests.unit.node.fakekube import FakeKube, Killed

from tonnage.base.errors import ApiError
from tonnage.controller.tier_hints import TierNotices
from tonnage.controller.tier_objects import CapacityTiers
from tonnage.csi.client import types
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.node.capacity.publisher import CapacityPublisher
from tonnage.node.config.agent import AgentConfig
from tonnage.provisioning.capacity import tier
from tonnage.provisioning.capacity.ledger import Ledger
from tonnage.provisioning.claims.node_scope import DriverInfo, DriverSet

SYSTEM, CLASS = names.SYSTEM_NAMESPACE, "late"
GIB = 1 << 30


class Clock:
    """Time that the world moves."""

    now = 1_000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    time = monotonic


class _Events:
    def warning(self, *arguments: Any) -> None:
        raise AssertionError(f"nobody tampers here: {arguments}")


class _NoFaults:
    def get(self, source: Any) -> str:
        return ""


class _Readings:
    """The one class of a node."""

    def __init__(self, storage_class: StorageClass, drivers: DriverSet, ledger: Ledger) -> None:
        self._class, self.faults = storage_class, _NoFaults()
        self.drivers, self.ledger = drivers, ledger

    def sources(self, driver: DriverInfo) -> dict[Any, StorageClass]:
        return {driver.source(self._class): self._class}


class Node:
    """A node: what its pool has left, and its agent. Sizes are whole GiB where a name does not say bytes."""

    def __init__(self, world: World, name: str, size: int) -> None:
        self.world, self.name, self.free = world, name, size
        labels = {names.TOPOLOGY_NODE: name}
        world.kube.put(kinds.NODES, name, {"metadata": {"labels": labels}})
        plugin = frozenset({types.VOLUME_ACCESSIBILITY_CONSTRAINTS})
        pools = {"scratch": "memory"}
        nobody: Any = None
        self.driver = DriverInfo(nobody, names.DRIVER, "scratch", plugin, frozenset(), labels, "", pools)
        self.source = self.driver.source(world.storage_class)
        self.unseen: list[int] = []
        """Sizes of the claims that came since the agent last published all."""
        self.was_published = False
        """When the agent began to publish, truly."""
        self.ledger = Ledger()
        self.read()
        self.start()

    def start(self) -> None:
        """Begin the agent anew; the ledger is what it would rebuild."""
        world, drivers = self.world, DriverSet()
        drivers.add(self.driver)
        drivers.complete = True
        kube: Any = world.kube
        clock: Any = world.clock
        events: Any = _Events()
        readings: Any = _Readings(world.storage_class, drivers, self.ledger)
        config = AgentConfig(self.name, capacity=world.mode, namespace=SYSTEM, cluster_uid="cluster")
        self.publisher = CapacityPublisher(kube, kube, events, config, readings, clock)

    def read(self) -> None:
        """GetCapacity."""
        self.ledger.read(self.source, self.ledger.begin(), self.free * GIB, self.free * GIB)

    def take(self, uid: str, size: int) -> bool:
        """A claim is sent here; whether its volume was made."""
        self.unseen.append(size)
        self.ledger.see(uid, self.source, size * GIB, attempt="0", version=self.world.tick(), now=0.0)
        if self.ledger.reserve([uid]) is not None:
            self.ledger.reject([uid])
            self.ledger.forget(uid)
            return False
        self.ledger.start(uid)
        self.free -= size
        self.ledger.made(uid, size * GIB)
        self.read()
        return True

    def give(self, size: int) -> None:
        """A volume goes."""
        self.free += size
        self.read()

    def promised(self) -> int:
        """The most that the tier in which the node is promises for it, in bytes; 0 where none has an object."""
        return max((to_bytes(o.capacity or "0") for o in self.world.reached(self.name) if tier.is_tier(o)), default=0)

    def is_published(self) -> bool:
        """Whether schedulers know of any room here."""
        return any(to_bytes(o.capacity or "0") > 0 for o in self.world.reached(self.name))

    async def publish(self, *, killed: int = 0, rejected: bool = False) -> None:
        """Let the agent publish; if killed, it is killed before that write of it and begins anew; rejected: it can make
        no object."""
        self.world.kube.rejects = rejected
        self.world.kube.kill_at, self.world.writing = killed, self.name
        self.was_published = self.is_published() and self.promised() <= self.free * GIB
        try:
            while (pause := await self.publisher.publish()) is not None:
                self.world.clock.now += pause
            self.unseen = []
        except Killed:
            self.start()
        except ApiError:
            assert rejected
        finally:
            self.world.kube.rejects = False
            self.world.kube.kill_at, self.world.writing = 0, ""


class World:
    """One class, some nodes, pods with one claim each. end() it."""

    def __init__(self, *sizes: int, mode: str = "auto") -> None:
        self.loop = asyncio.new_event_loop()
        self.nodes: dict[str, Node] = {}
        self.run(self._begin(sizes, mode))

    async def _begin(self, sizes: Sequence[int], mode: str) -> None:
        self.kube, self.clock, self.mode = FakeKube(), Clock(), mode
        self.writing = ""
        """The node whose agent is writing now."""
        self._tick = 0
        self.made: dict[str, tuple[str, int]] = {}
        """Claim -> node and size of its volume."""
        self.withdrawn = 0
        body = {"provisioner": names.DRIVER, "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
        self.storage_class: StorageClass = self.kube.put(kinds.STORAGE_CLASSES, CLASS, body)
        for number, size in enumerate(sizes):
            self.nodes[f"n{number}"] = Node(self, f"n{number}", size)
        kube: Any = self.kube
        clock: Any = self.clock
        keeps = "exact" if mode == "exact" else "tiers"
        self._tiers = CapacityTiers(context(kube, kube, capacity=keeps, namespace=SYSTEM, clock=clock))
        self._notices = TierNotices(context(kube, kube, namespace=SYSTEM, clock=clock))

    def end(self) -> None:
        """It is not needed any more."""
        self.loop.close()

    def run(self, what: Awaitable[Any]) -> Any:
        """Do it."""
        return self.loop.run_until_complete(what)

    def tick(self) -> int:
        """A resourceVersion."""
        self._tick += 1
        return self._tick

    # Control plane

    async def control(self) -> None:
        """Let the controller look once."""
        await self._tiers.reconcile(CLASS)
        await self._notices.reconcile("all")

    async def settle(self) -> None:
        """Until nobody writes any more."""
        for _ in range(20):
            before = self.kube.writes
            self.clock.now += 2.0
            for node in self.nodes.values():
                await node.publish()
            await self.control()
            if self.kube.writes == before:
                return
        raise AssertionError("it never comes to rest")

    # Scheduler

    def reached(self, node: str) -> list[Any]:
        """The capacity objects that a node reaches."""
        there = self.kube.of(kinds.NODES).cache.get(node)
        assert there is not None
        labels = there.metadata.labels
        found = [o for o in self.kube.of(kinds.CAPACITIES).cache if o.node_topology is not None]
        return [o for o in found if from_label_selector(o.node_topology).matches(labels)]

    def admitted(self, size: int) -> list[str]:
        """The nodes on which kube-scheduler would put a claim, in some order."""
        wanted = size * GIB
        return [
            name
            for name in self.nodes
            if any(wanted <= to_bytes(o.maximum_volume_size or o.capacity or "0") for o in self.reached(name))
        ]

    async def ask(self, name: str, size: int) -> None:
        """A pod that its scheduler could not place, and its claim."""
        spec = {"storageClassName": CLASS, "resources": {"requests": {"storage": from_bytes(size * GIB)}}}
        self.kube.put(kinds.CLAIMS, name, {"spec": spec}, "default")
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": name}}
        body = {"spec": {"volumes": [volume]}, "status": {"phase": "Pending", "conditions": [condition]}}
        self.kube.put(kinds.PODS, name, body, "default")

    async def forget(self, name: str) -> None:
        """The pod and its claim wait no more."""
        self.kube.remove(kinds.PODS, name, "default")
        self.kube.remove(kinds.CLAIMS, name, "default")

    def send(self, name: str, node: str, size: int) -> bool:
        """Place a claim; whether its volume was made."""
        done = self.nodes[node].take(name, size)
        if done:
            self.made[name] = (node, size)
        else:
            self.withdrawn += 1
        return done

    def delete(self, name: str) -> None:
        """A volume goes."""
        node, size = self.made.pop(name)
        self.nodes[node].give(size)
