"""The tiers of a node (tier.py): which labels it should have, and which classes it publishes by objects of its own.

The agent keeps to an order, so that at no moment, also after a kill between two writes, more is promised than there is,
or nothing at all:

1. A label that says more than there is goes down first.
2. Objects of its own come where no tier will do: there is too little room, the tier has no object yet, or a claim that
   no tier admits is waited for (names.EXACT_CAPACITY_NODES).
3. Then labels change, each only if the class has an object of its own or the new tier has one.
4. Objects of its own go last, where the label and the object of its tier are there.

So no agent depends on the controller: as long as nobody makes a tier's object, the agent publishes exactly. Classes
that share room do as one: were one exact and the other not, no scheduler could tell that they draw on the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from tonnage.aio.clock import Clock
from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.kinds import CAPACITIES, NODES
from tonnage.api.storage import CSIStorageCapacity
from tonnage.capacity import tier
from tonnage.capacity.tier import Notice
from tonnage.errors import ApiError, ApiNotFound
from tonnage.kube.client import Client
from tonnage.kube.informer import Informers

log = logging.getLogger(__name__)
_FORBIDDEN = 403
REFUSED_PAUSE = 300.0
"""Seconds for which an agent that may not label its node publishes exactly, before it tries again."""


@dataclass(frozen=True)
class TierWant:
    """A class of this node. room: the name of the bytes that it draws on; largest: the largest volume that it could
    have; usual: what is usually asked (bytes both); tierable: False for what is only ever published exactly."""

    storage_class: str
    room: str
    largest: int
    usual: int
    tierable: bool = True


@dataclass(frozen=True)
class TierPlan:
    """tiers: class -> the tier that it should be in, 0 for none; largest: of each class; own: classes that are to be
    published by objects of their own."""

    tiers: dict[str, int]
    largest: dict[str, int]
    own: frozenset[str]


class NodeTiers:
    """plan() says what should be; lower() and settle() write labels. wake: called when the plan may have changed."""

    def __init__(
        self, client: Client, informers: Informers, *, node: str, mode: str, namespace: str, clock: Clock
    ) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.writes = 0
        """Patches of the Node so far."""
        self._client, self._node, self._clock = client, node, clock
        self._mode, self._namespace = mode, namespace
        self._told: Node | None = None
        self._refused_until = float("-inf")
        self._nodes = informers.of(NODES, fields=f"metadata.name={node}")
        self._nodes.cache.on_change(self._node_changed)
        self._tiers = informers.of(CAPACITIES, namespace=namespace, labels=names.TIER) if mode != "exact" else None
        if self._tiers is not None:
            self._tiers.cache.on_change(self._tier_changed)

    async def wait_synced(self) -> None:
        """Wait until it is known what the node says, and which tiers there are."""
        await self._nodes.wait_synced()
        if self._tiers is not None:
            await self._tiers.wait_synced()

    def plan(self, wants: Iterable[TierWant]) -> TierPlan:
        """What should be."""
        found = list(wants)
        rooms: dict[str, list[TierWant]] = {}
        for want in found:
            if want.tierable and self._is_on(want.storage_class):
                rooms.setdefault(want.room, []).append(want)
        tiers, own = dict.fromkeys((want.storage_class for want in found), 0), set[str]()
        for sharing in rooms.values():
            chosen = {w.storage_class: tier.choose(w.largest, self.now(w.storage_class), w.usual) for w in sharing}
            if all(chosen.values()):
                tiers |= chosen
            if not all(self._will_do(w, tiers[w.storage_class]) for w in sharing):
                own |= chosen.keys()
        own |= {want.storage_class for want in found if not tiers[want.storage_class]}
        return TierPlan(tiers, {want.storage_class: want.largest for want in found}, frozenset(own))

    def _is_on(self, storage_class: str) -> bool:
        """Whether the class's tiers are to be used now."""
        if self._tiers is None or self._clock.monotonic() < self._refused_until:
            return False
        return self._mode == "tiers" or self._notice(storage_class) is not None

    def _will_do(self, want: TierWant, chosen: int) -> bool:
        """Whether a tier is published, and no claim is waited for that it does not admit and this node might."""
        if not chosen or not self._is_published(want.storage_class, chosen):
            return False
        notice = self._notice(want.storage_class) or Notice()
        return self._node not in notice.exact_on or not chosen < notice.exact_from <= want.largest

    def _object(self, storage_class: str, value: str) -> CSIStorageCapacity | None:
        name = f"{self._namespace}/{tier.object_name(storage_class, value)}"
        return self._tiers.cache.get(name) if self._tiers is not None else None

    def _notice(self, storage_class: str) -> Notice | None:
        obj = self._object(storage_class, names.TIER_NOTICE)
        return None if obj is None else tier.read_notice(obj)

    def _is_published(self, storage_class: str, chosen: int) -> bool:
        return self._object(storage_class, tier.as_label(chosen)) is not None

    # Labels

    def now(self, storage_class: str) -> int:
        """The tier in which the node says it is, 0 for none."""
        return tier.of_node(self._labels(), storage_class)

    def is_settled(self, plan: TierPlan, storage_class: str) -> bool:
        """Whether the class needs no object of its own, and the label that stands for it is there."""
        return storage_class not in plan.own and self.now(storage_class) == plan.tiers[storage_class]

    async def lower(self, plan: TierPlan) -> None:
        """Take back what is promised and not there. May be repeated. Raises ApiError, Unavailable."""
        low = [name for name, most in plan.largest.items() if self.now(name) > most]
        await self._write({names.tier_label(name): plan.tiers[name] for name in low})

    async def settle(self, plan: TierPlan, *, published: Collection[str], known: Sequence[str] | None) -> None:
        """Bring the labels to what is planned, as far as that leaves no class without capacity. May be repeated.

        published: classes that have objects of their own; known: all classes of this node, None while that is not
        known: labels of others go. Raises ApiError, Unavailable.
        """
        wanted = {names.tier_label(name): chosen for name, chosen in plan.tiers.items()}
        ready = [name for name in plan.tiers if name in published or name not in plan.own]
        change = {names.tier_label(name): plan.tiers[name] for name in ready}
        if known is not None:
            keys = {names.tier_label(name) for name in known} | wanted.keys()
            change |= dict.fromkeys(tier.labels_of(self._labels()).keys() - keys, 0)
        await self._write(change)

    async def _write(self, wanted: dict[str, int]) -> None:
        """Write those that differ; where that is forbidden, publish exactly for a while."""
        labels = self._labels()
        values = {key: tier.as_label(chosen) if chosen else None for key, chosen in wanted.items()}
        change = {key: value for key, value in values.items() if labels.get(key) != value}
        if not change or self._current() is None or self._clock.monotonic() < self._refused_until:
            return
        try:
            self._told = await self._client.patch(NODES, self._node, {"metadata": {"labels": change}})
        except ApiNotFound:
            return
        except ApiError as failure:
            if failure.code != _FORBIDDEN:
                raise
            self._refused_until = self._clock.monotonic() + REFUSED_PAUSE
            log.warning("tier not told, capacity is published exactly node=%s error=%s", self._node, failure)
            self.wake()
            return
        self.writes += 1
        log.info("tier of node=%s labels=%s", self._node, change)

    def _labels(self) -> dict[str, str]:
        node = self._current()
        return node.metadata.labels if node is not None else {}

    def _current(self) -> Node | None:
        """The Node as it was last told: by the watch, or by our own write, which the watch may not have told yet."""
        node, told = self._nodes.cache.get(self._node), self._told
        if node is None or told is None or told.metadata.uid != node.metadata.uid:
            return node
        return told if int(told.metadata.resource_version) > int(node.metadata.resource_version) else node

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Only labels of ours: somebody may have changed them."""
        if new is not None and (old is None or _tiers(old) != _tiers(new)):
            self.wake()

    def _tier_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        """A tier of a class came or went, or its notice asks for something."""
        self.wake()


def _tiers(node: Node) -> dict[str, str]:
    return tier.labels_of(node.metadata.labels)
