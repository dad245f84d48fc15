"""Tables of transitions: which state follows an event, and why.

A state machine with such a table changes its state by it alone, so the table says all that can happen. An event that a
state does not have is a fault of the program: the state stays as it is, and the error is about that one object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class ImpossibleTransitionError(Exception):
    """The event is none of the object's state; the state has not changed."""


@dataclass(frozen=True)
class Transition(Generic[S, E]):
    """One row: an event after which these states become another one. after: None if each of them stays."""

    before: Sequence[S]
    event: E
    after: S | None
    why: str


class TransitionTable(Generic[S, E]):
    """All transitions of one kind of object.

    kind: what messages call the object. start: its first state. groups: names of states that share rows.
    """

    def __init__(
        self, kind: str, start: S, rows: Sequence[Transition[S, E]], groups: Mapping[str, Sequence[S]] | None = None
    ) -> None:
        self.kind, self.start, self.rows, self.groups = kind, start, rows, groups or {}
        self._after = {(state, row.event): row.after or state for row in rows for state in row.before}

    def allows(self, state: S, event: E) -> bool:
        """Return whether the state has the event."""
        return (state, event) in self._after

    def after(self, state: S, event: E, *, about: str) -> S:
        """Return the next state. about: the object's uid or name. Raises: ImpossibleTransitionError."""
        if not self.allows(state, event):
            raise ImpossibleTransitionError(
                f"{self.kind} {about}: {event.value!r} not recorded: impossible in state {state.value!r}, which stays;"
                " report this as a bug of tonnage, with the log before it"
            )
        return self._after[state, event]
