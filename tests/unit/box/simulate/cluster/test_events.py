"""Virtual time: events in order, each at its moment."""

from __future__ import annotations

from functools import partial

from tonnage_box.simulate.cluster.events import Events


def test_in_order_of_time_then_of_planning() -> None:
    events, done = Events(), list[tuple[float, str]]()

    def do(name: str) -> None:
        done.append((events.time(), name))
        if name == "first":
            events.at(0.5, partial(do, "of the past"))
            events.after(1.0, partial(do, "after"))

    for when, name in ((2.0, "last"), (1.0, "first"), (1.0, "second"), (9.0, "too late")):
        events.at(when, partial(do, name))
    events.run(3.0)
    assert done == [(1.0, "first"), (1.0, "second"), (1.0, "of the past"), (2.0, "last"), (2.0, "after")]
    assert events.monotonic() == 3.0
