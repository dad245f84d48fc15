"""What is known to be gone for good, so that nobody need ask the API server for it again. Sans-I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

_REMEMBERED = 10_000


class Absent:
    """uids of deleted objects (uids never come back), or uids looked for in vain in a certain place.

    A watch that nothing narrows tells of every deletion; what it did not tell must be asked for.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, None] = OrderedDict()

    def add(self, what: Hashable) -> None:
        """Remember; the oldest of more than 10000 is forgotten."""
        self._known[what] = None
        self._known.move_to_end(what)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def __contains__(self, what: Hashable) -> bool:
        """Whether it is known to be gone."""
        return what in self._known
