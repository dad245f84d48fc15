"""Freezes of one moment: begun in order, ended in reverse, by a timer when it takes too long."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import HostError
from tonnage.storage.pools.core.moment import Moment
from tonnage.storage.pools.fs.online import Freeze

HOUR = 3600.0


class Recorded:
    """A freeze that only records what is done with it."""

    def __init__(self, volume: str, done: list[str], *, fails: str = "") -> None:
        self.volume, self._done, self._fails = volume, done, fails
        self.thawed = threading.Event()

    def begin(self) -> None:
        self._do("freeze")

    def end(self) -> None:
        self.thawed.set()
        self._do("thaw")

    def _do(self, what: str) -> None:
        self._done.append(f"{what} {self.volume}")
        if self._fails == what:
            raise HostError(f"cannot {what} volume {self.volume}")


def freezes(names: str, done: list[str], **fails: str) -> list[Freeze]:
    return [cast(Freeze, Recorded(name, done, fails=fails.get(name, ""))) for name in names]


@given(st.text("abcdef", min_size=1, max_size=6), st.integers(0, 5), st.sampled_from(["", "freeze", "thaw"]))
def test_all_that_was_frozen_is_thawed_in_reverse(names: str, number: int, fails: str) -> None:
    failing, done = names[number % len(names)], list[str]()
    moment = Moment(HOUR)
    moment.begin()
    with suppress(HostError):
        for freeze in freezes(names, done, **{failing: fails}):
            moment.freeze(freeze)
    begun = [name for name in done if name != f"freeze {failing}" or fails != "freeze"]
    done.clear()
    if fails == "thaw":
        with pytest.raises(HostError, match=f"cannot thaw volume {failing}"):
            moment.end()
    else:
        moment.end()
    assert done == [name.replace("freeze", "thaw") for name in reversed(begun)]
    moment.end()
    assert len(done) == len(begun), "once"
    moment.reach("in time")


def test_a_timer_thaws_what_takes_too_long() -> None:
    done = list[str]()
    first, second = freezes("ab", done)
    moment = Moment(0.01)
    moment.freeze(first)
    moment.begin()
    assert cast(Recorded, first).thawed.wait(60), "while the caller waits for something else"
    assert moment.is_late
    with pytest.raises(HostError, match=r"volume a: .* frozen for 0\.01 s"):
        moment.reach("c")
    with pytest.raises(HostError, match="volume a"):
        moment.freeze(second)
    moment.end()
    assert done == ["freeze a", "thaw a"]


def test_a_freeze_that_the_kernel_grants_too_late_is_ended_at_once() -> None:
    done = list[str]()
    moment = Moment(HOUR)
    [late] = freezes("a", done)
    begin = late.begin

    def slow() -> None:
        begin()
        moment._expire()

    late.begin = slow  # type: ignore[method-assign]
    with pytest.raises(HostError, match="volume a"):
        moment.freeze(late)
    assert done == ["freeze a", "thaw a"]
