"""Removes capacity objects of nodes that are gone, where nobody else does.

An agent makes its objects dependents of its Node, so Kubernetes' garbage collector removes them with it. Left are those
whose ownerReference somebody took off: no agent is there to put that right, and they would stay for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.kinds import CAPACITIES, NODES
from tonnage.api.storage import CSIStorageCapacity
from tonnage.errors import ApiConflict, ApiNotFound
from tonnage.kube.client import Client, Unreadable
from tonnage.kube.controller import Controller
from tonnage.kube.informer import Informers

log = logging.getLogger(__name__)
_BY_NODE = "gone capacity: objects by node"
_MANAGED_BY = "tonnage-"


class GoneCapacity:
    """The loop over capacity objects that our agents made. Keys are theirs. namespace: where they lie."""

    def __init__(self, client: Client, informers: Informers, *, drivers: Collection[str], namespace: str) -> None:
        self._client, self._namespace, self._drivers = client, namespace, frozenset(drivers)
        capacities, nodes = informers.of(CAPACITIES), informers.of(NODES)
        self._capacities, self._nodes = capacities.cache, nodes.cache
        self._capacities.add_index(_BY_NODE, lambda capacity: (_node_of(capacity),))
        self._controller: Controller[str] = Controller("gone_capacity", self.reconcile, workers=2)
        self._controller.watch(nodes, self._node_changed)
        self._controller.watch(capacities, self._capacity_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    async def reconcile(self, key: str) -> None:
        """Remove one object, if its node is gone. May be repeated. Raises ApiError."""
        capacity = self._capacities.get(key)
        if capacity is None or not self._is_left(capacity) or _is_among(self._nodes, capacity):
            return
        found = await self._client.list(NODES, tolerant=True)
        if _is_among(found.items, capacity) or _is_among(found.unreadable, capacity):  # a node that has just come
            return
        if any(not node.metadata.name for node in found.unreadable):  # it may be that one
            return
        meta = capacity.metadata
        try:
            await self._client.delete(
                CAPACITIES, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )
        except (ApiNotFound, ApiConflict):
            return
        log.info("capacity of a gone node removed name=%s node=%s", meta.name, _node_of(capacity))

    def _is_left(self, capacity: CSIStorageCapacity) -> bool:
        """Whether an agent of ours made it, and no Node owns it."""
        meta = capacity.metadata
        ours = meta.labels.get(names.CAPACITY_DRIVER) in self._drivers and meta.namespace == self._namespace
        managed = meta.labels.get(names.CAPACITY_MANAGED_BY, "").startswith(_MANAGED_BY)
        owned = any(owner.kind == NODES.kind for owner in meta.owner_references)
        return ours and managed and bool(_node_of(capacity)) and not owned

    def _capacity_changed(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> Iterable[str]:
        return (new.key,) if new is not None and self._is_left(new) else ()

    def _node_changed(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """Only its going."""
        if new is not None or old is None:
            return ()
        return [c.key for c in self._capacities.by(_BY_NODE, names.label_value(old.metadata.name))]


def _node_of(capacity: CSIStorageCapacity) -> str:
    return capacity.metadata.labels.get(names.NODE_LABEL, "")


def _is_among(nodes: Iterable[Node | Unreadable], capacity: CSIStorageCapacity) -> bool:
    return any(names.label_value(node.metadata.name) == _node_of(capacity) for node in nodes)
