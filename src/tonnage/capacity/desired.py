"""A capacity object of this node as it should be, and what is written for that. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tonnage.api import names
from tonnage.api.meta import OwnerReference, to_builtins
from tonnage.api.quantity import from_bytes
from tonnage.api.storage import CSIStorageCapacity, StorageClass
from tonnage.capacity.ledger import PoolCapacity
from tonnage.capacity.object import inline, less, managed_by, numbers
from tonnage.claims.node_scope import CapacitySource, DriverInfo, NodeScope


@dataclass(frozen=True)
class Wish:
    """One object as it should be. counted: up to which claim the numbers include promises; promised: what an object
    must have counted at least; reason: why there is no room, "" for no such reason."""

    name: str
    source: CapacitySource
    driver: DriverInfo
    storage_class: StorageClass
    room: PoolCapacity
    counted: int
    promised: int
    reason: str = ""

    @property
    def class_name(self) -> str:
        """The name of its class."""
        return self.storage_class.metadata.name

    def labels(self, scope: NodeScope) -> dict[str, str]:
        """Whose it is, and of which pool."""
        labels = {
            names.CAPACITY_DRIVER: self.driver.name,
            names.CAPACITY_MANAGED_BY: managed_by(scope.node),
            names.NODE_LABEL: scope.label,
        }
        pool = self.driver.pool(self.storage_class)
        if pool and not self.reason:  # a class may name any text as its pool, and a label may not hold it
            labels[names.POOL_LABEL] = names.label_value(pool)
            if pool == self.driver.default_pool and len(self.driver.pools) > 1:
                labels[names.DEFAULT_POOL] = "true"
        return labels

    def annotations(self, room: PoolCapacity) -> dict[str, str | None]:
        """What is noted on it when it tells of that room; None: not noted."""
        return {
            names.OBSERVED_CLAIM_VERSION: str(self.counted),
            names.FORMER_KEYS[names.OBSERVED_CLAIM_VERSION]: None,
            names.REASON: self.reason or None,
            names.INLINE_ROOM: _text(room.inline),
        }

    def body(self, scope: NodeScope, namespace: str, owner: OwnerReference) -> dict[str, Any]:
        """The object, to be created."""
        body: dict[str, Any] = {
            "metadata": {
                "name": self.name,
                "namespace": namespace,
                "labels": self.labels(scope),
                "annotations": {key: text for key, text in self.annotations(self.room).items() if text is not None},
                "ownerReferences": [to_builtins(owner)],
            },
            "nodeTopology": {"matchLabels": dict(self.driver.segment)},
            "storageClassName": self.class_name,
            "capacity": from_bytes(self.room.available),
        }
        if self.room.maximum is not None:
            body["maximumVolumeSize"] = from_bytes(self.room.maximum)
        return body

    def patch(self, room: PoolCapacity) -> dict[str, Any]:
        """What changes an object that is there so that it tells of that room."""
        return {
            "metadata": {"annotations": self.annotations(room)},
            "capacity": from_bytes(room.available),
            "maximumVolumeSize": _text(room.maximum),
        }

    def is_in_place(self, have: CSIStorageCapacity) -> bool:
        """Whether an object can be made into this one: topology and class of one cannot be changed."""
        labels = have.node_topology.match_labels if have.node_topology else None
        return labels == dict(self.driver.segment) and have.storage_class_name == self.class_name

    def is_lower(self, have: CSIStorageCapacity) -> bool:
        """Whether less is to be told than the object tells; of inline volumes nothing at all is less than a number."""
        available, maximum = numbers(have)
        told, wanted = inline(have), self.room.inline
        lowered = told is not None and (wanted is None or wanted < told)
        return self.room.available < available or less(self.room.maximum, maximum) or lowered

    def is_higher(self, have: CSIStorageCapacity) -> bool:
        """Whether more is to be told than the object tells."""
        available, maximum = numbers(have)
        risen = self.room.inline is not None and (inline(have) or 0) < self.room.inline
        return self.room.available > available or less(maximum, self.room.maximum) or risen


def _text(number: int | None) -> str | None:
    return None if number is None else from_bytes(number)
