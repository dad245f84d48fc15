"""How much capacity a volume may take, with reserves, and the messages when it does not fit.

A volume leaves two reserves: what its class leaves to others, and the inline capacity. Inline volumes use the inline
capacity and free bytes beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tonnage.api.quantity import from_bytes
from tonnage.errors import ExhaustedError, OutOfRangeError
from tonnage.pools.base.contract import Capacity, PoolVolume, is_inline
from tonnage.pools.base.record import VolumeRecord

LARGEST = 2**63 - 1
"""CSI counts bytes in int64."""


@dataclass(frozen=True)
class Reserve:
    """Bytes of the pool that a volume leaves free.

    of_class: for others, as its class says. inline: for future inline volumes. budget: for all inline volumes, existing
    ones included.
    """

    of_class: int = 0
    inline: int = 0
    budget: int = 0

    @property
    def now(self) -> int:
        """The reserve out of the free bytes."""
        return self.of_class + self.inline

    @property
    def ever(self) -> int:
        """The reserve out of an empty pool."""
        return self.of_class + self.budget

    def __str__(self) -> str:
        """The end of a message about capacity, "" without a reserve."""
        parts = [f"the {from_bytes(self.of_class)} that the class leaves to others"] if self.of_class else []
        if self.inline:
            parts.append(f"the {from_bytes(self.inline)} that are reserved for inline volumes")
        return f", excluding {' and '.join(parts)}" if parts else ""


NONE = Reserve()


def reserve(
    budget: int, volumes: Iterable[PoolVolume | VolumeRecord], *, of_class: int = 0, inline: bool = False
) -> Reserve:
    """The reserve that a volume leaves in a pool with `budget` bytes of inline capacity.

    inline: whether it is an inline volume.
    """
    if inline or not budget:
        return Reserve(of_class)
    taken = sum(volume.size for volume in volumes if is_inline(volume.owner))
    return Reserve(of_class, max(0, budget - taken), budget)


def left(room: Capacity, reserve: Reserve, *, step: int = 1) -> Capacity:
    """The capacity for a class that leaves `reserve`."""
    if not reserve.ever:
        return room
    free = max(0, room.free - reserve.now)
    largest = min(room.largest, free // step * step)
    return replace(
        room, total=max(0, room.total - reserve.ever), free=free, largest=largest if largest >= room.smallest else 0
    )


def check_more(pool: str, volume: PoolVolume, size: int, room: Capacity, reserve: Reserve = NONE) -> None:
    """Check that a volume can grow to `size` bytes.

    pool: its name. room: what left() returns with that reserve. Raises OutOfRangeError when a volume can never have
    `size` bytes, ExhaustedError when the free bytes do not suffice.
    """
    if size > room.total:
        raise OutOfRangeError(
            f"volume {volume.name} cannot have {from_bytes(size)}: pool {pool!r} holds"
            f" {from_bytes(room.total)} at most{_ever(reserve)}"
        )
    if size - volume.size > room.free:
        raise ExhaustedError(
            f"volume {volume.name} cannot grow by {from_bytes(size - volume.size)}: pool {pool!r} has"
            f" {from_bytes(room.free)} free{reserve} ({_promised(room, reserve)})"
        )


def check_room(pool: str, name: str, size: int, room: Capacity, reserve: Reserve = NONE) -> None:
    """Check that a new volume fits.

    pool: its name. room: what left() returns with that reserve. Raises OutOfRangeError when the empty pool would
    be too small, ExhaustedError when the free bytes do not suffice.
    """
    if size > room.total:
        raise OutOfRangeError(
            f"volume {name} of {from_bytes(size)} can never fit: pool {pool!r} holds"
            f" {from_bytes(room.total)} at most{_ever(reserve)}"
        )
    if size > room.largest:
        raise ExhaustedError(
            f"volume {name} of {from_bytes(size)} does not fit: pool {pool!r} has at most"
            f" {from_bytes(room.largest)} for one volume{reserve} ({_promised(room, reserve)})"
        )


def _ever(reserve: Reserve) -> str:
    return str(replace(reserve, inline=reserve.budget))


def _promised(room: Capacity, reserve: Reserve) -> str:
    return f"{from_bytes(room.used)} of {from_bytes(room.total + reserve.ever)} reserved"
