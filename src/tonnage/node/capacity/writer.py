"""Writer of this node's capacity objects; it repairs changes by others.

The objects are owned by the Node, so garbage collection deletes them with it. Only this agent writes them. It repairs a
foreign change at once and emits an Event on the Node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.kinds import CAPACITIES, NODES
from tonnage.api.meta import OwnerReference, to_builtins
from tonnage.api.storage import CSIStorageCapacity
from tonnage.capacity.desired import Wish
from tonnage.capacity.ledger import PoolCapacity
from tonnage.capacity.object import counted, difference, inline, least, managed_by, numbers, reason
from tonnage.errors import ApiAlreadyExistsError, ApiError, ApiNotFoundError
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.node.config.agent import AgentConfig

log = logging.getLogger(__name__)


class OwnCapacity:
    """The node's own capacity objects.

    wake() is called when they have changed.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        config: AgentConfig,
        *,
        wake: Callable[[], None],
    ) -> None:
        namespace, scope = config.namespace, config.node_scope
        self._client, self._events, self._scope, self._namespace = client, events, scope, namespace
        self._wake = wake
        self.there: dict[str, CSIStorageCapacity] = {}
        """Objects by name, as the watch or our own writes returned last."""
        self._left: dict[str, CSIStorageCapacity] = {}  # as our last write left them
        labels = f"{names.CAPACITY_MANAGED_BY}={managed_by(scope.node)}"
        self._informer = informers.of(CAPACITIES, namespace=namespace, labels=labels)
        self._informer.cache.on_change(self._seen)
        self._nodes = informers.of(NODES, fields=f"metadata.name={scope.node}")
        self._nodes.cache.on_change(self._node_changed)
        self.restored = asyncio.Event()
        """Set when the API server is reachable again."""
        self._informer.on_restored(self.restored.set)

    async def wait_synced(self) -> None:
        """Wait until all existing objects are known."""
        await self._informer.wait_synced()

    # Changes by others

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Handle a new Node: objects of a deleted Node are garbage collected."""
        if new is not None and (old is None or old.metadata.uid != new.metadata.uid):
            self._wake()

    def _seen(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        """Handle a write or deletion of one of our objects, usually by this process."""
        if new is None:
            assert old is not None
            self.there.pop(old.metadata.name, None)
            self._wake()
            return  # is_changed() sees that it is missing
        have = self.there.get(new.metadata.name)
        if have is None or new.metadata.version > have.metadata.version:
            self.there[new.metadata.name] = new
            self._wake()

    def is_changed(self, wish: Wish) -> bool:
        """Return whether somebody changed the object after our last write.

        Emits one Event for a change or a removal.
        """
        have, left = self.there.get(wish.name), self._left.get(wish.name)
        if left is None and have is not None and not self.is_urgent(wish, have) and not wish.is_higher(have):
            self._left[wish.name] = have  # already as desired: from before this process started
        if left is None or have is left:
            return False
        del self._left[wish.name]
        if have is None:
            if self._owner() not in left.metadata.owner_references:
                return False  # garbage collected with its Node
            self.say(f"{wish.name} of class {left.storage_class_name} was removed by somebody: made again")
            return False  # what is missing is written anyway
        what = difference(left, have)
        if not what:  # a foreign field
            self._left[wish.name] = have
            return False
        self.say(f"{wish.name} of class {left.storage_class_name} was changed by somebody ({what}): put right")
        return True

    def say(self, text: str) -> None:
        """Report a foreign change in the log and by an Event on the Node."""
        log.warning("capacity object tampered with node=%s object=%s", self._scope.node, text)
        node = self._nodes.cache.get(self._scope.node)
        if node is not None:
            text = f"capacity object {text}; only the agent of the node may write it"
            self._events.warning(refer(NODES, node), "CapacityTampered", text)

    # Comparing

    def is_urgent(self, wish: Wish, have: CSIStorageCapacity) -> bool:
        """Return whether the object publishes too much, or lacks a field."""
        told = counted(have) >= wish.promised and reason(have) == wish.reason
        return wish.is_lower(have) or not told or not self._is_labelled(have, wish)

    def can_create(self) -> bool:
        """Return whether the Node exists, which owns new objects."""
        return self._owner() is not None

    def _is_labelled(self, have: CSIStorageCapacity, wish: Wish) -> bool:
        """Return whether the object has our labels and is owned by our Node."""
        owner, labels = self._owner(), have.metadata.labels
        owned = owner is None or have.metadata.owner_references == [owner]
        return owned and wish.labels(self._scope).items() <= labels.items()

    def _owner(self) -> OwnerReference | None:
        """Return the owner reference to our Node, or None without a Node."""
        node = self._nodes.cache.get(self._scope.node)
        if node is None:
            return None
        return OwnerReference("v1", NODES.kind, self._scope.node, node.metadata.uid, controller=True)

    # Writing

    async def write_all(self, wishes: Sequence[Wish], *, rise: bool) -> list[ApiError]:
        """Write all desired objects. Idempotent.

        rise: whether numbers may increase.

        Returns the errors of rejected writes; one rejected object does not stop the others. Raises: UnavailableError.
        """
        refused: list[ApiError] = []
        for wish in wishes:
            try:
                await self._write(wish, rise=rise)
            except ApiError as failure:
                refused.append(failure)
        return refused

    async def remove(self, name: str) -> list[ApiError]:
        """Remove an object; return the errors of rejected writes. Idempotent.

        Raises: Unavailable.
        """
        try:
            with suppress(ApiNotFoundError):
                await self._client.delete(CAPACITIES, name, self._namespace)
        except ApiError as failure:
            return [failure]
        self._forget(name)
        return []

    async def _write(self, wish: Wish, *, rise: bool) -> None:
        have = self.there.get(wish.name)
        if have is None or not wish.is_in_place(have):
            await self._create(wish, have)
            return
        room = wish.room
        if not rise:  # publish the observed claim version now, the increase later: the old number is still safe
            available, maximum = numbers(have)
            room = PoolCapacity(
                min(room.available, available), least(room.maximum, maximum), least(room.inline, inline(have))
            )
        body = wish.patch(room)
        if not self._is_labelled(have, wish):
            body["metadata"]["labels"] = wish.labels(self._scope)
            if owner := self._owner():
                body["metadata"]["ownerReferences"] = [to_builtins(owner)]
        try:
            self._left.pop(wish.name, None)  # until the outcome is known
            self._keep(await self._client.patch(CAPACITIES, wish.name, body, self._namespace), ours=True)
        except ApiNotFoundError:
            self.there.pop(wish.name, None)
            self._wake()

    async def _create(self, wish: Wish, have: CSIStorageCapacity | None) -> None:
        if have is not None:  # its topology and class cannot be changed
            await self._client.delete(CAPACITIES, wish.name, self._namespace)
            self._forget(wish.name)
        owner = self._owner()
        if owner is None:
            return
        body = wish.body(self._scope, self._namespace, owner)
        try:
            self._keep(await self._client.create(CAPACITIES, body, self._namespace), ours=True)
        except ApiAlreadyExistsError:  # made before a restart, and the watch is behind
            self._keep(await self._client.get(CAPACITIES, wish.name, self._namespace))
            self._wake()

    def _keep(self, obj: CSIStorageCapacity, *, ours: bool = False) -> None:
        """Remember an object.

        ours: we have just written it; the watch may already have returned a later foreign change.
        """
        have = self.there.get(obj.metadata.name)
        if have is None or obj.metadata.version >= have.metadata.version:
            self.there[obj.metadata.name] = obj
        if ours:
            self._left[obj.metadata.name] = obj

    def _forget(self, name: str) -> None:
        self.there.pop(name, None)
        self._left.pop(name, None)
