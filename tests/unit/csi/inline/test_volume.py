"""The state machine of an inline volume: once shown, always shown; failures only postpone."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples

from tonnage.base.errors import AlreadyExistsError
from tonnage.csi.inline.base import Files, InlinePod
from tonnage.csi.inline.volume import LONGEST_DELAY, InlineRequest, InlineVolume
from tonnage.host.atomic_writer import Content

POD = InlinePod("default", "web", "uid-1")


def request(target: str = "/t") -> InlineRequest:
    return InlineRequest("csi-1", target, POD, {})


class Life(RuleBasedStateMachine):
    """Any order of publish calls, fills and clock jumps."""

    @initialize()
    def begin(self) -> None:
        self.volume, self.now, self.was_shown = InlineVolume(request()), 1000.0, False
        self.content: Files | None = None

    @rule(seconds=st.floats(-4000, 4000))
    def jump(self, seconds: float) -> None:
        self.now += seconds

    @rule(again=st.none() | st.floats(-100, 1e6), chance=st.floats(0, 1))
    def succeed(self, again: float | None, chance: float) -> None:
        self.content = Files({"a": Content(b"x")}, None if again is None else self.now + again)
        self.volume.succeed(self.content, now=self.now, chance=chance)
        self.volume.show()
        self.was_shown = True
        assert not self.volume.is_stale(self.now)
        if again is None:
            assert self.volume.due is None
        else:
            assert self.volume.due is not None
            assert self.now < self.volume.due <= max(self.now + again, self.now + 1)

    @rule()
    def fail(self) -> None:
        self.volume.fail("no answer", now=self.now)
        if self.was_shown:
            assert self.volume.due is not None
            assert self.now < self.volume.due <= self.now + LONGEST_DELAY

    @rule(refill=st.booleans())
    def ask_again(self, refill: bool) -> None:
        self.volume.ask(request(), now=self.now, refill=refill)

    @rule()
    def ask_elsewhere(self) -> None:
        with pytest.raises(AlreadyExistsError, match="another path"):
            self.volume.ask(request("/other"), now=self.now, refill=True)

    @invariant()
    def stays_shown(self) -> None:
        assert self.volume.is_shown == self.was_shown

    @invariant()
    def keeps_content(self) -> None:
        assert self.volume.filled is self.content

    @precondition(lambda self: self.was_shown)
    @invariant()
    def a_stale_one_is_filled_again(self) -> None:
        if self.volume.is_stale(self.now):
            assert self.volume.due is not None


TestLife = Life.TestCase
TestLife.settings = examples(60, machine=True, stateful_step_count=20, deadline=None)


def test_a_persistent_volume_is_one_of_each_pod() -> None:
    one, two = (InlineRequest("pv", target, POD, {}, persistent=True) for target in ("/a", "/b"))
    assert one.key != two.key
    assert InlineRequest("pv", "/a", POD, {}).key == "pv"
