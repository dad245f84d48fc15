"""What this node has promised: published room = really free - promised, with nothing counted twice. Sans-I/O.

GetCapacity says what is free at some moment; claims come, volumes are made and go around that moment. The ledger keeps
for each source (a class of a driver) the last reading, and for each claim where it stands. A volume is subtracted from
a reading unless it surely was made before the reading began, so the numbers are never larger than the truth; the next
reading makes them exact. Nothing here is stored: after a restart it is rebuilt from the claims of the node.

Sources that draw on the same bytes share a room. All sizes are bytes. Order is told by a counter, not by time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tonnage.claims.node_scope import CapacitySource

REMEMBERED = 32
"""Claims of a source whose sizes tell what is usually asked."""


class Stage(Enum):
    """Where a claim sent to this node stands."""

    OBSERVED = "observed"
    """Sent here, counted, not yet allowed to take its room."""
    RESERVED = "reserved"
    """Its room is its own; CreateVolume may be called."""
    CREATING = "creating"
    """CreateVolume was called and its outcome is not known."""
    CREATED = "created"
    """The volume is there; kept until readings include it."""
    GUARDED = "guarded"
    """The starvation guard reserves for it what the pool has and gets: counted, against all other claims."""
    REJECTED = "rejected"
    """No room, so that it is about to be sent back, or never to be served; not counted."""


@dataclass
class ClaimReservation:
    """One claim. attempt: how often it had been withdrawn when it came; seen: monotonic seconds."""

    uid: str
    source: CapacitySource
    size: int
    attempt: str
    seen: float
    stage: Stage = Stage.OBSERVED
    made: int = 0


@dataclass(frozen=True)
class Reading:
    """Free bytes at tick `begun`, and the largest volume that could then be had (None: the driver does not say).
    kept: bytes beside these that were free for inline volumes only, None where none are kept."""

    begun: int
    available: int
    maximum: int | None
    kept: int | None = None


@dataclass(frozen=True)
class PoolCapacity:
    """What may be published for a source now. maximum: the largest volume, None where the driver does not say. inline:
    bytes for inline volumes, None where none are kept for them: then they have what others have."""

    available: int
    maximum: int | None
    inline: int | None = None


@dataclass(frozen=True)
class Shortfall:
    """Why claims were not booked: sizes of all that were asked of the source's room, what is free there for them, and
    the largest single volume that could be had."""

    source: CapacitySource
    sizes: tuple[int, ...]
    free: int
    largest: int


def _nothing() -> None:
    """Default listener."""


@dataclass(eq=False)
class Ledger:
    """All promises and readings of a node. `changed` is called whenever published numbers may have changed."""

    changed: Callable[[], None] = _nothing
    counted: int = 0
    """Highest resourceVersion of a claim seen: all numbers include its promise."""
    promised: int = 0
    """Highest resourceVersion with which a new promise came: what `tonnage.dev/observed-claim-version` must reach."""
    _promises: dict[str, ClaimReservation] = field(default_factory=dict)
    _readings: dict[CapacitySource, Reading] = field(default_factory=dict)
    _asked: dict[CapacitySource, deque[int]] = field(default_factory=dict)
    _tick: int = 0

    # Claims

    @property
    def counts(self) -> Mapping[str, int]:
        """How many claims are at which stage, for people; may be asked in another thread."""
        stages = [promise.stage for promise in list(self._promises.values())]
        return {stage.value: stages.count(stage) for stage in Stage}

    @property
    def unmade(self) -> Sequence[ClaimReservation]:
        """Those of claims that have no volume yet; may be asked in another thread."""
        return [promise for promise in list(self._promises.values()) if promise.stage is not Stage.CREATED]

    def get(self, uid: str) -> ClaimReservation | None:
        """The claim's promise, or None."""
        return self._promises.get(uid)

    def version(self, version: int) -> None:
        """Note that a claim of that resourceVersion was seen. Call it before the claim's see()."""
        self.counted = max(self.counted, version)

    def see(
        self, uid: str, source: CapacitySource, size: int, *, attempt: str, version: int, now: float
    ) -> ClaimReservation:
        """Count a claim that is sent here and has no volume. May be repeated: what is under way stays as it is."""
        found = self._promises.get(uid)
        if found is not None and (found.stage is not Stage.REJECTED or found.attempt == attempt):
            return found
        promise = self._promises[uid] = ClaimReservation(uid, source, size, attempt, now)
        self.version(version)
        self.promised = max(self.promised, version)
        self.changed()
        return promise

    def asked(self, source: CapacitySource) -> Sequence[int]:
        """What the last claims of the source asked that got their room, in bytes."""
        return self._asked.get(source, ())

    def forget(self, uid: str) -> None:
        """The claim is no longer sent here, or gone. A volume under way or made stays counted until that is known."""
        promise = self._promises.get(uid)
        if promise is not None and promise.stage not in (Stage.CREATING, Stage.CREATED):
            del self._promises[uid]
            self.changed()

    def book(self, uids: Sequence[str]) -> Shortfall | None:
        """Give all these claims their room, or none and say why not. Those already booked or further are left alone.

        Promises that are not booked yet do not stand in the way: who asks first gets it. A source that was never read
        (its driver has no GetCapacity) refuses nothing; CreateVolume decides there.
        """
        asking = [p for u in uids if (p := self._promises.get(u)) and p.stage in _ASKING]
        for source in {p.source: None for p in asking}:
            if shortage := self._shortage(source, [p for p in asking if p.source.room == source.room]):
                return shortage
        for promise in asking:
            self._asked.setdefault(promise.source, deque(maxlen=REMEMBERED)).append(promise.size)
            self._move(promise, Stage.RESERVED)
        return None

    def lacks(self, uids: Iterable[str], coming: Iterable[tuple[CapacitySource, int]]) -> Shortfall | None:
        """Why these claims and those that are yet to come could not be booked together; None when they could."""
        asking = [p for u in uids if (p := self._promises.get(u)) and p.stage in _ASKING]
        asking += [ClaimReservation("", source, size, "", 0.0) for source, size in coming]
        found = (self._shortage(s, [p for p in asking if p.source.room == s.room]) for s in {p.source for p in asking})
        return next(filter(None, found), None)

    def refuse(self, uids: Iterable[str]) -> None:
        """These claims will be sent back: stop counting those whose creation has not begun, and that are not kept."""
        for uid in uids:
            promise = self._promises.get(uid)
            if promise is not None and promise.stage in (Stage.OBSERVED, Stage.RESERVED):
                self._move(promise, Stage.REJECTED)

    def keep(self, uids: Iterable[str]) -> None:
        """Keep room for these claims that have none. May be repeated."""
        for uid in uids:
            promise = self._promises.get(uid)
            if promise is not None and promise.stage in (Stage.OBSERVED, Stage.REJECTED):
                self._move(promise, Stage.GUARDED)

    def kept(self) -> set[str]:
        """The claims for which room is kept."""
        return {p.uid for p in self._promises.values() if p.stage is Stage.GUARDED}

    def release(self, uids: Iterable[str]) -> None:
        """Keep room for these claims no more."""
        for uid in uids:
            promise = self._promises.get(uid)
            if promise is not None and promise.stage is Stage.GUARDED:
                self._move(promise, Stage.REJECTED)

    def start(self, uid: str) -> None:
        """CreateVolume is about to be called."""
        if promise := self._promises.get(uid):
            self._move(promise, Stage.CREATING)

    def made(self, uid: str, size: int) -> None:
        """CreateVolume succeeded with that size."""
        if promise := self._promises.get(uid):
            self._tick += 1
            promise.made = self._tick
            promise.size = max(size, promise.size)
            self._move(promise, Stage.CREATED)

    def failed(self, uid: str, *, refused: bool = False) -> None:
        """CreateVolume failed for good: nothing was made. The claim keeps its booking, so that it can be tried again,
        unless the driver refused it: for want of room, or for what it asks."""
        promise = self._promises.get(uid)
        if promise is not None and promise.stage is Stage.CREATING:
            self._move(promise, Stage.REJECTED if refused else Stage.RESERVED)

    def removed(self, uid: str) -> None:
        """The claim's volume is gone, or turned out to be in the readings already: drop the promise."""
        if self._promises.pop(uid, None) is not None:
            self.changed()

    def creating(self, driver: str) -> bool:
        """Whether a CreateVolume of the driver is under way."""
        return any(p.stage is Stage.CREATING and p.source.driver == driver for p in self._promises.values())

    # Readings

    def begin(self) -> int:
        """GetCapacity is about to be called: returns what read() wants to know."""
        self._tick += 1
        return self._tick

    def read(
        self, source: CapacitySource, begun: int, available: int, maximum: int | None, *, kept: int | None = None
    ) -> None:
        """Take in GetCapacity's answer to a call that begun at begin(). kept: see Reading."""
        old = self._readings.get(source)
        unsure = sum(p.size for p in self._of(source.room) if _outstanding(p, begun))
        if old is not None and unsure:
            # What we expect is exact unless somebody else used the disk. The answer may or may not include the
            # volumes under way: while it agrees with what is expected either way, do not let it shake the numbers.
            expected = old.available - sum(p.size for p in self._of(source.room) if old.begun <= p.made < begun)
            if available <= expected <= available + unsure:
                available = expected
        self._readings[source] = Reading(begun, available, maximum, kept)
        self._absorb(source.room)
        self.changed()

    def unread(self, sources: Iterable[CapacitySource]) -> None:
        """These sources are gone: forget their readings."""
        for source in sources:
            self._readings.pop(source, None)

    def shared_by(self, rooms: Iterable[str]) -> int:
        """How many sources with a reading draw on these rooms."""
        wanted = set(rooms)
        return sum(source.room in wanted for source in self._readings)

    def free(self, source: CapacitySource) -> int | None:
        """Bytes that were free at the last reading, whatever is promised; None before the first."""
        reading = self._readings.get(source)
        return reading.available if reading is not None else None

    def room(self, source: CapacitySource) -> PoolCapacity | None:
        """What may be published for the source; None before its first reading."""
        return self._room(source, self._of(source.room))

    def _room(self, source: CapacitySource, counted: Iterable[ClaimReservation]) -> PoolCapacity | None:
        reading = self._readings.get(source)
        if reading is None:
            return None
        taken = sum(p.size for p in counted if p.stage is not Stage.REJECTED and not 0 < p.made < reading.begun)
        free = max(0, reading.available - taken)
        inline = None if reading.kept is None else max(0, reading.available + reading.kept - taken)
        return PoolCapacity(free, None if reading.maximum is None else min(reading.maximum, free), inline)

    def _shortage(self, source: CapacitySource, asking: Sequence[ClaimReservation]) -> Shortfall | None:
        uids = {p.uid for p in asking}
        held = (p for p in self._of(source.room) if p.stage in _HOLDING and p.uid not in uids)
        room = self._room(source, held)
        if room is None:
            return None
        largest = room.available if room.maximum is None else room.maximum
        sizes = tuple(p.size for p in asking)
        if sum(sizes) <= room.available and all(p.size <= largest for p in asking if p.source == source):
            return None
        return Shortfall(source, sizes, room.available, largest)

    def _of(self, room: str) -> list[ClaimReservation]:
        return [p for p in self._promises.values() if p.source.room == room]

    def _move(self, promise: ClaimReservation, stage: Stage) -> None:
        promise.stage = stage
        self.changed()

    def _absorb(self, room: str) -> None:
        """Drop made volumes that every reading of the room includes."""
        begun = min((r.begun for s, r in self._readings.items() if s.room == room), default=0)
        for promise in self._of(room):
            if promise.stage is Stage.CREATED and promise.made < begun:
                del self._promises[promise.uid]


_ASKING = (Stage.OBSERVED, Stage.REJECTED, Stage.GUARDED)
_HOLDING = (Stage.RESERVED, Stage.CREATING, Stage.CREATED, Stage.GUARDED)


def _outstanding(promise: ClaimReservation, begun: int) -> bool:
    """Whether a reading that began then may or may not include the volume."""
    return promise.stage is Stage.CREATING or promise.made >= begun
