"""CSIStorageCapacity objects of ours: names, fields, differences, and the desired state of one. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import OwnerReference, to_builtins
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.kubernetes.api.storage import CSIStorageCapacity, StorageClass
from tonnage.provisioning.capacity.ledger import PoolCapacity
from tonnage.provisioning.claims.node_scope import CapacitySource, DriverInfo, NodeScope


def object_name(driver: str, storage_class: str, node: str) -> str:
    """Return the object's name for a driver, class and node.

    It is always the same, so no duplicate is created.
    """
    text = "\0".join((driver, storage_class, node))
    return f"csisc-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def managed_by(node: str) -> str:
    """Return the label value of objects that a node's agent writes."""
    return names.label_value(f"tonnage-{node}")


def numbers(obj: CSIStorageCapacity) -> tuple[int, int | None]:
    """Return capacity and maximum volume size in bytes (None: not published)."""
    maximum = None if obj.maximum_volume_size is None else to_bytes(obj.maximum_volume_size)
    return to_bytes(obj.capacity or "0"), maximum


def counted(obj: CSIStorageCapacity) -> int:
    """Return the observed claim version."""
    return obj.counted or 0


def reason(obj: CSIStorageCapacity) -> str:
    """Return why the driver cannot serve the class on the node, or ""."""
    return obj.metadata.annotations.get(names.REASON, "")


def inline(obj: CSIStorageCapacity) -> int | None:
    """Return the inline capacity in bytes, None without; negative if invalid."""
    text = names.annotation(obj.metadata.annotations, names.INLINE_CAPACITY)
    try:
        return to_bytes(text) if text else None
    except InvalidError:
        return -1


def difference(before: CSIStorageCapacity, after: CSIStorageCapacity) -> str:
    """Describe the difference in our fields for people; "" for none."""
    found = [
        f"{name} {now}, was {was}"
        for name, was, now in (
            ("capacity", before.capacity, after.capacity),
            ("maximumVolumeSize", before.maximum_volume_size, after.maximum_volume_size),
            ("note of what is counted", counted(before), counted(after)),
            ("inline capacity", inline(before), inline(after)),
            ("reason", reason(before) or "none", reason(after) or "none"),
        )
        if was != now
    ]
    if before.metadata.owner_references != after.metadata.owner_references:
        found.append("owner")
    if not before.metadata.labels.items() <= after.metadata.labels.items():
        found.append("labels")
    return ", ".join(found)


def less(one: int | None, other: int | None) -> bool:
    """Return whether the first maximum is lower; None has no limit."""
    return one is not None and (other is None or one < other)


def least(one: int | None, other: int | None) -> int | None:
    """Return the lower number; None if both are None."""
    return min((m for m in (one, other) if m is not None), default=None)


@dataclass(frozen=True)
class DesiredCapacity:
    """Desired capacity object.

    counted: the observed claim version. required_version: the version that an object must have observed at least.
    reason: why the class cannot have volumes, or "". usual: the usual request of the class, in bytes.
    """

    name: str
    source: CapacitySource
    driver: DriverInfo
    storage_class: StorageClass
    amount: PoolCapacity
    counted: int
    required_version: int
    reason: str = ""
    usual: int = 0

    @property
    def class_name(self) -> str:
        """Name of its class."""
        return self.storage_class.metadata.name

    def labels(self, scope: NodeScope) -> dict[str, str]:
        """Labels of the node and of the pool."""
        labels = {
            names.CAPACITY_DRIVER: self.driver.name,
            names.CAPACITY_MANAGED_BY: managed_by(scope.node),
            names.NODE_LABEL: scope.label,
        }
        pool = self.driver.pool(self.storage_class)
        if pool and not self.reason:  # a class may name any text as its pool, and a label cannot hold it
            labels[names.POOL_LABEL] = names.label_value(pool)
            if pool == self.driver.default_pool and len(self.driver.pools) > 1:
                labels[names.DEFAULT_POOL] = "true"
        return labels

    def annotations(self, amount: PoolCapacity) -> dict[str, str | None]:
        """Annotations for that capacity; None: the annotation is removed."""
        return {
            names.OBSERVED_CLAIM_VERSION: str(self.counted),
            names.FORMER_KEYS[names.OBSERVED_CLAIM_VERSION]: None,
            names.REASON: self.reason or None,
            names.INLINE_CAPACITY: _text(amount.inline),
            names.FORMER_KEYS[names.INLINE_CAPACITY]: None,
        }

    def body(self, scope: NodeScope, namespace: str, owner: OwnerReference) -> dict[str, Any]:
        """Body of the object, to create it."""
        body: dict[str, Any] = {
            "metadata": {
                "name": self.name,
                "namespace": namespace,
                "labels": self.labels(scope),
                "annotations": {key: text for key, text in self.annotations(self.amount).items() if text is not None},
                "ownerReferences": [to_builtins(owner)],
            },
            "nodeTopology": {"matchLabels": dict(self.driver.segment)},
            "storageClassName": self.class_name,
            "capacity": from_bytes(self.amount.available),
        }
        if self.amount.maximum is not None:
            body["maximumVolumeSize"] = from_bytes(self.amount.maximum)
        return body

    def patch(self, amount: PoolCapacity) -> dict[str, Any]:
        """Patch that makes an existing object publish that capacity."""
        return {
            "metadata": {"annotations": self.annotations(amount)},
            "capacity": from_bytes(amount.available),
            "maximumVolumeSize": _text(amount.maximum),
        }

    def is_in_place(self, have: CSIStorageCapacity) -> bool:
        """Return whether a patch suffices: topology and class cannot be changed."""
        labels = have.node_topology.match_labels if have.node_topology else None
        return labels == dict(self.driver.segment) and have.storage_class_name == self.class_name

    def is_lower(self, have: CSIStorageCapacity) -> bool:
        """Return whether the desired numbers are lower than the object's.

        No number for inline volumes is lower than any number.
        """
        available, maximum = numbers(have)
        published, wanted = inline(have), self.amount.inline
        lowered = published is not None and (wanted is None or wanted < published)
        return self.amount.available < available or less(self.amount.maximum, maximum) or lowered

    def is_higher(self, have: CSIStorageCapacity) -> bool:
        """Return whether the desired numbers are higher than the object's."""
        available, maximum = numbers(have)
        risen = self.amount.inline is not None and (inline(have) or 0) < self.amount.inline
        return self.amount.available > available or less(maximum, self.amount.maximum) or risen


def _text(number: int | None) -> str | None:
    return None if number is None else from_bytes(number)
