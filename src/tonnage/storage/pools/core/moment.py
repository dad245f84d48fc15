"""File systems that are frozen together for one moment, thawed when it takes too long. Blocking."""

from __future__ import annotations

import logging
import threading

from tonnage.base.errors import HostError
from tonnage.storage.pools.fs.online import Freeze

log = logging.getLogger(__name__)


class Moment:
    """Freezes that begin one after the other and end in reverse, after `seconds` at the latest.

    A timer of its own thaws: the caller may be waiting for the kernel.
    """

    def __init__(self, seconds: float) -> None:
        self.is_late = False
        """Whether it took too long: all is thawed, and what was made is of no moment."""
        self._seconds = seconds
        self._volume = ""
        self._frozen: list[Freeze] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    def begin(self) -> None:
        """Start the timer."""
        self._timer.start()

    def freeze(self, freeze: Freeze) -> None:
        """Begin a freeze, which end() ends. Raises: PreconditionError, HostError, also when it is late."""
        self.reach(freeze.volume)
        freeze.begin()
        with self._lock:
            if not self.is_late:
                self._frozen.append(freeze)
                return
        freeze.end()
        self.reach(freeze.volume)

    def reach(self, volume: str) -> None:
        """Go on to a volume, which is named when it takes too long. Raises: HostError when it is late."""
        if self.is_late:
            raise HostError(
                f"volume {self._volume}: the group's file systems were frozen for {self._seconds:g} s and no snapshot"
                " was complete: they are thawed; repeat it when the disks have less to write"
            )
        self._volume = volume

    def _expire(self) -> None:
        with self._lock:
            self.is_late = True
        try:
            self._thaw()  # before anything is logged: that may be to a disk that is frozen
        except HostError as failure:
            log.error("cannot thaw error=%s", failure)
        log.warning("thawed: the snapshots took too long volume=%s seconds=%g", self._volume, self._seconds)

    def end(self) -> None:
        """Thaw in reverse order. Idempotent. Raises: HostError of the first that cannot be thawed; all are tried."""
        self._timer.cancel()
        self._thaw()

    def _thaw(self) -> None:
        failures = []
        with self._lock:
            while self._frozen:
                try:
                    self._frozen.pop().end()
                except HostError as failure:
                    failures.append(failure)
        if failures:
            raise failures[0]
