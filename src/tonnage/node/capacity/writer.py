"""The capacity objects of this node's agent: what is there, what others did to it, and writing it.

They belong to the Node, so that they go with it, and are this agent's alone. What somebody else does to them is put
right at once, and said on the Node.
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
from tonnage.capacity.ledger import Room
from tonnage.capacity.object import counted, difference, inline, least, managed_by, numbers, reason, version
from tonnage.claims.node_scope import NodeScope
from tonnage.errors import ApiAlreadyExists, ApiError, ApiNotFound
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers

log = logging.getLogger(__name__)


class OwnCapacity:
    """wake() is called when what is there has changed."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        scope: NodeScope,
        *,
        namespace: str,
        wake: Callable[[], None],
    ) -> None:
        self._client, self._events, self._scope, self._namespace = client, events, scope, namespace
        self._wake = wake
        self.there: dict[str, CSIStorageCapacity] = {}
        """By name: as the watch or our own writes told last."""
        self._left: dict[str, CSIStorageCapacity] = {}  # as our last write left them
        labels = f"{names.CAPACITY_MANAGED_BY}={managed_by(scope.node)}"
        self._informer = informers.of(CAPACITIES, namespace=namespace, labels=labels)
        self._informer.cache.on_change(self._seen)
        self._nodes = informers.of(NODES, fields=f"metadata.name={scope.node}")
        self._nodes.cache.on_change(self._node_changed)
        self.restored = asyncio.Event()
        """Set when the API server is there again."""
        self._informer.on_restored(self.restored.set)

    async def wait_synced(self) -> None:
        """Wait until it is known what is there."""
        await self._informer.wait_synced()

    # What others did

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Only its coming matters: what belonged to a Node that went is garbage collected."""
        if new is not None and (old is None or old.metadata.uid != new.metadata.uid):
            self._wake()

    def _seen(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        """Somebody, usually this process, wrote or removed one of our objects."""
        if new is None:
            assert old is not None
            self.there.pop(old.metadata.name, None)
            self._wake()
            return  # is_changed() sees that it is missing
        have = self.there.get(new.metadata.name)
        if have is None or version(new) > version(have):
            self.there[new.metadata.name] = new
            self._wake()

    def is_changed(self, wish: Wish) -> bool:
        """Whether somebody has changed the object since we wrote it; said once, as is that somebody removed it."""
        have, left = self.there.get(wish.name), self._left.get(wish.name)
        if left is None and have is not None and not self.is_urgent(wish, have) and not wish.is_higher(have):
            self._left[wish.name] = have  # found as it should be: from a time before this process
        if left is None or have is left:
            return False
        del self._left[wish.name]
        if have is None:
            if self._owner() not in left.metadata.owner_references:
                return False  # it went with its Node
            self.say(f"{wish.name} of class {left.storage_class_name} was removed by somebody: made again")
            return False  # what is missing is written anyway
        what = difference(left, have)
        if not what:  # what is not ours
            self._left[wish.name] = have
            return False
        self.say(f"{wish.name} of class {left.storage_class_name} was changed by somebody ({what}): put right")
        return True

    def say(self, text: str) -> None:
        """Tell of something that somebody else did to an object: in the log, and by an Event on the Node."""
        log.warning("capacity object tampered with node=%s object=%s", self._scope.node, text)
        node = self._nodes.cache.get(self._scope.node)
        if node is not None:
            text = f"capacity object {text}; only the agent of the node may write it"
            self._events.warning(refer(NODES, node), "CapacityTampered", text)

    # Comparing

    def is_urgent(self, wish: Wish, have: CSIStorageCapacity) -> bool:
        """Whether the object promises more than there is, or does not say what it must."""
        told = counted(have) >= wish.promised and reason(have) == wish.reason
        return wish.is_lower(have) or not told or not self._is_labelled(have, wish)

    def can_create(self) -> bool:
        """Whether the Node is there, to which a new object will belong."""
        return self._owner() is not None

    def _is_labelled(self, have: CSIStorageCapacity, wish: Wish) -> bool:
        """Whether it says whose it is, and belongs to our Node."""
        owner, labels = self._owner(), have.metadata.labels
        owned = owner is None or have.metadata.owner_references == [owner]
        return owned and wish.labels(self._scope).items() <= labels.items()

    def _owner(self) -> OwnerReference | None:
        """Our Node as the owner of its objects; None while it is not there."""
        node = self._nodes.cache.get(self._scope.node)
        if node is None:
            return None
        return OwnerReference("v1", NODES.kind, self._scope.node, node.metadata.uid, controller=True)

    # Writing

    async def write_all(self, wishes: Sequence[Wish], *, rise: bool) -> list[ApiError]:
        """Bring them about; if not rise, with no number higher than it is. May be repeated.

        Returns what was refused: one object that is, does not keep the others from being written. Raises Unavailable.
        """
        refused: list[ApiError] = []
        for wish in wishes:
            try:
                await self._write(wish, rise=rise)
            except ApiError as failure:
                refused.append(failure)
        return refused

    async def remove(self, name: str) -> list[ApiError]:
        """Remove an object; what was refused. May be repeated. Raises Unavailable."""
        try:
            with suppress(ApiNotFound):
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
        if not rise:  # the count must be told now, the larger number later: what was published is still safe
            available, maximum = numbers(have)
            room = Room(min(room.available, available), least(room.maximum, maximum), least(room.inline, inline(have)))
        body = wish.patch(room)
        if not self._is_labelled(have, wish):
            body["metadata"]["labels"] = wish.labels(self._scope)
            if owner := self._owner():
                body["metadata"]["ownerReferences"] = [to_builtins(owner)]
        try:
            self._left.pop(wish.name, None)  # until we know what became of it
            self._keep(await self._client.patch(CAPACITIES, wish.name, body, self._namespace), ours=True)
        except ApiNotFound:
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
        except ApiAlreadyExists:  # made before a restart, and the watch is behind
            self._keep(await self._client.get(CAPACITIES, wish.name, self._namespace))
            self._wake()

    def _keep(self, obj: CSIStorageCapacity, *, ours: bool = False) -> None:
        """ours: we have written it just now. The watch may already have told of what somebody made of it since."""
        have = self.there.get(obj.metadata.name)
        if have is None or version(obj) >= version(have):
            self.there[obj.metadata.name] = obj
        if ours:
            self._left[obj.metadata.name] = obj

    def _forget(self, name: str) -> None:
        self.there.pop(name, None)
        self._left.pop(name, None)
