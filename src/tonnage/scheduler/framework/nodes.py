"""Node table: a list for each property, indexed by node.

Filters and scores run over these lists. Pods are counted when they come and go, so a decision does not iterate over
them. Amounts are milli for cpu and whole units otherwise. Sans-I/O; the caller reports changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from tonnage.kubernetes.api.core import Node, Taint
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import CSINode
from tonnage.scheduler.framework.plugin import RejectionCause
from tonnage.scheduler.framework.pod_info import CPU, MEMORY, Amounts, Demand, Place, Port, UsedVolume, amounts_of

K = TypeVar("K", bound=Hashable)
_ALL_LOOKED_AT = 100
_HARD = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod on a node, and its resources.

    claims: keys of all claims it uses.
    """

    slot: int
    demand: Demand
    volumes: tuple[UsedVolume, ...]
    claims: tuple[str, ...]


class Columns:
    """All nodes.

    A node's index is assigned at its first event: of its object, its CSINode or a pod on it.
    """

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self.names: list[str] = []
        self.live: list[int] = []
        """Indices of existing Nodes, in the order of arrival; shuffled if they are many."""
        self.present: list[bool] = []
        self.labels: list[Mapping[str, str]] = []
        self.unschedulable: list[bool] = []
        self.taints: list[tuple[Taint, ...]] = []
        """Taints that keep pods away (NoSchedule, NoExecute)."""
        self.guarded: list[bool] = []
        """Whether a pod needs a toleration: cordoned or tainted."""
        self.soft_taints: list[tuple[Taint, ...]] = []
        self.allocatable: dict[str, list[int]] = {CPU: [], MEMORY: []}
        self._offered: list[Amounts] = []
        """allocatable by node."""
        self.free: dict[str, list[int]] = {CPU: [], MEMORY: []}
        """allocatable minus requested; negative where a node shrank or was overcommitted."""
        self.scored_cpu: list[int] = []
        self.scored_memory: list[int] = []
        self.ports: list[dict[Port, int]] = []
        self.inline: list[dict[Place, int]] = []
        """Bytes for inline volumes of pods that have not started yet."""
        self.limits: list[dict[str, int]] = []
        """Maximum volumes of a driver on a node, for drivers that report it."""
        self.attached: list[dict[str, dict[str, int]]] = []
        """driver -> claim key -> users, of the volumes on a node."""
        self.claim_users: dict[str, set[str]] = {}
        """claim key -> uids of the pods on any node that use it."""
        self.placed: dict[str, Placement] = {}
        self._random = Random(0)

    def slot(self, name: str) -> int:
        """Return the index of a node; assign it if it is new."""
        found = self.slots.get(name)
        if found is not None:
            return found
        self.slots[name] = slot = len(self.names)
        self.names.append(name)
        self.present.append(False)
        self.labels.append({})
        self.unschedulable.append(False)
        self.taints.append(())
        self.soft_taints.append(())
        self.guarded.append(False)
        for column in (*self.allocatable.values(), *self.free.values(), self.scored_cpu, self.scored_memory):
            column.append(0)
        self._offered.append({})
        self.ports.append({})
        self.inline.append({})
        self.limits.append({})
        self.attached.append({})
        return slot

    # Nodes

    def set_node(self, node: Node) -> RejectionCause:
        """Add or update a node; return what improved: NODE, RESOURCES. Raises: InvalidError for an invalid quantity."""
        amounts = amounts_of(node.status.allocatable)
        slot, better = self.slot(node.metadata.name), RejectionCause.NO
        if not self.present[slot]:
            self.present[slot] = True
            self._enlive(slot)
            better |= RejectionCause.NODE
        if self._set_allocatable(slot, amounts):
            better |= RejectionCause.RESOURCES
        if self.labels[slot] != node.metadata.labels:
            self.labels[slot] = node.metadata.labels
            better |= RejectionCause.NODE
        hard = tuple(t for t in node.spec.taints if t.effect in _HARD)
        if not set(self.taints[slot]) <= set(hard) or (self.unschedulable[slot] and not node.spec.unschedulable):
            better |= RejectionCause.NODE
        self.taints[slot] = hard
        self.soft_taints[slot] = tuple(t for t in node.spec.taints if t.effect == "PreferNoSchedule")
        self.unschedulable[slot] = node.spec.unschedulable
        self.guarded[slot] = bool(hard) or node.spec.unschedulable
        return better

    def _enlive(self, slot: int) -> None:
        """Insert a node into `live`.

        In large clusters at a random position: adjacent nodes should not share a rack or zone.
        """
        live = self.live
        live.append(slot)
        if len(live) > _ALL_LOOKED_AT:
            other = self._random.randrange(len(live))
            live[other], live[-1] = live[-1], live[other]

    def remove_node(self, name: str) -> None:
        """Remove a node; its pods stay counted until they are removed."""
        slot = self.slots.get(name)
        if slot is None or not self.present[slot]:
            return
        self.present[slot] = False
        self.live.remove(slot)
        self._set_allocatable(slot, {})
        self.labels[slot] = {}
        self.taints[slot], self.soft_taints[slot], self.unschedulable[slot] = (), (), False
        self.guarded[slot] = False

    def _set_allocatable(self, slot: int, amounts: Amounts) -> bool:
        more, before = False, self._offered[slot]
        self._offered[slot] = amounts
        for resource in amounts.keys() | before.keys():
            allocatable = self.allocatable.get(resource) or self._column(resource)
            change = amounts.get(resource, 0) - allocatable[slot]
            if change:
                allocatable[slot] += change
                self.free[resource][slot] += change
                more = more or change > 0
        return more

    def _column(self, resource: str) -> list[int]:
        self.free[resource] = [0] * len(self.names)
        self.allocatable[resource] = column = [0] * len(self.names)
        return column

    def free_of(self, resource: str, slot: int) -> int:
        """Return a resource's free amount on a node; 0 of an unknown one."""
        column = self.free.get(resource)
        return 0 if column is None else column[slot]

    def allocatable_of(self, resource: str, slot: int) -> int:
        """Return how much of a resource a node has; 0 of an unknown one."""
        return self._offered[slot].get(resource, 0)

    def set_limits(self, csi_node: CSINode) -> RejectionCause:
        """Update the volume limits of the node's drivers."""
        slot = self.slot(csi_node.metadata.name)
        old, new = self.limits[slot], {}
        for driver in csi_node.spec.drivers:
            if driver.allocatable is not None and driver.allocatable.count is not None:
                new[driver.name] = driver.allocatable.count
        self.limits[slot] = new
        raised = any(new.get(driver, count + 1) > count for driver, count in old.items())
        return RejectionCause.LIMITS if raised else RejectionCause.NO

    def clear_limits(self, name: str) -> None:
        """Remove the limits of a node whose CSINode is gone."""
        if name in self.slots:
            self.limits[self.slots[name]] = {}

    # Pods

    def place(
        self, uid: str, node: str, demand: Demand, volumes: Iterable[UsedVolume] = (), claims: Iterable[str] = ()
    ) -> None:
        """Count a pod on a node; idempotent. A pod on another node is moved."""
        placement = Placement(self.slot(node), demand, tuple(sorted(volumes)), tuple(claims))
        old = self.placed.get(uid)
        if old == placement:
            return
        if old is not None:
            self.lift(uid)
        self.placed[uid] = placement
        self._count(placement, 1)
        for claim in placement.claims:
            self.claim_users.setdefault(claim, set()).add(uid)

    def lift(self, uid: str) -> RejectionCause:
        """Stop counting a pod; return what improved. An unknown one is ignored."""
        placement = self.placed.pop(uid, None)
        if placement is None:
            return RejectionCause.NO
        self._count(placement, -1)
        for claim in placement.claims:
            users = self.claim_users[claim]
            users.discard(uid)
            if not users:
                del self.claim_users[claim]
        demand, better = placement.demand, RejectionCause.RESOURCES
        better |= RejectionCause.PORTS if demand.ports else RejectionCause.NO
        better |= RejectionCause.LIMITS if placement.volumes else RejectionCause.NO
        better |= RejectionCause.STORAGE if demand.inline else RejectionCause.NO  # it will not use what was expected
        return better | (RejectionCause.EXCLUSIVE if placement.claims else RejectionCause.NO)

    def _count(self, placement: Placement, sign: int) -> None:
        slot, demand = placement.slot, placement.demand
        for resource, amount in demand.requests:
            if resource not in self.free:
                self._column(resource)
            self.free[resource][slot] -= sign * amount
        self.scored_cpu[slot] += sign * demand.scored[0]
        self.scored_memory[slot] += sign * demand.scored[1]
        for port in demand.ports:
            tally(self.ports[slot], port, sign)
        for use in demand.inline:
            tally(self.inline[slot], use.place, sign * use.size)
        for driver, volume in placement.volumes:
            self.attach(slot, driver, volume, sign)

    def attach(self, slot: int, driver: str, volume: str, sign: int) -> None:
        """Count (sign 1) or uncount (-1) one user of a volume on a node."""
        tally(self.attached[slot].setdefault(driver, {}), volume, sign)

    def has_capacity(self, slot: int, demand: Demand) -> bool:
        """Return whether the node has the resources that the pod requests."""
        return all(self.free_of(resource, slot) >= amount for resource, amount in demand.requests)


def tally(counts: dict[K, int], key: K, change: int) -> None:
    """Add to the count of key; a count of 0 is removed."""
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)


class Residents:
    """Pods that are counted on nodes, also assumed ones."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, Pod]] = {}
        self._where: dict[str, tuple[str, int]] = {}
        self._priorities: Counter[int] = Counter()
        self.generation = 0
        """Incremented with every pod that comes."""

    def put(self, pod: Pod, node: str) -> None:
        """Add or update a pod on a node."""
        uid = pod.metadata.uid
        self.generation += uid not in self._where
        self.drop(uid)
        self._on.setdefault(node, {})[uid] = pod
        self._where[uid] = node, pod.spec.priority or 0
        self._priorities[pod.spec.priority or 0] += 1

    def drop(self, uid: str) -> None:
        """Remove a pod. An unknown one is ignored."""
        node, priority = self._where.pop(uid, ("", 0))
        if not node:
            return
        del self._on[node][uid]
        if not self._on[node]:
            del self._on[node]
        tally(self._priorities, priority, -1)

    def __contains__(self, uid: object) -> bool:
        return uid in self._where

    def is_going(self, uid: str) -> bool:
        """Return whether the pod is being deleted."""
        pod = self._on.get(self._where[uid][0], {}).get(uid) if uid in self._where else None
        return pod is not None and pod.metadata.deleting

    def on(self, node: str) -> Collection[Pod]:
        """Return the pods of a node."""
        return self._on.get(node, {}).values()

    def below(self, priority: int) -> bool:
        """Return whether any node has a pod of lower priority."""
        return any(other < priority for other in self._priorities)
