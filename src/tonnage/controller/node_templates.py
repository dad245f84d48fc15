"""Capacity objects of template nodes, for autoscalers.

The cluster autoscaler runs the scheduler's filters on a node that it imagines. That node has published nothing, so a
pod with volumes would never fit. Since its pull request 9702 such a node has the label
`cluster-autoscaler.kubernetes.io/template-node=true`. This controller writes one object for each node group and class
that selects this label and the group's. No real node has the label, so the object admits none.

The capacity is configured, or learned from the group's live nodes: raised at once, lowered when it stays lower for a
while. Learned capacity stays when the last node is deleted, since a group is then scaled up from zero, and is removed
much later.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from tonnage.base.aio.clock import rfc3339
from tonnage.controller.config import LoopContext, node_label_of
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node, PersistentVolume
from tonnage.kubernetes.api.kinds import CAPACITIES, NODES, STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.api.matching import capacity
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage.kubernetes.api.storage import CSIStorageCapacity, StorageClass
from tonnage.kubernetes.client.controller import Reconciler, on_difference
from tonnage.kubernetes.client.object_write import delete_object, patch_object
from tonnage.provisioning.capacity.node_template import (
    MANAGED_BY,
    TemplateCapacity,
    capacity_of,
    groups_of,
    is_template,
    without_nodes_since,
)
from tonnage.provisioning.capacity.object import numbers, reason

log = logging.getLogger(__name__)
KEEP = 30 * 86400.0
"""Seconds that learned capacity stays for a node group without nodes."""
_TEMPLATES = "templates: objects by group"
_NODES = "templates: nodes by group"
_VOLUMES = "templates: volumes by node"
_PUBLISHED = "templates: capacity by node"
_SELECTING = "templates: capacity by label"


class NodeTemplates(Reconciler[str]):
    """Loop over node groups ("<label>=<value>").

    keep: seconds that learned capacity stays for a group without nodes. pace: minimum seconds between two
    checks of a group. settle: seconds for which capacity must be lower before it is lowered.
    """

    def __init__(self, context: LoopContext, *, keep: float = KEEP, pace: float = 10.0, settle: float = 300.0) -> None:
        super().__init__("node_templates", workers=1)
        config, informers = context.config, context.informers
        self._client, self._namespace, self._drivers = context.client, config.namespace, frozenset(config.drivers)
        self._configured = {template.group: template for template in config.templates}
        self._group_labels = tuple(config.group_labels)
        self._keep, self._pace, self._settle = keep, pace, settle
        self._clock = context.clock
        self._looked: dict[str, float] = {}
        self._lower: dict[
            str, tuple[float, TemplateCapacity]
        ] = {}  # object -> since when the capacity is lower, and its maximum since
        self._volumes = self.watch(informers.of(VOLUMES))  # each changes the published capacity too
        self._nodes = self.watch(informers.of(NODES), self._node_changed)
        self._capacities = self.watch(informers.of(CAPACITIES), self._capacity_changed)
        # Classes that come or go; their fields cannot change.
        self._classes = self.watch(informers.of(STORAGE_CLASSES), on_difference(lambda _: None, self._class_changed))
        self._nodes.add_index(_NODES, self._groups_of)
        self._volumes.add_index(_VOLUMES, lambda volume: filter(None, (node_label_of(volume),)))
        self._capacities.add_index(_TEMPLATES, groups_of)
        self._capacities.add_index(_PUBLISHED, lambda obj: filter(None, (node_label_of(obj),)))
        self._capacities.add_index(_SELECTING, _selects)

    async def run(self) -> None:
        """Work until cancelled."""
        for group in self._configured:
            self.enqueue(group)
        await super().run()

    async def reconcile(self, group: str) -> float | None:
        """Write the objects of one node group. Idempotent. Raises: ApiError."""
        now = self._clock.monotonic()
        if (wait := self._looked.get(group, now - self._pace) + self._pace - now) > 0:
            return wait
        self._looked[group] = now
        objects = self._capacities.by(_TEMPLATES, group)
        there = {obj.storage_class_name: obj for obj in objects if obj.metadata.namespace == self._namespace}
        nodes = self._nodes.by(_NODES, group)
        configured = self._configured.get(group)
        by_class = configured.by_class if configured is not None else self._learn(nodes)
        waits = []
        for name, amount in by_class.items():
            if (storage_class := self._own_class(name)) is not None:
                waits.append(await self._write(group, storage_class, amount, there.pop(name, None)))
        waits += [await self._retire(obj, group, has_nodes=bool(nodes)) for obj in there.values()]
        return min((wait for wait in waits if wait is not None), default=None)

    def _own_class(self, name: str) -> StorageClass | None:
        found = self._classes.get(name)
        return found if found is not None and found.provisioner in self._drivers else None

    def _learn(self, nodes: Iterable[Node]) -> dict[str, TemplateCapacity]:
        """Return, by class, the maximum capacity of these nodes when empty.

        Nodes of a group are alike.
        """
        found: dict[str, TemplateCapacity] = {}
        for node in nodes:
            label = names.label_value(node.metadata.name)
            by_class = pristine(self._published(node, label), self._volumes.by(_VOLUMES, label))
            for name, amount in by_class.items():
                best = found.get(name, amount)
                found[name] = TemplateCapacity(max(best.capacity, amount.capacity), max(best.largest, amount.largest))
        return found

    def _published(self, node: Node, label: str) -> dict[str, CSIStorageCapacity]:
        """Return the node's own objects by class, else its tier's object.

        The tier is a lower bound.
        """
        labels = node.metadata.labels
        pairs = [f"{key}={value}" for key, value in labels.items()]
        shared = [obj for pair in pairs for obj in self._capacities.by(_SELECTING, pair) if not node_label_of(obj)]
        reached = [
            obj for obj in shared if obj.node_topology and from_label_selector(obj.node_topology).matches(labels)
        ]
        own = self._capacities.by(_PUBLISHED, label)
        return {obj.storage_class_name: obj for obj in (*reached, *own)}

    # Objects

    async def _write(
        self, group: str, storage_class: StorageClass, amount: TemplateCapacity, there: CSIStorageCapacity | None
    ) -> float | None:
        """Create or change one object; return seconds until it may be lowered."""
        if there is None:
            await self._client.create(CAPACITIES, body(group, storage_class, amount), self._namespace)
            name, free = storage_class.metadata.name, from_bytes(amount.capacity)
            log.info("template of nodes made group=%s class=%s capacity=%s", group, name, free)
            return None
        amount, wait = self._eased(group, there, amount)
        changes = amounts(amount) if capacity_of(there) != amount else {}
        if names.WITHOUT_NODES_SINCE in there.metadata.annotations:
            changes["metadata"] = {"annotations": {names.WITHOUT_NODES_SINCE: None}}
        if changes:
            await self._client.patch(CAPACITIES, there.metadata.name, changes, self._namespace)
        return wait

    def _eased(
        self, group: str, there: CSIStorageCapacity, amount: TemplateCapacity
    ) -> tuple[TemplateCapacity, float | None]:
        """Return the capacity to write: an increase at once, a decrease delayed.

        A decrease is to the maximum since it began. Volumes under way are counted nowhere for a moment.
        """
        before, key = capacity_of(there), there.metadata.name
        least = TemplateCapacity(max(before.capacity, amount.capacity), max(before.largest, amount.largest))
        if group in self._configured or amount == least:
            self._lower.pop(key, None)
            return amount, None
        now = self._clock.monotonic()
        since, most = self._lower.get(key, (now, amount))
        most = TemplateCapacity(max(most.capacity, amount.capacity), max(most.largest, amount.largest))
        if since + self._settle <= now:
            del self._lower[key]
            return most, None
        self._lower[key] = since, most
        return least, since + self._settle - now

    async def _retire(self, obj: CSIStorageCapacity, group: str, *, has_nodes: bool) -> float | None:
        """Remove an object without a source.

        A learned one whose group has no nodes stays for a while.
        """
        label = group.partition("=")[0]
        learned = label in self._group_labels and group not in self._configured
        if not learned or self._own_class(obj.storage_class_name) is None:
            await self._remove(obj)
            return None
        if has_nodes:  # they have not published yet, or cannot serve the class
            return None
        since = without_nodes_since(obj)
        if since is None:
            notes = {names.WITHOUT_NODES_SINCE: rfc3339(self._clock.time())}
            await patch_object(self._client, CAPACITIES, obj, {"metadata": {"annotations": notes}}, guarded=False)
            return self._keep
        if (left := since + self._keep - self._clock.time()) > 0:
            return left
        await self._remove(obj)
        return None

    async def _remove(self, obj: CSIStorageCapacity) -> None:
        await delete_object(self._client, CAPACITIES, obj)
        log.info("template of nodes removed name=%s class=%s", obj.metadata.name, obj.storage_class_name)

    # Events

    def _groups_of(self, node: Node) -> Iterable[str]:
        labels = node.metadata.labels
        return [f"{key}={labels[key]}" for key in self._group_labels if key in labels]

    def _node_changed(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """Handle nodes that come or go, and changed labels, such as a tier."""
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            return ()
        return {group for node in (old, new) if node is not None for group in self._groups_of(node)}

    def _capacity_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> Iterable[str]:
        """Handle a node's capacity, and templates that somebody else changed."""
        found = new or old
        assert found is not None
        if groups := groups_of(found):
            return groups
        node = self._nodes.get(node_label_of(found))
        return self._groups_of(node) if node is not None else ()

    def _class_changed(self, _: StorageClass) -> Iterable[str]:
        learned = {group for node in self._nodes for group in self._groups_of(node)}
        return learned | self._configured.keys() | {group for obj in self._capacities for group in groups_of(obj)}


def _selects(obj: CSIStorageCapacity) -> list[str]:
    labels = obj.node_topology.match_labels if obj.node_topology is not None and not is_template(obj) else {}
    return [f"{key}={value}" for key, value in labels.items()]


def body(group: str, storage_class: StorageClass, amount: TemplateCapacity) -> dict[str, Any]:
    """Body of the object, to create it."""
    label, _, value = group.partition("=")
    name, driver = storage_class.metadata.name, names.csi_driver(storage_class.provisioner)
    return {
        "metadata": {
            "name": object_name(group, name),
            "labels": {names.CAPACITY_DRIVER: driver, names.CAPACITY_MANAGED_BY: MANAGED_BY},
        },
        "storageClassName": name,
        "nodeTopology": {"matchLabels": {names.TEMPLATE_NODE: "true", label: value}},
        **amounts(amount),
    }


def amounts(amount: TemplateCapacity) -> dict[str, Any]:
    """Fields of its capacity."""
    return {"capacity": from_bytes(amount.capacity), "maximumVolumeSize": from_bytes(amount.largest)}


def object_name(group: str, storage_class: str) -> str:
    """Return the object's name for a class and a node group.

    It is always the same, so no duplicate is created.
    """
    return f"csisc-template-{hashlib.sha256(f'{group}/{storage_class}'.encode()).hexdigest()[:20]}"


def pristine(
    published: Mapping[str, CSIStorageCapacity], volumes: Iterable[PersistentVolume]
) -> dict[str, TemplateCapacity]:
    """Return the capacity of an empty node, by class.

    published: its capacity objects. volumes: its PVs. Classes that the node cannot serve are left out.
    """
    taken: dict[str, int] = {}
    largest: dict[str, int] = {}
    for volume in volumes:
        found = published.get(volume.spec.storage_class_name)
        if found is not None:
            pool, size = _pool(found), capacity(volume)
            taken[pool] = taken.get(pool, 0) + size
            largest[pool] = max(largest.get(pool, 0), size)
    return {
        name: _whole(obj, taken.get(_pool(obj), 0), largest.get(_pool(obj), 0))
        for name, obj in published.items()
        if not reason(obj)
    }


def _pool(obj: CSIStorageCapacity) -> str:
    return obj.metadata.labels.get(names.POOL_LABEL, f"class {obj.storage_class_name}")


def _whole(obj: CSIStorageCapacity, taken: int, largest: int) -> TemplateCapacity:
    """Return the capacity with no volume in it.

    If one volume can have all free bytes, one could have had the whole. If the pool is in pieces (whole disks), the
    largest is one that is free or one that is taken.
    """
    free, maximum = numbers(obj)
    whole = free + taken
    return TemplateCapacity(whole, whole if maximum is None or maximum >= free > 0 else max(maximum, largest))
