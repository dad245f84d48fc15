"""The scheduling queue: order, back-off, hints, leftovers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.world import World

from tonnage.scheduler.framework.plugin import RejectionCause
from tonnage.scheduler.framework.pod_info import compile_ask
from tonnage.scheduler.framework.queue import (
    IDLE_BACKOFF,
    LEFTOVER,
    ClusterEvent,
    QueuedPod,
    QueuePlace,
    SchedulingQueue,
    backoff,
)


@pytest.fixture
def queue() -> SchedulingQueue:
    """An empty queue."""
    return SchedulingQueue()


def add(world: World, queue: SchedulingQueue, name: str, **spec: Any) -> None:
    queue.add(f"uid-{name}", compile_ask(world.pod(name, **spec)), 0.0)


def take(queue: SchedulingQueue) -> QueuedPod:
    entry = queue.pop()
    assert entry is not None
    return entry


def order(queue: SchedulingQueue) -> list[str]:
    found = []
    while (entry := queue.pop()) is not None:
        found.append(entry.uid)
    return found


def test_priority_then_age(world: World, queue: SchedulingQueue) -> None:
    add(world, queue, "old")
    add(world, queue, "young")
    add(world, queue, "urgent", priority=100)

    assert len(queue) == 3
    assert order(queue) == ["uid-urgent", "uid-old", "uid-young"]
    assert len(queue) == 0


def test_older_pods_are_not_overtaken(world: World, queue: SchedulingQueue) -> None:
    add(world, queue, "large")
    queue.reject(take(queue), RejectionCause.STORAGE, 0.0)
    add(world, queue, "small")
    queue.notice(ClusterEvent(RejectionCause.STORAGE), 100.0)

    assert order(queue) == ["uid-large", "uid-small"]


def test_back_off_doubles_up_to_ten_seconds() -> None:
    assert [backoff(n) for n in range(7)] == [0, 1, 2, 4, 8, 10, 10]


def test_hint_waits_for_the_back_off_while_others_are_ready(world: World, queue: SchedulingQueue) -> None:
    add(world, queue, "p")
    queue.reject(take(queue), RejectionCause.RESOURCES, 10.0)
    assert queue.next_due() == 10.0 + LEFTOVER

    queue.notice(ClusterEvent(RejectionCause.RESOURCES), 10.2)
    add(world, queue, "other")

    queue.advance(10.9)
    assert order(queue) == ["uid-other"]
    add(world, queue, "more")
    queue.advance(11.0)
    assert order(queue) == ["uid-p", "uid-more"]
    assert queue.next_due() is None


def test_hint_waits_little_while_nothing_else_is_ready(world: World, queue: SchedulingQueue) -> None:
    add(world, queue, "p")
    for _ in range(4):
        queue.reject(take(queue), RejectionCause.RESOURCES, 10.0)
        queue.notice(ClusterEvent(RejectionCause.RESOURCES), 30.0)
    queue.reject(take(queue), RejectionCause.RESOURCES, 30.0)

    queue.notice(ClusterEvent(RejectionCause.RESOURCES), 30.02)

    assert queue.pop() is None
    assert queue.next_due() == 30.0 + IDLE_BACKOFF
    queue.advance(30.05)
    assert queue.pop() is None
    queue.advance(30.0 + IDLE_BACKOFF)
    assert take(queue).tries == 5
    assert queue.next_due() is None


def test_a_new_pod_passes_the_ones_that_are_tried_since_nothing_else_is_ready(
    world: World, queue: SchedulingQueue
) -> None:
    """Many waiting pods would else delay each new one by all of their attempts."""
    for name in ("a", "b", "c"):
        add(world, queue, name)
    add(world, queue, "urgent", priority=100)
    for _ in range(4):
        queue.reject(take(queue), RejectionCause.STORAGE, 10.0)
    queue.notice(ClusterEvent(RejectionCause.STORAGE), 10.1)
    queue.advance(10.0 + IDLE_BACKOFF)
    first, again = take(queue), take(queue)
    assert (first.uid, again.uid) == ("uid-urgent", "uid-a")

    queue.reject(again, RejectionCause.STORAGE, 10.3)
    queue.notice(ClusterEvent(RejectionCause.STORAGE), 10.3)
    add(world, queue, "new")
    queue.advance(10.3 + IDLE_BACKOFF)

    assert order(queue) == ["uid-new", "uid-b", "uid-c"]
    queue.advance(10.3 + IDLE_BACKOFF)
    assert order(queue) == ["uid-a"]


_STEPS = st.lists(
    st.one_of(
        st.sampled_from(["add", "reject", "retry", "hint", "remove"]),
        st.floats(0.01, 12.0),
    ),
    max_size=60,
)


@given(_STEPS)
@example(["add", "reject", "hint", 0.5, "hint", "add", "reject", "reject", "hint", 0.5, "retry", 12.0])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nobody_waits_longer_or_shorter_than_said(world: World, steps: list[str | float]) -> None:
    """A number is seconds that pass; each word acts on the pod that comes next, or on the last one."""
    queue, now, names, woken = SchedulingQueue(), 0.0, 0, set[QueuedPod]()
    for step in steps:
        if isinstance(step, float):
            now += step
        elif step == "add":
            add(world, queue, f"p{(names := names + 1)}")
        elif step == "hint":
            woken |= set(queue.waiting())
            queue.notice(ClusterEvent(RejectionCause.STORAGE), now)
        elif step == "remove" and names:
            queue.remove(f"uid-p{names}")
        elif step in ("reject", "retry") and (entry := queue.pop()) is not None:
            least = IDLE_BACKOFF if entry in woken else backoff(entry.tries)
            assert not entry.tries or now >= entry.tried + min(least, backoff(entry.tries))
            woken.discard(entry)
            queue.retry(entry, now) if step == "retry" else queue.reject(entry, RejectionCause.STORAGE, now)
        queue.advance(now)
        late = [entry for entry in queue if entry.place is QueuePlace.BACKING_OFF]
        assert all(entry.tried + backoff(entry.tries) > now for entry in late)
        busy = len(queue) or queue._idle
        assert busy or all(entry.tried + IDLE_BACKOFF > now for entry in late if entry in woken)
        dues = [entry.tried + (IDLE_BACKOFF if entry in woken else backoff(entry.tries)) for entry in late]
        assert busy or not dues or queue.next_due() == min(dues)


def test_hint_for_something_else_does_not_wake(world: World, queue: SchedulingQueue) -> None:
    add(world, queue, "p")
    entry = take(queue)
    queue.reject(entry, RejectionCause.STORAGE | RejectionCause.NODE, 0.0)

    queue.notice(ClusterEvent(RejectionCause.RESOURCES), 50.0)
    queue.notice(ClusterEvent(RejectionCause.STORAGE, lambda e: False), 50.0)
    queue.notice(ClusterEvent(RejectionCause.STORAGE, claim="default/unused"), 50.0)
    assert queue.pop() is None

    queue.notice(ClusterEvent(RejectionCause.NODE), 50.0)
    assert take(queue) is entry


def test_what_was_not_really_tried_does_not_back_off(world: World, queue: SchedulingQueue) -> None:
    add(world, queue, "p", ephemeral=["v"])
    queue.reject(take(queue), RejectionCause.CLAIM, 5.0, counts=False)

    queue.notice(ClusterEvent(RejectionCause.CLAIM, claim="default/p-v"), 5.0)

    assert take(queue).tries == 0


def test_failed_attempt_comes_again(world: World, queue: SchedulingQueue) -> None:
    add(world, queue, "p")
    queue.retry(take(queue), 1.0, free=True)
    entry = take(queue)
    queue.retry(entry, 2.0, free=True)

    assert queue.pop() is None
    queue.advance(4.0)
    assert take(queue) is entry


def test_leftovers_are_tried_again(world: World, queue: SchedulingQueue) -> None:
    add(world, queue, "first")
    add(world, queue, "second")
    queue.reject(take(queue), RejectionCause.UNSUPPORTED, 0.0)
    queue.reject(take(queue), RejectionCause.UNSUPPORTED, 60.0)

    queue.advance(LEFTOVER)
    assert order(queue) == ["uid-first"]
    queue.advance(LEFTOVER + 60)
    assert order(queue) == ["uid-second"]


@pytest.mark.parametrize("where", ["ready", "out", "waiting", "backing off"])
def test_removed_wherever_it_is(world: World, queue: SchedulingQueue, where: str) -> None:
    add(world, queue, "p", claims=["c"])
    entry = queue.get("uid-p")
    assert entry is not None
    if where != "ready":
        take(queue)
    if where == "waiting":
        queue.reject(entry, RejectionCause.NODE, 0.0)
    if where == "backing off":
        queue.retry(entry, 0.0)

    queue.remove("uid-p")
    queue.reject(entry, RejectionCause.NODE, 0.0)
    queue.retry(entry, 0.0)
    queue.wake(entry, 1000.0)
    queue.notice(ClusterEvent(RejectionCause.NODE, claim="default/c"), 1000.0)
    queue.advance(10_000.0)

    assert queue.pop() is None
    assert (len(queue), queue.next_due(), queue.get("uid-p")) == (0, None, None)


def test_changed_pod_may_try_again(world: World, queue: SchedulingQueue) -> None:
    add(world, queue, "p", requests={"cpu": "9"})
    entry = take(queue)
    queue.reject(entry, RejectionCause.RESOURCES, 0.0)

    queue.add("uid-p", compile_ask(world.pod("p", requests={"cpu": "9"})), 50.0)
    assert entry.place is QueuePlace.WAITING
    queue.add("uid-p", compile_ask(world.pod("p", requests={"cpu": "1"})), 50.0)

    assert take(queue) is entry
    assert dict(entry.ask.demand.requests)["cpu"] == 1000


def test_tells_when_there_is_something_to_do(world: World) -> None:
    told: list[int] = []
    queue = SchedulingQueue(lambda: told.append(1))
    add(world, queue, "p")
    assert len(told) == 1
    queue.reject(take(queue), RejectionCause.NODE, 0.0)
    assert len(told) == 1
    queue.notice(ClusterEvent(RejectionCause.NODE), 0.5)
    assert len(told) == 2


@pytest.mark.parametrize(
    ("event", "wakes"),
    [
        (ClusterEvent(RejectionCause.PORTS, lambda entry: False), True),
        (ClusterEvent(RejectionCause.NEIGHBOURS), False),
        (ClusterEvent(RejectionCause.PORTS, claim="default/other"), False),
    ],
)
def test_any_improvement_wakes_a_pod_with_a_nominated_node(world: World, event: ClusterEvent, wakes: bool) -> None:
    queue = SchedulingQueue()
    queue.add("a", compile_ask(world.pod("a")), 0.0)
    entry = queue.pop()
    assert entry is not None
    queue.reject(entry, RejectionCause.STORAGE, 0.0, counts=False)
    queue.nominees.add("a")
    queue.notice(event, 1.0)
    assert len(queue) == wakes


class Disk:
    """A pool and what waits for it: pods of a few sizes, each rejected while fewer units are free."""

    def __init__(self, world: World, free: int) -> None:
        self.world, self.queue, self.free, self.now = world, SchedulingQueue(), free, 0.0
        self.sizes: dict[str, int] = {}
        self.placed: list[str] = []
        self.attempts = 0
        self.fails = False

    def add(self, size: int, priority: int = 0) -> None:
        """A pod comes."""
        name = f"p{len(self.sizes)}"
        self.sizes[f"uid-{name}"] = size
        self.queue.add(f"uid-{name}", compile_ask(self.world.pod(name, priority=priority)), self.now)

    def release(self, units: int) -> None:
        """Volumes go."""
        self.free += units
        self.queue.notice(ClusterEvent(RejectionCause.STORAGE, self._fits, alike=True), self.now)

    def _fits(self, entry: QueuedPod) -> bool:
        return self.sizes[entry.uid] <= self.free

    def turn(self) -> None:
        """Decide what is ready; every second attempt fails if `fails`."""
        self.queue.advance(self.now)
        while (entry := self.queue.pop()) is not None:
            self.attempts += 1
            size = self.sizes[entry.uid]
            if size > self.free:
                alike = size, entry.priority
                self.queue.reject(entry, RejectionCause.STORAGE, self.now, alike=alike)
                continue
            if self.fails and self.attempts % 2:
                self.queue.retry(entry, self.now)  # before there is a decision
                continue
            self.queue.decided(entry)
            self.free -= size
            self.placed.append(entry.uid)
            self.queue.remove(entry.uid)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.turn()
        until = self.now + seconds
        while (due := self.queue.next_due()) is not None and due <= until:
            self.now = max(due, self.now)
            self.turn()
        self.now = until
        self.turn()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 2)),
            st.tuples(st.just("release"), st.integers(1, 2)),
            st.tuples(st.just("turn"), st.booleans()),
            st.tuples(st.just("wait"), st.sampled_from([0.05, 0.5, 3.0])),
            st.tuples(st.sampled_from(["remove", "change", "tell"]), st.integers(0, 3)),
        ),
        max_size=40,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_pod_waits_that_fits(world: World, steps: list[tuple[str, Any]]) -> None:
    """Whatever happens to a lead, the others that it was tried for are tried as well."""
    disk = Disk(world, 0)
    for _ in range(2):
        disk.add(2)
    disk.turn()
    for what, value in steps:
        leads = list(disk.queue._leads.values())
        if what == "add":
            disk.add(value)
        elif what == "release":
            disk.release(value)
        elif what == "turn":
            disk.fails = value
            disk.turn()
        elif what == "wait":
            disk.wait(value)
        elif what == "tell":
            disk.queue.notice(ClusterEvent(RejectionCause.STORAGE), disk.now)
        elif leads and what == "remove":
            disk.queue.remove(leads[value % len(leads)].uid)
        elif leads:
            disk.sizes[leads[value % len(leads)].uid] += 1  # it is like others now
    disk.fails = False
    disk.wait(30.0)
    assert {entry.place for entry in disk.queue} <= {QueuePlace.WAITING}
    assert [entry.uid for entry in disk.queue if disk.sizes[entry.uid] <= disk.free] == []
    assert disk.queue._leads == {}


def test_many_that_wait_alike_cost_an_attempt_for_each_volume_that_goes(world: World) -> None:
    disk = Disk(world, 0)
    for _ in range(200):
        disk.add(2)
    disk.turn()
    assert (disk.attempts, disk.placed) == (200, [])
    for _ in range(50):
        disk.release(1)
        disk.wait(0.2)
    assert disk.placed == [f"uid-p{number}" for number in range(25)], "the oldest first"
    assert disk.attempts <= 200 + 2 * 25
    disk.release(350)
    disk.wait(0.0)
    assert len(disk.placed) == 200, "all that fit, at once"


@pytest.mark.parametrize("end", ["retry", "remove", "reject"])
def test_the_next_one_is_tried_at_once_when_the_attempt_of_a_lead_says_nothing(world: World, end: str) -> None:
    disk = Disk(world, 0)
    for _ in range(2):
        disk.add(1)
    disk.turn()
    disk.now += 100
    disk.release(1)
    lead = take(disk.queue)
    assert (lead.uid, disk.queue.pop()) == ("uid-p0", None)
    if end == "retry":
        disk.queue.retry(lead, disk.now)
    elif end == "remove":
        disk.queue.remove(lead.uid)
    else:
        disk.queue.reject(lead, RejectionCause.NODE, disk.now, alike="another rejection")
    assert take(disk.queue).uid == "uid-p1"
