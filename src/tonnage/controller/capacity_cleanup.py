"""Removal of capacity objects of deleted nodes.

An agent makes the Node the owner of its objects, so garbage collection removes them with it. Objects without that
ownerReference, which somebody removed, would stay forever: no agent repairs them. This controller deletes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

from tonnage.base.errors import ApiConflictError
from tonnage.controller.config import LoopContext, node_label_of
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import CAPACITIES, NODES
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.kubernetes.client.client import Unreadable
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import delete_object

log = logging.getLogger(__name__)
_BY_NODE = "gone capacity: objects by node"
_MANAGED_BY = "tonnage-"


class GoneCapacity(Reconciler[str]):
    """Loop over capacity objects of our agents, by key.

    namespace: of the objects.
    """

    def __init__(self, context: LoopContext) -> None:
        super().__init__("gone_capacity", workers=2)
        self._client, self._namespace = context.client, context.config.namespace
        self._drivers = frozenset(context.config.drivers)
        self._nodes = self.watch(context.informers.of(NODES), self._node_changed)
        self._capacities = self.watch(context.informers.of(CAPACITIES), self._capacity_changed)
        self._capacities.add_index(_BY_NODE, lambda capacity: (node_label_of(capacity),))

    async def reconcile(self, key: str) -> None:
        """Remove an object whose node is deleted. Idempotent. Raises: ApiError."""
        capacity = self._capacities.get(key)
        if capacity is None or not self._is_left(capacity) or _is_among(self._nodes, capacity):
            return
        found = await self._client.list(NODES, tolerant=True)
        if _is_among(found.items, capacity) or _is_among(found.unreadable, capacity):  # a new node
            return
        if any(not node.metadata.name for node in found.unreadable):  # it may be that node
            return
        with suppress(ApiConflictError):
            await delete_object(self._client, CAPACITIES, capacity, guarded=True)
            name = capacity.metadata.name
            log.info("capacity object of a deleted node removed name=%s node=%s", name, node_label_of(capacity))

    def _is_left(self, capacity: CSIStorageCapacity) -> bool:
        """Return whether an agent of ours created it, and no Node owns it."""
        meta = capacity.metadata
        ours = meta.labels.get(names.CAPACITY_DRIVER) in self._drivers and meta.namespace == self._namespace
        managed = meta.labels.get(names.CAPACITY_MANAGED_BY, "").startswith(_MANAGED_BY)
        owned = any(owner.kind == NODES.kind for owner in meta.owner_references)
        return ours and managed and bool(node_label_of(capacity)) and not owned

    def _capacity_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> Iterable[str]:
        return (new.key,) if new is not None and self._is_left(new) else ()

    def _node_changed(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """Handle deleted nodes only."""
        if new is not None or old is None:
            return ()
        return [c.key for c in self._capacities.by(_BY_NODE, names.label_value(old.metadata.name))]


def _is_among(nodes: Iterable[Node | Unreadable], capacity: CSIStorageCapacity) -> bool:
    return any(names.label_value(node.metadata.name) == node_label_of(capacity) for node in nodes)
