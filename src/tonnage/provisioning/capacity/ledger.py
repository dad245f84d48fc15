"""Ledger of a node's reservations: published = free - reserved. Sans-I/O.

GetCapacity reports what is free at one moment; claims and volumes come and go around it. For each source (a class of a
driver), the ledger has the last GetCapacity result; for each claim, its stage. It subtracts a volume from a result
unless the volume certainly existed before that call began. The numbers are therefore never too high, and the next
result makes them exact. Nothing is stored: after a restart the ledger is rebuilt from the node's claims.

Sources that use the same bytes have the same `pool_key`. All sizes are bytes. A counter defines the order of events,
not a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tonnage.provisioning.claims.node_scope import CapacitySource

REMEMBERED = 32
"""Number of recent claims of a source whose sizes define the usual request."""


class Stage(Enum):
    """Stage of a claim that has this node."""

    OBSERVED = "observed"
    """Observed and subtracted from published capacity; not reserved yet."""
    RESERVED = "reserved"
    """Reserved: CreateVolume may be called."""
    CREATING = "creating"
    """CreateVolume was called and its outcome is not known."""
    CREATED = "created"
    """The volume exists; stays until GetCapacity results include it."""
    GUARDED = "guarded"
    """The starvation guard reserves free bytes for it against all others."""
    REJECTED = "rejected"
    """Rejected: to be rescheduled, or never served; not subtracted."""


@dataclass
class ClaimReservation:
    """Reservation of one claim.

    attempt: its reschedules when it came. seen: monotonic seconds.
    """

    uid: str
    source: CapacitySource
    size: int
    attempt: str
    seen: float
    stage: Stage = Stage.OBSERVED
    made: int = 0


@dataclass(frozen=True)
class Reading:
    """GetCapacity result: free bytes at tick `begun`, maximum volume size.

    The maximum is None if the driver reports none. inline_reserved: more bytes that are free for inline volumes only,
    None without inline capacity.
    """

    begun: int
    available: int
    maximum: int | None
    inline_reserved: int | None = None


@dataclass(frozen=True)
class PoolCapacity:
    """Capacity that may be published for a source now.

    maximum: maximum volume size, None if the driver reports none. inline: inline capacity, None without: inline volumes
    then use the pool's capacity.
    """

    available: int
    maximum: int | None
    inline: int | None = None


@dataclass(frozen=True)
class Shortfall:
    """Insufficient storage for claims.

    Sizes of all claims of the source's pool, the free bytes for them, and the maximum volume size.
    """

    source: CapacitySource
    sizes: tuple[int, ...]
    free: int
    largest: int


@dataclass(eq=False)
class Ledger:
    """All reservations and GetCapacity results of a node.

    `changed` is called whenever published numbers may have changed.
    """

    changed: Callable[[], None] = lambda: None
    counted: int = 0
    """Highest resourceVersion of an observed claim."""
    required_version: int = 0
    """Highest resourceVersion of a claim with a new reservation.

    Capacity objects must have an observed claim version of at least this."""
    _reservations: dict[str, ClaimReservation] = field(default_factory=dict)
    _readings: dict[CapacitySource, Reading] = field(default_factory=dict)
    _asked: dict[CapacitySource, deque[int]] = field(default_factory=dict)
    _tick: int = 0

    # Claims

    @property
    def counts(self) -> Mapping[str, int]:
        """Count claims by stage. May be called in another thread."""
        stages = [reservation.stage for reservation in list(self._reservations.values())]
        return {stage.value: stages.count(stage) for stage in Stage}

    @property
    def unmade(self) -> Sequence[ClaimReservation]:
        """Claims without a volume. May be called in another thread."""
        return [
            reservation for reservation in list(self._reservations.values()) if reservation.stage is not Stage.CREATED
        ]

    def get(self, uid: str) -> ClaimReservation | None:
        """Return the claim's reservation, or None."""
        return self._reservations.get(uid)

    def version(self, version: int) -> None:
        """Record the observed resourceVersion of a claim. Call it before see()."""
        self.counted = max(self.counted, version)

    def see(
        self, uid: str, source: CapacitySource, size: int, *, attempt: str, version: int, now: float
    ) -> ClaimReservation:
        """Add a claim that has this node and no volume. Idempotent.

        A claim under way stays as it is.
        """
        found = self._reservations.get(uid)
        if found is not None and (found.stage is not Stage.REJECTED or found.attempt == attempt):
            return found
        reservation = self._reservations[uid] = ClaimReservation(uid, source, size, attempt, now)
        self.version(version)
        self.required_version = max(self.required_version, version)
        self.changed()
        return reservation

    def asked(self, source: CapacitySource) -> Sequence[int]:
        """Return sizes of the source's last claims that got a reservation, in bytes."""
        return self._asked.get(source, ())

    def forget(self, uid: str) -> None:
        """Remove a claim that no longer has this node.

        A volume that exists or is under way stays until its deletion is known.
        """
        reservation = self._reservations.get(uid)
        if reservation is not None and reservation.stage not in (Stage.CREATING, Stage.CREATED):
            del self._reservations[uid]
            self.changed()

    def reserve(self, uids: Sequence[str]) -> Shortfall | None:
        """Reserve all these claims, or none and return why.

        Claims that are reserved or further are skipped. Claims that are only observed do not count: the first call
        wins. A source without a GetCapacity result rejects nothing, since its driver may lack GetCapacity; CreateVolume
        decides there.
        """
        asking = [p for u in uids if (p := self._reservations.get(u)) and p.stage in _ASKING]
        for source in {p.source: None for p in asking}:
            if shortage := self._shortage(source, [p for p in asking if p.source.pool_key == source.pool_key]):
                return shortage
        for reservation in asking:
            if reservation.size:  # else its volume exists: it says nothing about sizes to come
                self._asked.setdefault(reservation.source, deque(maxlen=REMEMBERED)).append(reservation.size)
            self._move(reservation, Stage.RESERVED)
        return None

    def expand(self, key: str, source: CapacitySource, more: int, *, now: float) -> Shortfall | None:
        """Reserve `more` bytes for a volume that exists and is about to be expanded, or return why not. Idempotent.

        key: of this reservation; no claim's uid. made() ends it when the driver has answered, removed() when it failed.
        The maximum volume size does not matter: it limits new volumes.
        """
        if key in self._reservations or more <= 0:
            return None
        left = self._capacity(source, (p for p in self._of(source.pool_key) if p.stage in _HOLDING))
        if left is not None and more > left.available:
            return Shortfall(source, (more,), left.available, left.available)
        self._reservations[key] = ClaimReservation(key, source, more, "", now, Stage.CREATING)
        self.changed()
        return None

    def lacks(self, uids: Iterable[str], coming: Iterable[tuple[CapacitySource, int]]) -> Shortfall | None:
        """Return why these and the expected claims do not fit, None if they do.

        coming: sources and sizes of expected claims.
        """
        asking = [p for u in uids if (p := self._reservations.get(u)) and p.stage in _ASKING]
        asking += [ClaimReservation("", source, size, "", 0.0) for source, size in coming]
        found = (
            self._shortage(s, [p for p in asking if p.source.pool_key == s.pool_key])
            for s in {p.source for p in asking}
        )
        return next(filter(None, found), None)

    def reject(self, uids: Iterable[str]) -> None:
        """Reject these claims: subtract them no longer.

        Except those whose creation has begun, or under the starvation guard.
        """
        self._shift(uids, (Stage.OBSERVED, Stage.RESERVED), Stage.REJECTED)

    def keep(self, uids: Iterable[str]) -> None:
        """Begin the starvation guard for these claims. Idempotent."""
        self._shift(uids, (Stage.OBSERVED, Stage.REJECTED), Stage.GUARDED)

    def guarded(self) -> set[str]:
        """Return the claims under the starvation guard."""
        return {p.uid for p in self._reservations.values() if p.stage is Stage.GUARDED}

    def release(self, uids: Iterable[str]) -> None:
        """End the starvation guard for these claims."""
        self._shift(uids, (Stage.GUARDED,), Stage.REJECTED)

    def needing(self, uids: Iterable[str]) -> list[ClaimReservation]:
        """Return those of these claims that have no reservation and need capacity for one."""
        return [p for u in uids if (p := self._reservations.get(u)) and p.stage in _ASKING and p.size]

    def exists(self, uid: str) -> None:
        """Record that the claim's volume exists already and every GetCapacity result includes it.

        The claim then needs no capacity. Call it for one of needing(). Idempotent.
        """
        if reservation := self._reservations.get(uid):
            reservation.size = 0
            self.changed()

    def start(self, uid: str) -> None:
        """Record that CreateVolume is about to be called."""
        self._shift((uid,), Stage, Stage.CREATING)

    def made(self, uid: str, size: int) -> None:
        """Record that CreateVolume succeeded with that size."""
        if reservation := self._reservations.get(uid):
            self._tick += 1
            reservation.made = self._tick
            reservation.size = max(size, reservation.size)
            self._move(reservation, Stage.CREATED)

    def failed(self, uid: str, *, rejected: bool = False) -> None:
        """Record that CreateVolume failed with a final error: no volume exists.

        The claim keeps its reservation for a retry. rejected: the driver rejected it, for insufficient storage or as
        infeasible.
        """
        self._shift((uid,), (Stage.CREATING,), Stage.REJECTED if rejected else Stage.RESERVED)

    def removed(self, uid: str) -> None:
        """Remove a reservation: the volume is gone, or all results include it."""
        if self._reservations.pop(uid, None) is not None:
            self.changed()

    def creating(self, driver: str) -> bool:
        """Return whether a CreateVolume of the driver is under way."""
        return any(p.stage is Stage.CREATING and p.source.driver == driver for p in self._reservations.values())

    # GetCapacity results

    def begin(self) -> int:
        """Begin a GetCapacity call; return the tick for read()."""
        self._tick += 1
        return self._tick

    def read(
        self,
        source: CapacitySource,
        begun: int,
        available: int,
        maximum: int | None,
        *,
        inline_reserved: int | None = None,
    ) -> None:
        """Store the result of a GetCapacity call that began at tick `begun`.

        inline_reserved: as in Reading.
        """
        old = self._readings.get(source)
        unsure = sum(p.size for p in self._of(source.pool_key) if _outstanding(p, begun))
        if old is not None and unsure:
            # The expected number is exact unless somebody else used the disk. The result may or may not include volumes
            # under way: while it agrees with the expectation either way, use the expectation, so that published numbers
            # do not flicker.
            expected = old.available - sum(p.size for p in self._of(source.pool_key) if old.begun <= p.made < begun)
            if available <= expected <= available + unsure:
                available = expected
        self._readings[source] = Reading(begun, available, maximum, inline_reserved)
        self._absorb(source.pool_key)
        self.changed()

    def unread(self, source: CapacitySource) -> None:
        """Forget the result of a source that is gone."""
        self._readings.pop(source, None)

    def shared_by(self, pool_keys: Iterable[str]) -> int:
        """Count sources with a result that use these pools."""
        wanted = set(pool_keys)
        return sum(source.pool_key in wanted for source in self._readings)

    def free(self, source: CapacitySource) -> int | None:
        """Free bytes of the last result, without subtracting reservations; None before it."""
        reading = self._readings.get(source)
        return reading.available if reading is not None else None

    def capacity(self, source: CapacitySource) -> PoolCapacity | None:
        """Return what may be published for the source; None before its first result."""
        return self._capacity(source, self._of(source.pool_key))

    def _capacity(self, source: CapacitySource, counted: Iterable[ClaimReservation]) -> PoolCapacity | None:
        reading = self._readings.get(source)
        if reading is None:
            return None
        taken = sum(p.size for p in counted if p.stage is not Stage.REJECTED and not 0 < p.made < reading.begun)
        free = max(0, reading.available - taken)
        inline = (
            None if reading.inline_reserved is None else max(0, reading.available + reading.inline_reserved - taken)
        )
        return PoolCapacity(free, None if reading.maximum is None else min(reading.maximum, free), inline)

    def _shortage(self, source: CapacitySource, asking: Sequence[ClaimReservation]) -> Shortfall | None:
        uids = {p.uid for p in asking}
        held = (p for p in self._of(source.pool_key) if p.stage in _HOLDING and p.uid not in uids)
        left = self._capacity(source, held)
        if left is None:
            return None
        largest = left.available if left.maximum is None else left.maximum
        sizes = tuple(p.size for p in asking)
        if sum(sizes) <= left.available and all(p.size <= largest for p in asking if p.source == source):
            return None
        return Shortfall(source, sizes, left.available, largest)

    def _of(self, pool_key: str) -> list[ClaimReservation]:
        return [p for p in self._reservations.values() if p.source.pool_key == pool_key]

    def _shift(self, uids: Iterable[str], stages: Iterable[Stage], stage: Stage) -> None:
        """Move those of the claims that are in one of the stages to another stage."""
        for uid in uids:
            if (reservation := self._reservations.get(uid)) and reservation.stage in stages:
                self._move(reservation, stage)

    def _move(self, reservation: ClaimReservation, stage: Stage) -> None:
        reservation.stage = stage
        self.changed()

    def _absorb(self, pool_key: str) -> None:
        """Remove created volumes that every result of the pool includes."""
        begun = min((r.begun for s, r in self._readings.items() if s.pool_key == pool_key), default=0)
        for reservation in self._of(pool_key):
            if reservation.stage is Stage.CREATED and reservation.made < begun:
                del self._reservations[reservation.uid]


_ASKING = (Stage.OBSERVED, Stage.REJECTED, Stage.GUARDED)
_HOLDING = (Stage.RESERVED, Stage.CREATING, Stage.CREATED, Stage.GUARDED)


def _outstanding(reservation: ClaimReservation, begun: int) -> bool:
    """Return whether it is unknown if a result that began then includes the volume."""
    return reservation.stage is Stage.CREATING or reservation.made >= begun
