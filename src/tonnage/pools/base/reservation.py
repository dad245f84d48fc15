"""How much of a pool's room a volume may take, and the words when it does not fit.

Volumes leave a reserve: to others, as their class says, and to inline volumes, what the pool keeps for those. Inline
volumes take what is kept for them, and free room beyond it like others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tonnage.api.quantity import from_bytes
from tonnage.errors import Exhausted, OutOfRange
from tonnage.pools.base.contract import Capacity, Pool, Volume, is_inline
from tonnage.pools.base.record import Record

LARGEST = 2**63 - 1
"""CSI counts bytes in int64."""


@dataclass(frozen=True)
class Reserve:
    """Bytes of the pool that a volume leaves. of_class: to others, as its class says. inline: to inline volumes that
    may come. budget: to inline volumes in all, those that are there included."""

    of_class: int = 0
    inline: int = 0
    budget: int = 0

    @property
    def now(self) -> int:
        """Of what is free."""
        return self.of_class + self.inline

    @property
    def ever(self) -> int:
        """Of what an empty pool has."""
        return self.of_class + self.budget

    def __str__(self) -> str:
        """For the end of a sentence about room, "" where nothing is left to anybody."""
        parts = [f"the {from_bytes(self.of_class)} that the class leaves to others"] if self.of_class else []
        if self.inline:
            parts.append(f"the {from_bytes(self.inline)} that are kept for inline volumes")
        return f", beside {' and '.join(parts)}" if parts else ""


NONE = Reserve()


def reserve(budget: int, volumes: Iterable[Volume | Record], *, of_class: int = 0, inline: bool = False) -> Reserve:
    """What a volume leaves in a pool that keeps `budget` bytes for inline volumes. inline: whether it is one itself."""
    if inline or not budget:
        return Reserve(of_class)
    taken = sum(volume.size for volume in volumes if is_inline(volume.owner))
    return Reserve(of_class, max(0, budget - taken), budget)


def left(room: Capacity, reserve: Reserve, *, step: int = 1) -> Capacity:
    """The room that a class sees which leaves `reserve`."""
    if not reserve.ever:
        return room
    free = max(0, room.free - reserve.now)
    largest = min(room.largest, free // step * step)
    return replace(
        room, total=max(0, room.total - reserve.ever), free=free, largest=largest if largest >= room.smallest else 0
    )


def check_more(pool: Pool, volume: Volume, size: int, room: Capacity, reserve: Reserve = NONE) -> None:
    """Raises OutOfRange when a volume of `size` bytes can never be, Exhausted when there is no room to grow so far.

    room: what left() says with that reserve.
    """
    if size > room.total:
        raise OutOfRange(
            f"volume {volume.name} cannot have {from_bytes(size)}: pool {pool.name!r} holds"
            f" {from_bytes(room.total)} at most{_ever(reserve)}"
        )
    if size - volume.size > room.free:
        raise Exhausted(
            f"volume {volume.name} cannot grow by {from_bytes(size - volume.size)}: pool {pool.name!r} has"
            f" {from_bytes(room.free)} free{reserve} ({_promised(room, reserve)})"
        )


def check_room(
    pool: Pool, name: str, size: int, room: Capacity, reserve: Reserve = NONE, *, most: int = LARGEST
) -> None:
    """Raises OutOfRange when the empty pool would be too small (or has no volumes above `most` bytes), Exhausted
    when it is too full now. room: what left() says with that reserve."""
    if size > min(room.total, most):
        raise OutOfRange(
            f"volume {name} of {from_bytes(size)} can never fit: pool {pool.name!r} holds"
            f" {from_bytes(min(room.total, most))} at most{_ever(reserve)}"
        )
    if size > room.largest:
        raise Exhausted(
            f"volume {name} of {from_bytes(size)} does not fit: pool {pool.name!r} has room for"
            f" {from_bytes(room.largest)} in one volume{reserve} ({_promised(room, reserve)})"
        )


def _ever(reserve: Reserve) -> str:
    return str(replace(reserve, inline=reserve.budget))


def _promised(room: Capacity, reserve: Reserve) -> str:
    return f"{from_bytes(room.used)} of {from_bytes(room.total + reserve.ever)} promised"
