"""The work queue loses nothing and runs nothing twice at once."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import DEFAULT, examples

from tonnage.base.aio.backoff import Backoff
from tonnage.kubernetes.client.queue import WorkQueue

KEYS = st.integers(0, 4)


class QueueMachine(RuleBasedStateMachine):
    """Compares the queue with a model: which keys are owed a look, and which are being worked on."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: WorkQueue[int] = WorkQueue(Backoff(initial=1.0, maximum=8.0))
        self.owed: set[int] = set()
        self.working: set[int] = set()
        self.due: dict[int, float] = {}
        self.failed: set[int] = set()
        self.now = 0.0

    @rule(key=KEYS)
    def add(self, key: int) -> None:
        self.queue.add(key)
        self.owed.add(key)

    @rule(key=KEYS, after=st.integers(1, 5))
    def add_later(self, key: int, after: int) -> None:
        self.queue.add_at(key, self.now + after)
        self.due[key] = min(self.due.get(key, 1e9), self.now + after)

    @rule(key=KEYS)
    def add_limited(self, key: int) -> None:
        delay = self.queue.add_limited(key, self.now)
        self.failed.add(key)
        self.due[key] = min(self.due.get(key, 1e9), self.now + delay)

    @rule()
    def retry_now(self) -> None:
        self.queue.retry_now(self.now)
        self.due |= dict.fromkeys(self.failed & self.due.keys(), self.now)
        self.failed.clear()

    @rule(seconds=st.integers(1, 6))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        self.queue.advance(self.now)
        for key in [k for k, when in self.due.items() if when <= self.now]:
            del self.due[key]
            self.owed.add(key)

    @rule()
    def get(self) -> None:
        key = self.queue.get()
        free = self.owed - self.working
        assert (key is None) == (not free)
        if key is not None:
            assert key in free
            self.owed.discard(key)
            self.working.add(key)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.queue.done(key)
        self.working.discard(key)

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queue) == len(self.owed - self.working)
        assert self.queue.next_due() == min(self.due.values(), default=None)
        assert self.queue.idle == (not self.owed and not self.working and not self.due)


TestQueue = QueueMachine.TestCase
TestQueue.settings = examples(DEFAULT, machine=True, deadline=None)


def test_backoff_grows_and_is_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue(Backoff(initial=1.0, maximum=5.0))

    assert [queue.add_limited("a", 0.0) for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    queue.forget("a")
    assert queue.add_limited("a", 0.0) == 1.0


def test_what_failed_is_retried_now_and_begins_its_backoff_afresh() -> None:
    queue: WorkQueue[str] = WorkQueue(Backoff(initial=8.0, maximum=300.0))
    for _ in range(3):
        queue.add_limited("failed", 0.0)
    queue.add_at("asked for", 50.0)

    queue.retry_now(2.0)

    assert queue.next_due() == 2.0
    queue.advance(2.0)
    assert (queue.get(), queue.get()) == ("failed", None)
    assert queue.next_due() == 50.0
    assert queue.add_limited("failed", 3.0) == 8.0
