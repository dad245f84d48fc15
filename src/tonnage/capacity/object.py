"""CSIStorageCapacity objects of ours: names, fields, differences. Pure."""

from __future__ import annotations

import hashlib

from tonnage.api import names
from tonnage.api.quantity import to_bytes
from tonnage.api.storage import CSIStorageCapacity
from tonnage.errors import InvalidError


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


def version(obj: CSIStorageCapacity) -> int:
    """Return its resourceVersion as a number: a later one of an object is higher."""
    return obj.metadata.version


def counted(obj: CSIStorageCapacity) -> int:
    """Return the observed claim version."""
    return obj.counted or 0


def reason(obj: CSIStorageCapacity) -> str:
    """Return why the driver cannot serve the class on the node, or ""."""
    return obj.metadata.annotations.get(names.REASON, "")


def inline(obj: CSIStorageCapacity) -> int | None:
    """Return the inline capacity in bytes, None without; negative if invalid."""
    text = obj.metadata.annotations.get(names.INLINE_ROOM, "")
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
