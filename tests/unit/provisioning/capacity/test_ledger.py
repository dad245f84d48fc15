"""The ledger against a model of a disk: whatever the order of things, never more is published than is there."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from tests.examples import examples

from tonnage.provisioning.capacity.ledger import Ledger, PoolCapacity, Stage
from tonnage.provisioning.claims.node_scope import CapacitySource

A = CapacitySource("csi", "a", "pool/x")
B = CapacitySource("csi", "b", "pool/x")
OTHER = CapacitySource("csi", "c", "pool/y")


def _see(
    ledger: Ledger, uid: str, size: int, source: CapacitySource = A, *, attempt: str = "", version: int = 1
) -> None:
    ledger.see(uid, source, size, attempt=attempt, version=version, now=0.0)


def _with_reading(available: int = 100, maximum: int | None = 100) -> Ledger:
    ledger = Ledger()
    for source in (A, B, OTHER):
        ledger.read(source, ledger.begin(), available, maximum)
    return ledger


def _free(ledger: Ledger, source: CapacitySource = A) -> int:
    room = ledger.capacity(source)
    assert room is not None
    return room.available


def test_what_is_usually_asked_is_told_by_claims_that_got_their_room() -> None:
    ledger = Ledger()
    source = CapacitySource("d", "c", "pool/p")
    ledger.read(source, ledger.begin(), 10, 10)
    for uid, size in (("small", 4), ("large", 20)):
        ledger.see(uid, source, size, attempt="", version=1, now=0.0)
        ledger.reserve([uid])
    assert list(ledger.asked(source)) == [4]
    assert list(ledger.asked(CapacitySource("d", "other", "pool/p"))) == []


def test_a_promise_counts_from_the_moment_it_is_seen_in_its_room_only() -> None:
    ledger = _with_reading()
    _see(ledger, "u", 30, version=7)
    assert (_free(ledger, A), _free(ledger, B), _free(ledger, OTHER)) == (70, 70, 100)
    assert (ledger.counted, ledger.required_version) == (7, 7)
    ledger.version(9)
    assert (ledger.counted, ledger.required_version) == (9, 7)


def test_the_largest_volume_never_passes_what_is_left() -> None:
    ledger = _with_reading(100, 60)
    assert ledger.capacity(A) == PoolCapacity(100, 60)
    _see(ledger, "u", 70)
    assert ledger.capacity(A) == PoolCapacity(30, 30)
    ledger.read(A, ledger.begin(), 100, None)
    assert ledger.capacity(A) == PoolCapacity(30, None)


def test_nothing_is_known_before_the_first_reading_and_nothing_rejected() -> None:
    ledger = Ledger()
    _see(ledger, "u", 30)
    assert ledger.capacity(A) is None
    assert ledger.reserve(["u"]) is None


def test_all_are_booked_or_none() -> None:
    ledger = _with_reading()
    _see(ledger, "u", 60)
    _see(ledger, "v", 60)
    shortage = ledger.reserve(["u", "v"])
    assert shortage is not None
    assert (shortage.sizes, shortage.free, shortage.largest) == ((60, 60), 100, 100)
    assert {ledger.get(u).stage for u in "uv"} == {Stage.OBSERVED}  # type: ignore[union-attr]
    ledger.reject(["u", "v"])
    assert _free(ledger) == 100
    _see(ledger, "w", 100)
    assert ledger.reserve(["w"]) is None
    assert ledger.reserve(["u"]) is not None


def test_siblings_in_different_pools_are_booked_together() -> None:
    ledger = _with_reading()
    _see(ledger, "u", 100, A)
    _see(ledger, "v", 100, OTHER)
    assert ledger.reserve(["u", "v"]) is None
    _see(ledger, "w", 1, A)
    _see(ledger, "x", 1, OTHER)
    shortage = ledger.reserve(["x", "w"])
    assert shortage is not None
    assert shortage.free == 0


def test_a_volume_above_the_maximum_is_rejected_though_there_is_room() -> None:
    ledger = _with_reading(100, 50)
    _see(ledger, "u", 60)
    shortage = ledger.reserve(["u"])
    assert shortage is not None
    assert (shortage.free, shortage.largest) == (100, 50)


def test_those_that_come_later_do_not_stand_in_the_way() -> None:
    ledger = _with_reading()
    _see(ledger, "late", 90)
    _see(ledger, "u", 90)
    assert ledger.reserve(["u"]) is None
    assert ledger.reserve(["late"]) is not None


def test_a_claim_that_comes_back_is_counted_anew() -> None:
    ledger = _with_reading()
    _see(ledger, "u", 60)
    ledger.reject(["u"])
    _see(ledger, "u", 60)
    assert _free(ledger) == 100
    _see(ledger, "u", 60, attempt="1", version=5)
    assert (_free(ledger), ledger.required_version) == (40, 5)


def test_making_a_volume_changes_nothing_until_it_is_read() -> None:
    ledger = _with_reading()
    _see(ledger, "u", 30)
    assert ledger.reserve(["u"]) is None
    ledger.start("u")
    assert _free(ledger) == 70
    ledger.made("u", 30)
    assert _free(ledger) == 70
    begun = ledger.begin()
    ledger.read(A, begun, 70, 70)
    assert (_free(ledger, A), _free(ledger, B)) == (70, 70)
    ledger.read(B, ledger.begin(), 70, 70)
    assert ledger.get("u") is None


def test_an_answer_that_may_include_what_is_being_made_does_not_shake_the_numbers() -> None:
    for answer in (70, 100):
        ledger = _with_reading()
        _see(ledger, "u", 30)
        ledger.start("u")
        ledger.read(A, ledger.begin(), answer, 100)
        assert _free(ledger) == 70


def test_what_was_made_since_the_last_reading_is_expected_to_be_gone() -> None:
    ledger = _with_reading()
    for uid, size in (("made", 30), ("creating", 40)):
        _see(ledger, uid, size)
        ledger.start(uid)
    ledger.made("made", 30)
    ledger.read(A, ledger.begin(), 70, 70)
    ledger.read(B, ledger.begin(), 30, 30)
    assert (_free(ledger, A), _free(ledger, B)) == (30, 30)


def test_room_that_somebody_else_took_shows_even_so() -> None:
    ledger = _with_reading()
    _see(ledger, "u", 30)
    ledger.start("u")
    ledger.read(A, ledger.begin(), 50, 50)
    assert _free(ledger) == 20


def test_a_volume_under_way_stays_counted_when_its_claim_goes() -> None:
    ledger = _with_reading()
    _see(ledger, "u", 30)
    ledger.start("u")
    ledger.forget("u")
    assert _free(ledger) == 70
    ledger.failed("u")
    ledger.forget("u")
    assert _free(ledger) == 100


@dataclass
class _Claim:
    uid: str
    source: CapacitySource
    size: int
    here: bool = True
    in_pool: bool = False


@dataclass
class _Read:
    source: CapacitySource
    begun: int
    answer: int | None = None


class Disk(RuleBasedStateMachine):
    """Claims come and go, volumes are made and deleted, readings overlap with all of it."""

    claims = Bundle("claims")
    readings = Bundle("readings")

    def __init__(self) -> None:
        super().__init__()
        self.total, self.made_of = 100, 0
        self.all: dict[str, _Claim] = {}
        self.reading: list[_Read] = []
        self.restart()

    @property
    def real(self) -> int:
        """Bytes that are really free."""
        return self.total - sum(c.size for c in self.all.values() if c.in_pool)

    def look(self) -> None:
        """What the publisher does when it is called."""
        self.shown = [self.ledger.capacity(source) for source in (A, B)]

    def stage(self, claim: _Claim) -> Stage | None:
        """Where the ledger thinks the claim is."""
        promise = self.ledger.get(claim.uid)
        return promise.stage if promise else None

    @rule()
    def restart(self) -> None:
        self.ledger = Ledger(changed=self.look)
        self.reading.clear()
        for claim in self.all.values():
            if claim.here:
                _see(self.ledger, claim.uid, claim.size, claim.source)
        for source in (A, B):
            self.ledger.read(source, self.ledger.begin(), self.real, self.real)

    @rule(target=claims, size=st.integers(1, 60), source=st.sampled_from([A, B]))
    def come(self, size: int, source: CapacitySource) -> _Claim:
        self.made_of += 1
        claim = self.all[f"u{self.made_of}"] = _Claim(f"u{self.made_of}", source, size)
        _see(self.ledger, claim.uid, size, source)
        return claim

    @rule(some=st.lists(claims, min_size=1, max_size=3))
    def book(self, some: list[_Claim]) -> None:
        uids = [c.uid for c in some if c.here]
        if self.ledger.reserve(uids) is not None:
            self.ledger.reject(uids)

    @rule(claim=claims)
    def start(self, claim: _Claim) -> None:
        if self.stage(claim) is Stage.RESERVED:
            self.ledger.start(claim.uid)

    @rule(claim=claims)
    def pool_makes_it(self, claim: _Claim) -> None:
        if self.stage(claim) is Stage.CREATING and not claim.in_pool:
            assert self.real >= claim.size, "booked what is not there"
            claim.in_pool = True

    @rule(claim=claims)
    def answer_made(self, claim: _Claim) -> None:
        if self.stage(claim) is Stage.CREATING and claim.in_pool:
            self.ledger.made(claim.uid, claim.size)
            claim.here = False  # it is bound: no promise any more

    @rule(claim=claims)
    def answer_failed(self, claim: _Claim) -> None:
        if self.stage(claim) is Stage.CREATING and not claim.in_pool:
            self.ledger.failed(claim.uid)
            if not claim.here:
                self.ledger.forget(claim.uid)

    @rule(claim=claims)
    def leave(self, claim: _Claim) -> None:
        claim.here = False
        self.ledger.forget(claim.uid)

    @rule(claim=claims)
    def volume_deleted(self, claim: _Claim) -> None:
        if claim.in_pool and not claim.here and self.stage(claim) is not Stage.CREATING:
            claim.in_pool = False

    @rule(claim=claims)
    def volume_taken_back(self, claim: _Claim) -> None:
        if claim.in_pool and self.stage(claim) is Stage.CREATED:
            claim.in_pool = False
            self.ledger.removed(claim.uid)

    @rule(target=readings, source=st.sampled_from([A, B]))
    def reading_begins(self, source: CapacitySource) -> object:
        if any(r.source == source for r in self.reading):  # one at a time for each source
            return multiple()
        read = _Read(source, self.ledger.begin())
        self.reading.append(read)
        return read

    @rule(read=readings)
    def driver_looks(self, read: _Read) -> None:
        if read.answer is None:
            read.answer = self.real

    @rule(read=consumes(readings))
    def reading_ends(self, read: _Read) -> None:
        if read in self.reading:
            self.reading.remove(read)
            answer = self.real if read.answer is None else read.answer
            self.ledger.read(read.source, read.begun, answer, answer)

    @invariant()
    def never_too_much(self) -> None:
        for source in (A, B):
            open_ = (Stage.OBSERVED, Stage.RESERVED, Stage.CREATING)
            counted = [c for c in self.all.values() if self.stage(c) in open_]
            promised = sum(c.size for c in counted if not c.in_pool)
            assert _free(self.ledger, source) <= max(0, self.real - promised)

    @invariant()
    def the_publisher_knows_every_change(self) -> None:
        assert self.shown == [self.ledger.capacity(source) for source in (A, B)]

    def teardown(self) -> None:
        for claim in self.all.values():
            if self.stage(claim) is Stage.CREATING:
                if claim.in_pool:
                    self.ledger.made(claim.uid, claim.size)
                else:
                    self.ledger.failed(claim.uid)
            self.ledger.forget(claim.uid)
            claim.in_pool = False
        for source in (A, B):
            self.ledger.read(source, self.ledger.begin(), self.real, self.real)
        assert (_free(self.ledger, A), _free(self.ledger, B)) == (self.total, self.total)


def test_the_publisher_sees_what_an_expansion_takes() -> None:
    shown = list[int]()
    ledger = _with_reading()
    ledger.changed = lambda: shown.append(_free(ledger))
    assert ledger.expand("expand/v", A, 30, now=0.0) is None
    assert ledger.expand("expand/v", A, 30, now=0.0) is None, "repeated"
    assert shown == [70]
    ledger.removed("expand/v")
    ledger.removed("expand/v")
    assert shown == [70, 100], "it failed"


def test_the_starvation_guard_reserves_until_it_ends_and_what_is_under_way_stays_so() -> None:
    ledger = _with_reading()
    for uid in ("starved", "small"):
        _see(ledger, uid, 60)

    def stages() -> list[Stage]:
        return [claim.stage for uid in ("starved", "small") if (claim := ledger.get(uid))]

    ledger.reject(["starved"])
    ledger.keep(["starved"])
    assert ledger.guarded() == {"starved"}
    assert ledger.reserve(["small"]) is not None
    ledger.reject(["starved"])
    assert stages() == [Stage.GUARDED, Stage.OBSERVED]
    ledger.release(["starved", "small"])
    assert stages() == [Stage.REJECTED, Stage.OBSERVED]
    assert ledger.reserve(["small"]) is None
    ledger.start("small")
    for call in (ledger.reject, ledger.keep, ledger.release):
        call(["small"])
    assert stages() == [Stage.REJECTED, Stage.CREATING]


def test_a_source_that_is_gone_has_no_result() -> None:
    ledger = _with_reading()
    assert ledger.shared_by([A.pool_key]) == 2
    ledger.unread(B)
    ledger.unread(B)
    assert (ledger.capacity(B), ledger.free(B), ledger.shared_by([A.pool_key])) == (None, None, 1)


def test_a_volume_that_one_result_includes_already_does_not_stand_in_its_groups_way() -> None:
    """B was not read since: the ledger has the volume, the result of A does not count it again."""
    ledger = _with_reading()
    _see(ledger, "made", 60)
    ledger.start("made")
    ledger.made("made", 60)
    ledger.read(A, ledger.begin(), 40, 40)
    _see(ledger, "sibling", 40)
    assert ledger.lacks(["made", "sibling"], []) is None
    assert ledger.lacks(["made", "sibling"], [(A, 1)]) is not None


TestDisk = Disk.TestCase
TestDisk.settings = examples(100, machine=True, stateful_step_count=60, deadline=None)


def test_a_claim_whose_volume_exists_needs_no_capacity() -> None:
    """GetCapacity includes the volume: nothing is free, and nothing is subtracted for it."""
    ledger = Ledger()
    ledger.read(A, ledger.begin(), 0, 0)
    ledger.see("old", A, 30, attempt="", version=1, now=0.0)
    assert ledger.reserve(["old"]) is not None
    assert [promise.uid for promise in ledger.needing(["old", "unknown"])] == ["old"]

    ledger.exists("old")
    ledger.exists("unknown")

    assert ledger.needing(["old"]) == []
    assert ledger.reserve(["old"]) is None
    assert list(ledger.asked(A)) == []
