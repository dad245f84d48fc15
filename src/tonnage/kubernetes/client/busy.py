"""Busy reconciles: those that keep the event loop for longer than a second, which all others wait for.

Controllers run each reconcile in steps: what it does between two waits. A step that ends late is logged and counted.
One that never ends stops the loop, so a thread names it while it runs. The thread sleeps while nothing is reconciled.
Who runs the steps learns how long they were, and lets the others go first for a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from types import coroutine
from typing import Any, TypeVar

from tonnage.base.observe import metrics

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ReconcileStep:
    """A step that runs now. since: seconds of the watch's clock."""

    controller: str
    key: object
    since: float
    is_reported: bool = False


class BusyWatch:
    """Measures the steps of reconciles and reports long ones, each once. monotonic: the clock, in seconds."""

    longest = 1.0
    """Seconds of one step from which on it is reported."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._running: ReconcileStep | None = None
        self._begun = 0
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, controller: str, key: object) -> None:
        """A step begins."""
        self._running = ReconcileStep(controller, key, self._monotonic())
        self._begun += 1
        if not self._wake.is_set():
            self._wake.set()

    def end(self) -> float:
        """The step that runs ends. Returns its seconds if it was long, else 0."""
        self.check()
        step, self._running = self._running, None
        return self._monotonic() - step.since if step is not None and step.is_reported else 0.0

    def check(self) -> None:
        """Report the step that runs if it is long. May be called by any thread."""
        step = self._running
        if step is None or step.is_reported or (taken := self._monotonic() - step.since) < self.longest:
            return
        step.is_reported = True
        metrics.BUSY.labels(step.controller).inc()
        log.warning("reconcile keeps all others waiting controller=%s key=%s s=%.1f", step.controller, step.key, taken)

    def look(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Check steps until none has begun between two looks; waits first until one begins. Blocking."""
        self._wake.wait()
        before = -1
        while self._running is not None or self._begun != before:
            before = self._begun
            sleep(self.longest)
            self.check()
        self._wake.clear()
        if self._begun != before:  # a step that began just now found the event set
            self._wake.set()

    def start(self) -> None:
        """Check from a thread of its own from now on, which ends with the process. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="busy-reconciles", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self.look()


@coroutine
def in_steps(
    watch: BusyWatch,
    controller: str,
    key: object,
    reconcile: Awaitable[T],
    busy: Callable[[float], None] = lambda seconds: None,
) -> Generator[Any, Any, T]:
    """Await a reconcile and let the watch measure each of its steps. busy: called with the seconds of each long one."""
    work = reconcile.__await__()
    step: Callable[[], Any] = partial(next, work)
    while True:
        watch.begin(controller, key)
        try:
            waits_for = step()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            if seconds := watch.end():
                busy(seconds)
        try:
            step = partial(work.send, (yield waits_for))
        except BaseException as failure:
            step = partial(work.throw, failure)
