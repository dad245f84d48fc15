"""The model of a claim group between a scheduler that sends claim by claim, an API server and agents, on virtual time.

Everything may be late, lost, repeated or fail for a while; afterwards every pod has its node, and at no time was a part
of a group reserved for longer than the limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples import examples

from tonnage.csi.client.client import CsiClient
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.node.provisioner.state import (
    LONGEST_WAIT,
    LOOK_EVERY,
    RETRY_MAX,
    SHORTEST_WAIT,
    SLOWEST_FROM,
    SOURCE_WAIT,
    UNREPORTED_WAIT,
    Action,
    BindVolume,
    ClaimEvent,
    ClaimGroup,
    ClaimState,
    ClaimTable,
    Create,
    Creation,
    Examine,
    Facts,
    FailureReport,
    Forget,
    GroupMove,
    GroupPace,
    Hold,
    Member,
    NodeSearch,
    Phase,
    Plan,
    Reject,
    Reschedule,
    ReserveGroup,
    hold_time,
    step,
)
from tonnage.provisioning.capacity.ledger import Ledger, Stage
from tonnage.provisioning.claims.node_scope import CapacitySource, DriverInfo
from tonnage.provisioning.claims.provisioning import ClaimRequest

SOURCE = CapacitySource("csi", "late", "pool/x")
TROUBLE = 90.0
"""Seconds of faults, and as long again at most until all is well."""
LIMIT = 900.0
MINUTE = 60.0
PARTLY = 30.0 + 2.5
"""Seconds that a part of a group may be reserved; and the longest time that a call takes here."""


@dataclass
class Claim:
    """On the API server. volume: the node that has it."""

    pod: str
    name: str
    size: int
    node: str = ""
    reschedules: int = 0
    volume: str = ""
    version: int = 1


@dataclass
class World:
    """The API server and time. faults: how likely each kind of trouble is, while it lasts."""

    random: Random
    faults: float
    slowest: float
    claims: dict[str, Claim] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do something then."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something so much later."""
        self.at(self.now + seconds, what)

    def start(self, process: Iterator[float]) -> None:
        """Run a process, which yields the seconds that it waits."""

        def go_on() -> None:
            if (seconds := next(process, None)) is not None:
                self.after(seconds, go_on)

        go_on()

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Until that time, or until all is done."""
        while self._events and self._events[0][0] <= until and not done():
            self.now, _, what = heapq.heappop(self._events)
            what()

    def fault(self) -> bool:
        """Whether something goes wrong now."""
        return self.now < TROUBLE and self.random.random() < self.faults

    def delay(self, most: float) -> float:
        """Seconds that something takes."""
        return self.random.uniform(0.0, most if self.now < TROUBLE else min(most, 1.0))

    def group(self, pod: str) -> list[Claim]:
        """The claims of a pod."""
        return [c for c in self.claims.values() if c.pod == pod]

    def write(self, claim: Claim, **changes: object) -> None:
        """Change a claim; agents learn of it in their own time."""
        before = claim.node
        for name, value in changes.items():
            setattr(claim, name, value)
        claim.version += 1
        for node in {before, claim.node} - {""}:
            self.agents[node].changed(claim)


class Agent:
    """Watches the claims of its node and does what the model says."""

    def __init__(self, world: World, node: str, size: int) -> None:
        self.world, self.node, self.size = world, node, size
        self.taken = 0  # by somebody else
        self.life = 0
        self._begin()

    def _begin(self) -> None:
        self.life += 1
        self.up_since = self.world.now
        self.ledger, self.pace = Ledger(), GroupPace()
        self.groups: dict[str, ClaimGroup] = {}
        self.cache: dict[str, Claim] = {}
        self.versions: dict[str, int] = {}
        self.seen: dict[str, float] = {}
        self.calls: dict[str, float] = {}  # pod -> when the last call about it began or ended
        self.busy: set[str] = set()
        self.read()
        for claim in list(self.world.claims.values()):
            if claim.node == self.node:
                self.show(claim.name, Claim(**vars(claim)))

    def kill(self) -> None:
        """And start again, a moment later: what it knew is lost, and so is what it was about to do."""
        self.life += 1
        self.world.after(1.0 + self.world.delay(5.0), self._begin)

    def read(self) -> None:
        """Ask the driver what is free."""
        used = sum(c.size for c in self.world.claims.values() if c.volume == self.node)
        self.ledger.read(SOURCE, self.ledger.begin(), max(0, self.size - used - self.taken), None)
        self.publish()
        for pod in {c.pod for c in self.cache.values()}:
            self.wake(pod)

    def publish(self) -> None:
        """The capacity object, a little later."""
        life = self.life

        def write() -> None:
            if life == self.life and (room := self.ledger.capacity(SOURCE)) is not None:
                self.world.published[self.node] = room.available

        self.world.after(self.world.delay(1.0), write)

    def changed(self, claim: Claim) -> None:
        """A watch event: late, twice, or lost until the watch begins anew."""
        world, life, then = self.world, self.life, Claim(**vars(claim))

        def deliver() -> None:
            if life == self.life:
                self.show(then.name, then)

        world.after(15.0 if world.fault() else world.delay(2.0), deliver)
        if world.fault():
            world.after(world.delay(5.0), deliver)

    def show(self, name: str, claim: Claim) -> None:
        """The cache changes. What is older than what is known already, no informer takes."""
        if claim.version <= self.versions.get(name, 0):
            return
        self.versions[name] = claim.version
        if claim.node == self.node and not claim.volume:
            self.cache[name] = claim
            self.seen.setdefault(name, self.world.now)
            attempt = str(claim.reschedules)
            self.ledger.see(name, SOURCE, claim.size, attempt=attempt, version=claim.version, now=self.world.now)
            if (promise := self.ledger.get(name)) is not None:
                self.seen[name] = promise.seen
        else:
            self.cache.pop(name, None)
            self.seen.pop(name, None)
            self.ledger.forget(name)
            if (group := self.groups.get(claim.pod)) is not None:
                group.left(name)
        self.publish()
        if self.world.fault():  # a wake-up is lost; the look that is always pending comes
            self.world.after(LOOK_EVERY, lambda: self.wake(claim.pod))
        else:
            self.wake(claim.pod)

    def wake(self, pod: str) -> None:
        """Look at a group, one look at a time."""
        life = self.life
        if pod in self.busy:
            return
        self.busy.add(pod)
        process = self.look(pod)

        def go_on() -> None:
            if life != self.life:
                return
            seconds = next(process, None)
            if seconds is not None:
                self.world.after(seconds, go_on)
                return
            self.busy.discard(pod)

        go_on()

    def look(self, pod: str) -> Iterator[float]:
        """What the provisioner does, in the same order."""
        world, confirmed = self.world, False
        missing: list[str] | None = None
        present = {c.name for c in self.cache.values() if c.pod == pod}
        while True:
            here = [c for c in self.cache.values() if c.pod == pod]
            if not present <= {c.name for c in here}:  # one has left: begin anew
                present, missing, confirmed = {c.name for c in here}, None, False
            pending = [
                c for c in here if (p := self.ledger.get(c.name)) and p.stage in (Stage.OBSERVED, Stage.REJECTED)
            ]
            if not pending:
                return
            state = self.groups.get(pod) or ClaimGroup(self.pace)
            absent = [c.name for c in world.group(pod) if c.name not in self.cache and c.volume != self.node]
            if missing is not None:
                absent = [name for name in absent if name in missing]
            members = [Member(c.name, c.reschedules, self.seen[c.name]) for c in pending]
            coming = [(SOURCE, world.claims[name].size) for name in absent]
            names = [c.name for c in pending]
            fits = self.ledger.lacks(names, coming) is None
            decision = state.decide(members, world.now, missing=bool(absent), fits=fits, confirmed=confirmed)
            assert world.now < decision.recheck_at <= world.now + LOOK_EVERY
            world.at(decision.recheck_at + 0.001, self._waker(pod))
            if decision.move is GroupMove.WAIT:
                return
            if decision.move is GroupMove.CONFIRM:
                yield self._call(pod, 1.0)
                confirmed, missing = True, [c.name for c in world.group(pod) if not c.volume and c.name in absent]
                continue
            if decision.move is GroupMove.RESERVE and self.ledger.reserve(names) is None:
                state.reserved(members)
                assert {c.node for c in world.group(pod)} == {self.node}, "a part of a group was reserved"
                for claim in pending:
                    world.start(self.create(claim))
                return
            if decision.move in (GroupMove.RESERVE, GroupMove.REJECT):
                self.ledger.reject(names)
                if made := [c for c in world.group(pod) if c.volume == self.node]:  # before a kill: given back
                    yield self._call(pod, 2.0)
                    for claim in made:
                        self.ledger.removed(claim.name)
                        world.write(claim, node="", reschedules=0, volume="")  # made anew
                    self.read()
                    continue
                state.reject(members, world.now, missing=bool(absent))
                self.groups[pod] = state
                continue
            failed = False
            for name in decision.uids:
                claim = world.claims[name]
                self.ledger.reject([name])
                yield self._call(pod, 2.0)
                effect = not world.fault()
                if effect and claim.node == self.node and not claim.volume and claim.reschedules < decision.reschedules:
                    world.write(claim, node="", reschedules=decision.reschedules)
                yield self._call(pod, 1.0)
                if not effect or world.fault():  # the answer is lost, or there was none
                    failed = True
                elif name in self.cache:
                    state.patched(name, world.now)
            if failed:
                world.after(1.0, self._waker(pod))
                return

    def _waker(self, pod: str) -> Callable[[], None]:
        life = self.life
        return lambda: self.wake(pod) if life == self.life else None

    def _call(self, pod: str, most: float) -> float:
        seconds = self.world.delay(most)
        self.calls[pod] = self.world.now + seconds
        return seconds

    def create(self, claim: Claim) -> Iterator[float]:
        """CreateVolume, and the binding."""
        life, live = self.life, self.world.claims[claim.name]
        self.ledger.start(claim.name)
        yield self.world.delay(2.0)
        if life != self.life or live.volume:
            return
        self.ledger.made(claim.name, claim.size)
        self.world.write(live, volume=self.node)
        self.read()


def scheduler(world: World, pod: str) -> Iterator[float]:
    """kube-scheduler with one pod: filters by each claim alone, patches one after the other, waits for the binding."""
    while not all(c.volume for c in world.group(pod)):
        claims = world.group(pod)
        pinned = {c.volume or c.node for c in claims} - {""}
        largest = max(c.size for c in claims if not c.volume)
        fitting = [n for n, free in sorted(world.published.items()) if free >= largest and pinned <= {n}]
        if not fitting:
            yield 1.0 + world.delay(4.0)
            continue
        chosen = world.random.choice(fitting)
        waiting = [(c, c.version) for c in claims if not c.volume and not c.node]
        world.random.shuffle(waiting)
        for claim, version in waiting:
            yield world.delay(world.slowest)
            if world.fault() and claim.version == version:  # somebody else wrote on it: a conflict
                break
            if claim.version != version:
                break
            world.write(claim, node=chosen)
            if world.fault():  # it was restarted
                break
        while all((c.volume or c.node) == chosen for c in world.group(pod)):
            if all(c.volume for c in world.group(pod)):
                return
            yield 1.0
        yield 1.0 + world.delay(1.0)


def watchman(world: World) -> Iterator[float]:
    """Looks every second for parts of groups that stay reserved."""
    since: dict[tuple[str, str], float] = {}
    while True:
        for node, agent in world.agents.items():
            for pod in {c.pod for c in world.claims.values()}:
                parts = [c for c in world.group(pod) if c.node == node or c.volume == node]
                shown = any(c.name in agent.cache for c in parts)
                held = shown and 0 < len(parts) < len(world.group(pod))
                began = since.setdefault((node, pod), world.now) if held else None
                if began is None:
                    since.pop((node, pod), None)
                    continue
                idle = world.now - max(began, agent.up_since, agent.calls.get(pod, 0.0))
                assert idle <= PARTLY, f"{pod} is partly reserved on {node} for {idle:.0f} s: {parts}"
        yield 1.0


def trouble(world: World) -> Iterator[float]:
    """Agents are killed, capacity comes and goes."""
    while world.now < TROUBLE:
        yield 1.0 + world.delay(20.0)
        agent = world.random.choice(sorted(world.agents.items()))[1]
        if world.fault():
            agent.kill()
        elif world.random.random() < 0.5:
            agent.taken = world.random.choice((0, agent.size // 2, agent.size))
            agent.read()
    for agent in world.agents.values():
        agent.taken = 0
        agent.read()


@given(
    st.integers(0, 2**32),
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=6),
    st.sampled_from((0.0, 0.1, 0.3)),
    st.sampled_from((0.05, 0.33, 2.0, 10.0)),
)
@example(368, [[5, 3]], 0.3, 10.0)
@examples(300, machine=True)
def test_every_pod_gets_its_node_and_no_part_of_a_group_stays(
    seed: int, pods: list[list[int]], faults: float, slowest: float
) -> None:
    world = World(Random(seed), faults, slowest)
    whole = sum(map(sum, pods))
    world.agents = {name: Agent(world, name, size) for name, size in (("a", 7), ("b", 9), ("c", whole))}
    for number, sizes in enumerate(pods):
        for at, size in enumerate(sizes):
            name = f"p{number}-{at}"
            world.claims[name] = Claim(f"p{number}", name, size)
        process = scheduler(world, f"p{number}")
        world.after(world.delay(3.0), lambda process=process: world.start(process))  # type: ignore[misc]
    world.start(watchman(world))
    world.start(trouble(world))
    world.run(LIMIT, lambda: all(c.volume for c in world.claims.values()))
    stuck = [c for c in world.claims.values() if not c.volume]
    assert not stuck, f"after {world.now:.0f} s: {stuck}"
    for number in range(len(pods)):
        assert len({c.volume for c in world.group(f"p{number}")}) == 1


def _rejected(*arrived: float, now: float = 100.0) -> ClaimGroup:
    """A group whose first claims, one of which came at each of these times, did not fit and have gone back."""
    group = ClaimGroup(GroupPace())
    members = [Member(f"early-{at}", 0, when) for at, when in enumerate(arrived)]
    assert group.decide(members, now, missing=True, fits=False).move is GroupMove.REJECT
    group.reject(members, now, missing=True)
    back = group.decide(members, now, missing=True)
    assert (back.move, back.reschedules) == (GroupMove.RESCHEDULE, 1)
    for uid in back.uids:
        group.patched(uid, now)
        group.left(uid)
    return group


def test_who_arrives_while_expected_goes_back_at_once_and_later_ones_wait() -> None:
    until = 100.0 + GroupPace().wait
    late = Member("late", 0, until - 0.1)
    decision = _rejected(100.0).decide([late], until, missing=True)
    assert (decision.move, decision.uids, decision.reschedules) == (GroupMove.RESCHEDULE, ("late",), 1)
    fresh = Member("fresh", 0, until + 0.1)
    decision = _rejected(100.0).decide([fresh], until + 0.1, missing=True)
    assert (decision.move, decision.recheck_at) == (GroupMove.WAIT, until + 0.1 + GroupPace().wait)
    again = Member("early-0", 1, 101.0)
    assert _rejected(100.0).decide([again], 101.0, missing=True).move is GroupMove.WAIT, "a new round"


def test_a_group_with_all_its_claims_is_judged_anew_whatever_they_carry() -> None:
    fresh = [Member("a", 3, 200.0), Member("b", 0, 200.0)]
    assert _rejected(100.0).decide(fresh, 200.0, missing=False).move is GroupMove.RESERVE


def test_who_arrives_after_a_round_that_was_rejected_whole_is_of_a_new_one_whatever_an_earlier_round_expected() -> None:
    group = _rejected(100.0)
    whole = [Member("early-0", 1, 101.0), Member("late", 1, 101.0)]
    assert group.decide(whole, 101.0, missing=False).move is GroupMove.RESERVE
    group.reject(whole, 101.0, missing=False)
    for uid in group.decide(whole, 101.0, missing=False).uids:
        group.patched(uid, 101.0)
        group.left(uid)
    now = 101.0 + GroupPace().wait / 2
    assert now < 100.0 + GroupPace().wait
    assert group.decide([Member("new", 1, now)], now, missing=True).move is GroupMove.WAIT


def test_who_is_waited_for_in_vain_is_waited_for_longer_the_next_time() -> None:
    group = ClaimGroup(GroupPace())
    wait = group.pace.wait
    group.reject([Member("a", 0, 100.0)], 100.0, missing=True)
    assert group.pace.wait == wait, "it may still come"
    group.reject([Member("a", 1, 100.0)], 100.0 + wait, missing=True)
    assert group.pace.wait == 2 * wait
    assert group.decide([Member("b", 0, 100.0 + wait)], 101.0 + wait, missing=True).move is GroupMove.RESCHEDULE


def test_a_patched_claim_that_the_watch_still_shows_is_no_member_and_is_patched_again_in_the_end() -> None:
    group = ClaimGroup(GroupPace())
    both = [Member("a", 0, 100.0), Member("b", 0, 100.0)]
    group.reject(both, 100.0, missing=False)
    group.patched("a", 100.0)
    assert group.decide(both, 100.0, missing=False).uids == ("b",)
    group.patched("b", 100.0)
    assert group.decide(both, 101.0, missing=False).move is GroupMove.WAIT
    again = group.decide(both, 100.0 + LOOK_EVERY, missing=False)
    assert (again.move, set(again.uids)) == (GroupMove.RESCHEDULE, {"a", "b"})
    sent_again = [Member("a", 1, 131.0), Member("b", 1, 131.0)]
    assert group.decide(sent_again, 131.0, missing=False).move is GroupMove.RESERVE


@given(st.lists(st.floats(0.0, 600.0), max_size=40))
def test_the_wait_for_siblings_follows_the_pace_within_bounds(gaps: list[float]) -> None:
    pace = GroupPace()
    for gap in gaps:
        pace.observe(gap)
    assert SHORTEST_WAIT <= pace.wait <= LONGEST_WAIT < LOOK_EVERY
    assert not gaps or pace.wait == LONGEST_WAIT or pace.wait >= 2 * gaps[-1]
    for _ in range(16):
        pace.observe(0.02)
    assert pace.wait == SHORTEST_WAIT, "what is long ago is forgotten"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.floats(0.0, 40.0)), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_every_decision_has_a_next_look(
    claims: list[tuple[int, int, float]], missing: bool, fits: bool, confirmed: bool
) -> None:
    group, now = ClaimGroup(GroupPace()), 40.0
    members = [Member(f"u{uid}", count, arrived) for uid, count, arrived in claims]
    for turn in range(6):
        decision = group.decide(members, now, missing=missing, fits=fits, confirmed=confirmed)
        assert now < decision.recheck_at <= now + LOOK_EVERY
        if decision.move is GroupMove.REJECT:
            group.reject(members, now, missing=missing)
        elif decision.move is GroupMove.RESCHEDULE:
            for uid in decision.uids[turn % 2 :]:
                group.patched(uid, now)
        now += LOOK_EVERY / 2


# Hold times


@given(st.integers(1, 16), st.integers(1, 6))
def test_after_five_minutes_a_round_takes_as_many_minutes_as_it_writes(claims: int, objects: int) -> None:
    assert sum(hold_time(attempt, claims, objects) for attempt in range(SLOWEST_FROM)) < 5 * MINUTE
    writes = 2 * claims + 2 * objects + 3
    assert hold_time(SLOWEST_FROM, claims, objects) >= writes * MINUTE
    assert hold_time(10**6, claims, objects) == hold_time(SLOWEST_FROM, claims, objects)


def test_news_is_what_had_no_capacity_before() -> None:
    search = NodeSearch()
    assert search.newly_available_nodes({"a", "b"}, {"a"}, objects=3, now=100.0) == {"b"}
    assert search.next_check(100.0) > 0
    assert search.newly_available_nodes({"a", "b", "c"}, set(), objects=3, now=100.0) == {"c"}
    assert search.newly_available_nodes({"a"}, set(), objects=3, now=100.0) == set()
    assert search.newly_available_nodes({"a", "b"}, set(), objects=3, now=100.0) == {"b"}, "it had none in between"


def test_after_an_early_reschedule_the_next_is_not_at_once() -> None:
    search = NodeSearch()
    search.limit(600.0)
    search.end()
    assert (search.next_check(100.0), search.is_over(100.0)) == (500.0, False)
    assert NodeSearch().next_check(100.0) == 0.0
    assert (search.next_check(601.0), search.is_over(601.0)) == (0.0, True)


# One claim


def _claim(uid: str = "u-1") -> PersistentVolumeClaim:
    return PersistentVolumeClaim(metadata=ObjectMeta(name="data", namespace="ns", uid=uid))


CLAIM = _claim()
VOLUME = PersistentVolume(metadata=ObjectMeta(name="pvc-u-1"))
CREATION = Creation(
    CLAIM,
    DriverInfo(CsiClient(Path("/nowhere")), "d", "", frozenset(), frozenset(), {}, "id"),
    StorageClass(metadata=ObjectMeta(name="c", uid="class-1"), provisioner="d"),
    ClaimRequest("pvc-u-1", 1, (), {}, None, None, "", False),
)
OTHER = ("class-2", "a class that is gone could not serve it")
NEVER = ("class-1", "no volume can be so")
PLANNED = Plan(CREATION)


@pytest.mark.parametrize(
    ("state", "facts", "action"),
    [
        (ClaimState(), Facts(0.0), Forget()),
        (ClaimState(), Facts(0.0, CLAIM), Examine(CLAIM)),
        (ClaimState(), Facts(0.0, CLAIM, VOLUME), BindVolume(CLAIM, VOLUME)),
        (ClaimState(Phase.BLOCKED), Facts(0.0, CLAIM, VOLUME), Forget()),
        (ClaimState(Phase.CREATING, CREATION), Facts(0.0), Create(CREATION)),
        (ClaimState(Phase.CREATING, CREATION), Facts(0.0, CLAIM, VOLUME, PLANNED), Create(CREATION)),
        (ClaimState(Phase.BOUND, bound_until=1.0), Facts(0.0, CLAIM, VOLUME), Forget()),
        (ClaimState(Phase.BOUND, bound_until=1.0), Facts(1.0, CLAIM, VOLUME), BindVolume(CLAIM, VOLUME)),
        (ClaimState(), Facts(0.0, CLAIM, plan=Plan()), Forget()),
        (ClaimState(), Facts(0.0, CLAIM, plan=PLANNED), ReserveGroup(CREATION)),
        (
            ClaimState(),
            Facts(0.0, CLAIM, plan=Plan(fault="never")),
            Reject(CLAIM, ClaimEvent.INFEASIBLE, "never", RETRY_MAX),
        ),
        (
            ClaimState(),
            Facts(0.0, CLAIM, plan=Plan(not_ready="not yet")),
            Reject(CLAIM, ClaimEvent.SOURCE_NOT_READY, "not yet", SOURCE_WAIT),
        ),
        (
            ClaimState(infeasible=NEVER),
            Facts(0.0, CLAIM, plan=PLANNED),
            Reject(CLAIM, ClaimEvent.INFEASIBLE, NEVER[1], RETRY_MAX),
        ),
        (ClaimState(infeasible=OTHER), Facts(0.0, CLAIM, plan=PLANNED), ReserveGroup(CREATION)),
        (
            ClaimState(),
            Facts(0.0, CLAIM, plan=Plan(CREATION, away="elsewhere")),
            Reschedule(CREATION, "elsewhere"),
        ),
        (
            ClaimState(),
            Facts(0.0, CLAIM, plan=Plan(CREATION, away="", report="a disk")),
            Reschedule(CREATION, "", "a disk"),
        ),
    ],
)
def test_a_claims_next_action(state: ClaimState, facts: Facts, action: Action) -> None:
    before = replace(state)
    assert step(state, facts) == action
    assert state == before, "step() only decides"


TEXTS = st.sampled_from(["", "why"])
PLANS = st.builds(Plan, st.sampled_from([None, CREATION]), TEXTS, TEXTS, st.sampled_from([None, "", "why"]), TEXTS)


@given(
    st.sampled_from(Phase),
    st.floats(0, 10),
    st.sampled_from([None, OTHER, NEVER]),
    st.builds(Facts, st.floats(0, 10), st.sampled_from([None, CLAIM]), st.sampled_from([None, VOLUME]),
              st.none() | PLANS),
)  # fmt: skip
def test_whatever_is_known_a_claim_has_at_most_one_volume(
    phase: Phase, until: float, infeasible: tuple[str, str] | None, facts: Facts
) -> None:
    creation = CREATION if phase is Phase.CREATING else None
    state = ClaimState(phase, creation, until, infeasible=infeasible)
    action = step(state, facts)
    assert isinstance(action, Create) is (phase is Phase.CREATING), "a creation ends only with its outcome"
    if isinstance(action, ReserveGroup | Reschedule | Reject | Examine):
        assert facts.claim is not None
        assert facts.volume is None, "its volume exists already"
        assert phase is not Phase.BLOCKED, "a sweep deletes it"
    if isinstance(action, ReserveGroup):
        assert facts.plan == replace(PLANNED, report=facts.plan.report if facts.plan else "")
        assert infeasible != NEVER
    if isinstance(action, BindVolume):
        assert facts.volume is not None
        assert not state.is_bound(facts.now)


@pytest.mark.parametrize(
    ("free", "now", "over"),
    [
        ([], 10.0, False),
        ([None], UNREPORTED_WAIT + 10.0, False),
        ([None], UNREPORTED_WAIT + 10.1, True),
        ([5], 20.0, False),
        ([5, 5], 20.0, False),
        ([5, 3, 4], 20.0, True),
        ([5, 3, 4], 10.0, False),
    ],
)
def test_a_driver_without_storage_is_asked_again_for_more(free: list[int | None], now: float, over: bool) -> None:
    hold = Hold(10.0)
    assert [False, *(hold.is_over(each, now) for each in free)][-1] is over
    assert not Hold(float("inf"), why="elsewhere").is_over(1 << 60, 1e9)


def test_what_is_known_of_a_claim_ends_with_it_but_for_what_is_under_way() -> None:
    table = ClaimTable()
    for uid in ("waits", "creates", "blocked", "bound", "active"):
        table.of(uid).group = "pod-1"
    table.happened(["waits", "active"], ClaimEvent.REJECTED)
    table.of("creates").begin(CREATION)
    table.of("blocked").happened(ClaimEvent.BLOCK)
    table.of("bound").happened(ClaimEvent.BIND)
    table.of("bound").bound(5.0)
    assert table.held() == ["waits", "active"]
    with table.active("active"):
        for uid in list(table.claims):
            table.leave(uid, 0.0)
        assert table.held() == []
        assert {uid: (state.phase, state.group) for uid, state in table.claims.items()} == {
            "creates": (Phase.CREATING, ""),
            "blocked": (Phase.BLOCKED, ""),
            "active": (Phase.WAITING, ""),
        }
    assert table.of("creates").creation is CREATION


def test_a_claim_that_is_forgotten_while_it_is_reconciled_begins_anew() -> None:
    table, report = ClaimTable(), FailureReport("p", "no", 1.0)
    table.claims["u"] = ClaimState(Phase.BOUND, None, 5.0, Hold(1.0), NEVER, "pod-1", report, 3, is_active=True)
    table.forget("u")
    assert table.of("u") == ClaimState(bound_until=5.0, is_active=True)


def test_a_rejected_group_is_found_by_its_claims_until_it_is_over() -> None:
    table = ClaimTable()
    group = table.group("pod-1", ["a"])
    table.of("a").group = "pod-1"
    group.reject([Member("a", 0, 0.0)], 0.0, missing=False)
    table.remember("pod-1", group)
    assert table.group("pod-1", []) is table.group("another id", ["a"]) is group
    group.patched("a", 1.0)
    table.leave("a", 2.0)
    assert table.group("pod-1", []) is not group


def test_an_early_reschedule_outlives_its_round() -> None:
    table = ClaimTable()
    group = table.group("pod-1", [])
    group.reject([Member("a", 7, 0.0)], 0.0, missing=False)
    group.patched("a", 0.0)
    group.left("a")
    group.search.limit(500.0)
    table.remember("pod-1", group)
    table.leave("b", 100.0)
    assert (table.group("pod-1", []).search.limited_until, table.group("pod-1", []).reschedules) == (500.0, 0)
    table.leave("b", 501.0)
    assert table.group("pod-1", []).search.limited_until == 0.0
