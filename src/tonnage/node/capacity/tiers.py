"""Tiers of a node: its labels, and classes that it publishes exactly.

The agent writes in this order. At no moment, also after a kill between two writes, is more published than there is, and
no class is without capacity:

1. Lower labels that exceed the capacity. 2. Create own objects where no tier suffices: capacity is too small, the tier
has no object yet, or there is a request for exact capacity. 3. Change labels, each only if the class has an own object
or the new tier has one. 4. Delete own objects where the label and the tier's object are there.

No agent depends on the controller: without tier objects it publishes exactly. Classes that share bytes change together.
Otherwise a scheduler could not see that an exact object and a tier use the same bytes.
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
from tonnage.errors import ApiError, ApiNotFoundError
from tonnage.kube.client import Client
from tonnage.kube.informer import Informers
from tonnage.node.config.agent import AgentConfig

log = logging.getLogger(__name__)
_FORBIDDEN = 403
REFUSED_PAUSE = 300.0
"""Seconds until an agent that may not label its node retries."""


@dataclass(frozen=True)
class TierWant:
    """Inputs of the tier of one class.

    room: identifies the bytes that the class uses. largest: the largest volume that it could create, in bytes. usual:
    the usual request, in bytes. tierable: False for a class that is always published exactly.
    """

    storage_class: str
    room: str
    largest: int
    usual: int
    tierable: bool = True


@dataclass(frozen=True)
class TierPlan:
    """Tiers of all classes.

    tiers: class -> its tier, 0 for none. largest: of each class. own: classes that are published by own objects.
    """

    tiers: dict[str, int]
    largest: dict[str, int]
    own: frozenset[str]


class NodeTiers:
    """Plans and writes the tier labels of this node.

    plan() returns the desired state, lower() and settle() write labels. wake: called when the plan may have changed.
    """

    def __init__(self, client: Client, informers: Informers, config: AgentConfig, clock: Clock) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.writes = 0
        """Patches of the Node so far."""
        node, mode, namespace = config.node_name, config.capacity, config.namespace
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
        """Wait until the Node's labels and all tier objects are known."""
        await self._nodes.wait_synced()
        if self._tiers is not None:
            await self._tiers.wait_synced()

    def plan(self, wants: Iterable[TierWant]) -> TierPlan:
        """Return the desired tiers and own objects."""
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
        """Return whether the class's tiers are in use now."""
        if self._tiers is None or self._clock.monotonic() < self._refused_until:
            return False
        return self._mode == "tiers" or self._notice(storage_class) is not None

    def _will_do(self, want: TierWant, chosen: int) -> bool:
        """Return whether the tier suffices.

        True if the tier has an object and no request for exact capacity names this node.
        """
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
        """Return the tier that the Node's label says, 0 for none."""
        return tier.of_node(self._labels(), storage_class)

    def is_settled(self, plan: TierPlan, storage_class: str) -> bool:
        """Return whether the class needs no own object and its label is written."""
        return storage_class not in plan.own and self.now(storage_class) == plan.tiers[storage_class]

    async def lower(self, plan: TierPlan) -> None:
        """Lower labels that exceed the capacity. Idempotent.

        Raises: ApiError, Unavailable.
        """
        low = [name for name, most in plan.largest.items() if self.now(name) > most]
        await self._write({names.tier_label(name): plan.tiers[name] for name in low})

    async def settle(self, plan: TierPlan, *, published: Collection[str], known: Sequence[str] | None) -> None:
        """Write the planned labels where no class loses its capacity. Idempotent.

        published: classes that have own objects. known: all classes of this node, whose labels stay; None while that is
        not known.

        Raises: ApiError, Unavailable.
        """
        wanted = {names.tier_label(name): chosen for name, chosen in plan.tiers.items()}
        ready = [name for name in plan.tiers if name in published or name not in plan.own]
        change = {names.tier_label(name): plan.tiers[name] for name in ready}
        if known is not None:
            keys = {names.tier_label(name) for name in known} | wanted.keys()
            change |= dict.fromkeys(tier.labels_of(self._labels()).keys() - keys, 0)
        await self._write(change)

    async def _write(self, wanted: dict[str, int]) -> None:
        """Write labels that differ; if that is forbidden, publish exactly for a while."""
        labels = self._labels()
        values = {key: tier.as_label(chosen) if chosen else None for key, chosen in wanted.items()}
        change = {key: value for key, value in values.items() if labels.get(key) != value}
        if not change or self._current() is None or self._clock.monotonic() < self._refused_until:
            return
        try:
            self._told = await self._client.patch(NODES, self._node, {"metadata": {"labels": change}})
        except ApiNotFoundError:
            return
        except ApiError as failure:
            if failure.code != _FORBIDDEN:
                raise
            self._refused_until = self._clock.monotonic() + REFUSED_PAUSE
            log.warning("tier label not written, capacity is published exactly node=%s error=%s", self._node, failure)
            self.wake()
            return
        self.writes += 1
        log.info("tier of node=%s labels=%s", self._node, change)

    def _labels(self) -> dict[str, str]:
        node = self._current()
        return node.metadata.labels if node is not None else {}

    def _current(self) -> Node | None:
        """Return the newest known Node, from the watch or our own last write."""
        node, told = self._nodes.cache.get(self._node), self._told
        if node is None or told is None or told.metadata.uid != node.metadata.uid:
            return node
        return told if told.metadata.version > node.metadata.version else node

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Check only our labels: somebody may have changed them."""
        if new is not None and (old is None or _tiers(old) != _tiers(new)):
            self.wake()

    def _tier_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        """Handle a tier object that came or went, or a request for exact capacity."""
        self.wake()


def _tiers(node: Node) -> dict[str, str]:
    return tier.labels_of(node.metadata.labels)
