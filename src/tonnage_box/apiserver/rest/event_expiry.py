"""Expiry of Events: an hour after its last write one is removed, as kube-apiserver does (--event-ttl 1h).

One timer waits for the oldest Event, and a minute more: so all that are due by then go together, and a busy server
wakes once a minute for it. Without Events nothing waits. A start counts from the times that an Event has itself.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from itertools import takewhile
from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import TonnageError
from tonnage.kubernetes.api.kinds import EVENTS
from tonnage_box.apiserver.request.negotiate import run_in_thread_if_large
from tonnage_box.apiserver.storage.store import Obj, ObjectKey, StaleError, Store, StoreEvent

log = logging.getLogger(__name__)
TTL_SECONDS = 3600.0
TOGETHER_SECONDS = 60.0
"""How long the oldest may wait for others, and a failed removal for its next try."""
_BATCH = 32
"""Removals that may share a commit."""


class EventExpiry:
    """Removes the Events of a store. runs: how often it has looked for those that are due."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._deadlines: dict[ObjectKey, float] = {}
        """By the loop's time, the earliest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Background("expiry")
        self._is_stopped = False
        self.runs = 0

    def start(self) -> None:
        """Count the time of the Events there are, and follow the store. Call it with a loaded store."""
        now, today = _now(), self._clock.time()
        left = {
            record.key: TTL_SECONDS - min(max(today - written(record.decode(), today), 0.0), TTL_SECONDS)
            for record in self._store.records(EVENTS.key)
        }
        self._deadlines = {key: now + seconds for key, seconds in sorted(left.items(), key=lambda item: item[1])}
        self._store.listen(self._on_event)
        self._wait()

    async def stop(self) -> None:
        """Stop removing. Idempotent."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._tasks.close()

    def _on_event(self, event: StoreEvent) -> None:
        key = event.record.key
        if key.collection != EVENTS.key:
            return
        self._deadlines.pop(key, None)
        if event.type != "DELETED":
            self._deadlines[key] = _now() + TTL_SECONDS
            self._wait()

    def _wait(self) -> None:
        """Have the timer wait for the oldest. Idempotent."""
        if self._timer is None and self._deadlines and not self._is_stopped:
            left = max(next(iter(self._deadlines.values())) - _now(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(left + TOGETHER_SECONDS, self._wake)

    def _wake(self) -> None:
        self._tasks.start(self._remove_due())

    async def _remove_due(self) -> None:
        self.runs += 1
        now = _now()
        due = [key for key, _ in takewhile(lambda item: item[1] <= now, self._deadlines.items())]
        try:
            for first in range(0, len(due), _BATCH):
                await asyncio.gather(*(self._remove(key, now) for key in due[first : first + _BATCH]))
        finally:
            self._timer = None
            self._wait()

    async def _remove(self, key: ObjectKey, now: float) -> None:
        record = self._store.get(key)
        if record is None or self._deadlines.get(key, now + 1) > now:  # written meanwhile
            return
        obj = await run_in_thread_if_large(len(record.data), record.decode)
        try:
            await self._store.remove(key, obj, record.revision)
        except StaleError:
            log.debug("an Event was written while it expired name=%s", key.name)
        except TonnageError as error:
            log.warning("cannot remove an old Event name=%s namespace=%s error=%s", key.name, key.namespace, error)


def _now() -> float:
    return asyncio.get_running_loop().time()


def written(event: Obj, default: float) -> float:
    """When an Event was last written, by its own times, in seconds since the epoch."""
    series, meta = event.get("series") or {}, event["metadata"]
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    found = [_seconds(time) for time in (*times, meta.get("creationTimestamp")) if time]
    return max((time for time in found if time is not None), default=default)


def _seconds(time: Any) -> float | None:
    try:
        return datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
