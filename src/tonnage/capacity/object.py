"""What a CSIStorageCapacity of ours is called, what it says, and how two of them differ. Pure."""

from __future__ import annotations

import hashlib

from tonnage.api import names
from tonnage.api.quantity import to_bytes
from tonnage.api.storage import CSIStorageCapacity
from tonnage.errors import Invalid


def object_name(driver: str, storage_class: str, node: str) -> str:
    """Name of the capacity object of a driver's class on a node: always the same, so that none is made twice."""
    text = "\0".join((driver, storage_class, node))
    return f"csisc-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def managed_by(node: str) -> str:
    """Value of the label that says whose agent writes the object."""
    return names.label_value(f"tonnage-{node}")


def numbers(obj: CSIStorageCapacity) -> tuple[int, int | None]:
    """What it says there is, and the largest volume (None: it does not say), in bytes."""
    maximum = None if obj.maximum_volume_size is None else to_bytes(obj.maximum_volume_size)
    return to_bytes(obj.capacity or "0"), maximum


def counted(obj: CSIStorageCapacity) -> int:
    """Up to which resourceVersion of a claim its numbers include promises."""
    return obj.counted or 0


def reason(obj: CSIStorageCapacity) -> str:
    """Why its driver cannot serve the class there, "" when it can."""
    return obj.metadata.annotations.get(names.REASON, "")


def inline(obj: CSIStorageCapacity) -> int | None:
    """Bytes that inline volumes can have of its pool, None where it does not say; below 0 for what is no number."""
    text = obj.metadata.annotations.get(names.INLINE_ROOM, "")
    try:
        return to_bytes(text) if text else None
    except Invalid:
        return -1


def difference(before: CSIStorageCapacity, after: CSIStorageCapacity) -> str:
    """What of ours differs, for people; "" for nothing."""
    found = [
        f"{name} {now}, was {was}"
        for name, was, now in (
            ("capacity", before.capacity, after.capacity),
            ("maximumVolumeSize", before.maximum_volume_size, after.maximum_volume_size),
            ("note of what is counted", counted(before), counted(after)),
            ("room for inline volumes", inline(before), inline(after)),
            ("reason", reason(before) or "none", reason(after) or "none"),
        )
        if was != now
    ]
    if before.metadata.owner_references != after.metadata.owner_references:
        found.append("owner")
    if not before.metadata.labels.items() <= after.metadata.labels.items():
        found.append("labels")
    return ", ".join(found)


def version(obj: CSIStorageCapacity) -> int:
    """Its resourceVersion as a number: later ones of one object are larger."""
    return int(obj.metadata.resource_version or 0)


def less(one: int | None, other: int | None) -> bool:
    """Whether the first maximum allows less than the second; None allows everything."""
    return one is not None and (other is None or one < other)


def least(one: int | None, other: int | None) -> int | None:
    """The smaller one of two numbers; None where neither is said."""
    return min((m for m in (one, other) if m is not None), default=None)
