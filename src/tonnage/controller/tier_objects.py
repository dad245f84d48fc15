"""Capacity objects of tiers in use, and tier notices of classes.

A tier's object selects nodes by their tier label and publishes for each what the label says. It never changes: it is
created with the first node of the tier and deleted some time after the last. The notice of a class publishes no
capacity and selects no node. It says that tiers are in use, so that agents use them, and holds requests for exact
capacity. Without it agents publish exactly again, and unused tier objects are deleted.

`auto` uses tiers in clusters of more than AUTO_ABOVE nodes, until there are a fifth fewer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from tonnage.base.errors import ApiAlreadyExistsError, ApiNotFoundError
from tonnage.controller.config import LoopContext
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import CAPACITIES, NODES, STORAGE_CLASSES
from tonnage.kubernetes.api.storage import CSIStorageCapacity, StorageClass
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import delete_object
from tonnage.provisioning.capacity import tier
from tonnage.provisioning.capacity.tier import AUTO_ABOVE
from tonnage.provisioning.claims.timers import Waits

log = logging.getLogger(__name__)
NODES_BY_TIER = "capacity tiers: nodes by label"
TIERS_OF_CLASS = "capacity tiers: objects by class"
_UNUSED_SECONDS = 60.0
"""Seconds that an unused tier keeps its object: a node may return to it."""


class CapacityTiers(Reconciler[str]):
    """Loop over classes."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("capacity_tiers", workers=4)
        config, informers = context.config, context.informers
        self._client, self._mode, self._namespace = context.client, config.capacity, config.namespace
        self._handles, self._unused = context.handles, Waits(context.clock)
        classes = informers.of(STORAGE_CLASSES)
        self._classes = self.watch(classes, lambda old, new: ((new or old).metadata.name,))  # type: ignore[union-attr]
        self._capacities = self.watch(informers.of(CAPACITIES), self._capacity_changed)
        self._nodes = self.watch(informers.of(NODES), self._node_changed)
        self._nodes.add_index(NODES_BY_TIER, tiers_of)
        self._capacities.add_index(TIERS_OF_CLASS, class_of_tier)

    async def reconcile(self, key: str) -> float | None:
        """Write the objects of a class from its nodes' labels. Idempotent.

        Raises: ApiError.
        """
        storage_class = self._classes.get(key)
        objects = self._capacities.by(TIERS_OF_CLASS, key)
        here = {o.metadata.name: o for o in objects if o.metadata.namespace == self._namespace}
        wanted = self._wanted(storage_class, here) if storage_class is not None and self._serves(storage_class) else {}
        for name, body in wanted.items():
            await self._keep(name, body, here.pop(name, None))
        later = [await self._let_go(obj) for obj in here.values()]
        return min(filter(None, later), default=None)

    def _serves(self, storage_class: StorageClass) -> bool:
        return storage_class.provisioner != names.NO_PROVISIONER and self._handles(storage_class.provisioner)

    def _wanted(self, storage_class: StorageClass, here: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the desired objects of the class, by name."""
        name = storage_class.metadata.name
        notice = tier.object_name(name, names.TIER_NOTICE)
        values = {names.TIER_NOTICE} if self._is_on(known=notice in here) else set[str]()
        if self._mode != "exact":
            values |= self._used(name)
        return {tier.object_name(name, value): body(storage_class, value) for value in values}

    def _used(self, name: str) -> set[str]:
        """Return the tiers in the nodes' labels."""
        key = names.tier_label(name)
        found = {node.metadata.labels[key] for node in self._nodes.by(NODES_BY_TIER, key)}
        return {value for value in found if tier.of_label(value)}

    def _is_on(self, *, known: bool) -> bool:
        if self._mode == "auto":
            return len(self._nodes) > (AUTO_ABOVE * 4 // 5 if known else AUTO_ABOVE)
        return self._mode == "tiers"

    async def _keep(self, name: str, wanted: dict[str, Any], have: CSIStorageCapacity | None) -> None:
        """Create or repair an object: only this controller may write it."""
        self._unused.over(name)
        if have is not None and _published(have) == _published(msgspec.convert(wanted, CSIStorageCapacity)):
            return
        with suppress(ApiAlreadyExistsError, ApiNotFoundError):  # the watch is behind
            if have is not None:
                log.warning("tier object was changed by another writer, created again object=%s", have.key)
                await self._client.delete(CAPACITIES, name, self._namespace, uid=have.metadata.uid)
            meta = {**wanted["metadata"], "name": name, "namespace": self._namespace}
            await self._client.create(CAPACITIES, {**wanted, "metadata": meta}, self._namespace)

    async def _let_go(self, obj: CSIStorageCapacity) -> float | None:
        """Remove an unused object; return seconds to wait.

        An unknown object and a notice are removed at once.
        """
        meta = obj.metadata
        usual = tier.object_name(obj.storage_class_name, meta.labels[names.TIER]) == meta.name
        keeps = usual and meta.labels[names.TIER] != names.TIER_NOTICE
        if keeps and (left := self._unused.left(meta.name, _UNUSED_SECONDS)):
            return left
        self._unused.over(meta.name)
        await delete_object(self._client, CAPACITIES, obj)
        log.info("unused tier object removed class=%s object=%s", obj.storage_class_name, meta.name)
        return None

    def _capacity_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> Iterable[str]:
        """Handle tier objects; ignore requests in a notice."""
        if old is not None and new is not None and _published(old) == _published(new):
            return ()
        return {name for obj in (old, new) if obj is not None for name in class_of_tier(obj)}

    def _node_changed(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """Handle a node whose tier labels changed, or that came or went.

        The number of nodes decides whether tiers are in use.
        """
        if old is None or new is None:
            return [c.metadata.name for c in self._classes]
        changed = tier.labels_of(old.metadata.labels).items() ^ tier.labels_of(new.metadata.labels).items()
        keys = {key for key, _ in changed}
        return [c.metadata.name for c in self._classes if names.tier_label(c.metadata.name) in keys] if keys else ()


def tiers_of(node: Node) -> Iterable[str]:
    """Return the node's tier labels: their keys, and `key=value`."""
    return [word for key, value in tier.labels_of(node.metadata.labels).items() for word in (key, f"{key}={value}")]


def class_of_tier(obj: CSIStorageCapacity) -> Iterable[str]:
    """Return the class of a tier's object; none for a node's object."""
    return (obj.storage_class_name,) if tier.is_tier(obj) else ()


def body(storage_class: StorageClass, value: str) -> dict[str, Any]:
    """Return the object of a tier, or the class's notice.

    Its pool label is its driver's name: a node without an own object does not publish its pool.
    """
    name, driver = storage_class.metadata.name, names.label_value(names.csi_driver(storage_class.provisioner))
    labels = {names.CAPACITY_DRIVER: driver, names.CAPACITY_MANAGED_BY: names.TIERS_MANAGED_BY, names.TIER: value}
    if value == names.TIER_NOTICE:
        return {"metadata": {"labels": labels}, "storageClassName": name}
    return {
        "metadata": {"labels": {**labels, names.POOL_LABEL: driver}},
        "storageClassName": name,
        "nodeTopology": {"matchLabels": {names.tier_label(name): value}},
        "capacity": value,
        "maximumVolumeSize": value,
    }


def _published(obj: CSIStorageCapacity) -> tuple[object, ...]:
    """Return all fields that must not change."""
    labels = {key: obj.metadata.labels.get(key) for key in (names.CAPACITY_DRIVER, names.TIER, names.POOL_LABEL)}
    return labels, obj.storage_class_name, obj.node_topology, obj.capacity, obj.maximum_volume_size
