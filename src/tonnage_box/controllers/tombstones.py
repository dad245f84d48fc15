"""Tombstones: uids known to be deleted, which need no further live read. Sans-I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

_REMEMBERED = 10_000


class Tombstones:
    """uids of deleted objects (uids are never reused), or uids that a certain node or namespace does not have.

    A watch without selector reports every deletion. Deletions that a watch does not report need a live read.
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
