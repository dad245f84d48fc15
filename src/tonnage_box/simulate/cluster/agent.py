"""Simulated node agent with the real ledger: reserves capacity for claims and publishes with delay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tonnage.base.errors import ExhaustedError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import LabelSelector, ObjectMeta
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.node.capacity.publisher import DECREASE_EVERY, INCREASE_EVERY
from tonnage.provisioning.capacity.ledger import Ledger
from tonnage.provisioning.claims.node_scope import CapacitySource
from tonnage_box.simulate.cluster.events import Events
from tonnage_box.simulate.tally import Tally


@dataclass(frozen=True, slots=True)
class Order:
    """A claim as the agent sees it. uid: the claim's; version: resourceVersion of the write that set selected-node."""

    uid: str
    source: CapacitySource
    size: int
    version: int


@dataclass(slots=True)
class _Published:
    """Content of a source's last published object."""

    available: int = -1
    counted: int = 0


class Agent:
    """Agent of one node. pools: name -> bytes; sources: the classes that it serves.

    publish(object) is called with each object that it writes; version() returns a new resourceVersion.
    """

    def __init__(
        self,
        node: str,
        pools: dict[str, int],
        sources: Sequence[CapacitySource],
        events: Events,
        tally: Tally,
        *,
        version: Callable[[], int],
        publish: Callable[[CSIStorageCapacity], None],
    ) -> None:
        self.node = node
        self.free = dict(pools)
        self.pools = pools
        self._events, self._tally, self._version, self._publish = events, tally, version, publish
        self._last = {source: _Published() for source in sources}
        self._topology = LabelSelector(match_labels={names.TOPOLOGY_NODE: node})
        self._due: float | None = None
        self._stale = False  # a volume went since the pools were asked
        self._decreased = self._increased = -INCREASE_EVERY
        self.ledger = Ledger()
        self._read()
        self._write()
        self.ledger.changed = self._changed

    # Claims

    def see(self, order: Order) -> None:
        """See a claim that was sent here.

        Claims are seen in the order in which they were written, as by a watch: what is published counts all up to the
        last.
        """
        self.ledger.see(order.uid, order.source, order.size, attempt="", version=order.version, now=self._events.now)

    def reserve(self, orders: Sequence[Order]) -> bool:
        """Reserve capacity for all claims of a pod that were seen before, or for none."""
        uids = [order.uid for order in orders]
        if self.ledger.reserve(uids) is not None:
            self.ledger.reject(uids)
            return False
        for uid in uids:
            self.ledger.start(uid)
        return True

    def sent_back(self, orders: Sequence[Order]) -> None:
        """The claims were rescheduled and no longer belong to this node."""
        for order in orders:
            self.ledger.forget(order.uid)

    def create(self, order: Order) -> None:
        """Make the volume.

        Raises: ExhaustedError when the pool has not what the ledger booked: that would be its fault.
        """
        pool = order.source.pool_key
        if order.size > self.free[pool]:
            raise ExhaustedError(f"{self.node}: {order.size} bytes were booked in {pool}, which has {self.free[pool]}")
        self.free[pool] -= order.size
        self._tally.created += 1
        self._tally.hold(order.size)
        self.ledger.made(order.uid, order.size)

    def delete(self, order: Order) -> None:
        """Take the volume away."""
        self.free[order.source.pool_key] += order.size
        self._tally.hold(-order.size)
        self.ledger.removed(order.uid)
        self._stale = True
        self._changed()

    # Publication

    def _read(self) -> None:
        """Read the pools' free bytes as GetCapacity does. Also drops reservations that the result includes."""
        self._stale = False
        for source in self._last:
            begun = self.ledger.begin()
            self.ledger.read(source, begun, self.free[source.pool_key], self.free[source.pool_key])

    def _changed(self) -> None:
        """Publish a change: less capacity soon, more capacity with a rate limit, as the real publisher does."""
        now, due = self._events.now, None
        if self._due is not None and self._due <= max(now, self._decreased + DECREASE_EVERY):
            return  # nothing can be published before what is planned
        for source, last in self._last.items():
            amount = self.ledger.capacity(source)
            assert amount is not None
            if amount.available < last.available or last.counted < self.ledger.required_version:
                due = max(now, self._decreased + DECREASE_EVERY)
                break
            if amount.available > last.available or self._stale:
                due = max(now, self._increased + INCREASE_EVERY)
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._events.at(due, partial(self._on_time, due))

    def _on_time(self, due: float) -> None:
        if self._due != due:  # an earlier one was planned since
            return
        self._due = None
        self.ledger.changed = lambda: None  # while the agent reads, nothing is to be planned
        self._read()
        self.ledger.changed = self._changed
        self._write()
        self._changed()  # what may not be written yet

    def _write(self) -> None:
        now, ledger = self._events.now, self.ledger
        may_increase = now >= self._increased + INCREASE_EVERY
        for source, last in self._last.items():
            amount = ledger.capacity(source)
            assert amount is not None
            less = amount.available < last.available or last.counted < ledger.required_version
            if not less and (amount.available <= last.available or not may_increase):
                continue
            if less:
                self._decreased = now
            else:
                self._increased = now
            last.available, last.counted = amount.available, ledger.counted
            self._tally.writes["capacity"] += 1
            self._publish(self._object(source, last))

    def _object(self, source: CapacitySource, last: _Published) -> CSIStorageCapacity:
        text = str(last.available)
        return CSIStorageCapacity(
            metadata=ObjectMeta(
                name=f"{self.node}-{source.storage_class}",
                namespace=names.SYSTEM_NAMESPACE,
                resource_version=str(self._version()),
                labels={names.POOL_LABEL: source.pool_key},
                annotations={names.OBSERVED_CLAIM_VERSION: str(last.counted)},
            ),
            node_topology=self._topology,
            storage_class_name=source.storage_class,
            capacity=text,
            maximum_volume_size=text,
        )
