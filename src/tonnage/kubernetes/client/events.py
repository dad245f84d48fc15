"""Events: recorded asynchronously, aggregated and rate-limited per object (client-go tools/record).

A repeated event increments count on the existing Event. More than 10 similar ones (same object and reason, other
messages) within 10 minutes become one. An object may have a burst of 25 events, and one more every 5 minutes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tonnage.base.aio.clock import Clock, RealClock, rfc3339
from tonnage.base.aio.tasks import KeyedLocks
from tonnage.base.errors import ApiAlreadyExistsError, ApiNotFoundError, TonnageError
from tonnage.kubernetes.api.kinds import EVENTS
from tonnage.kubernetes.api.meta import ObjectReference, to_builtins
from tonnage.kubernetes.client.client import Client

log = logging.getLogger(__name__)
NORMAL = "Normal"
WARNING = "Warning"
_REMEMBERED = 4096
_WAITING = 5000
_WRITERS = 4
_SIMILAR, _SIMILAR_SECONDS = 10, 600.0
_BURST, _REFILL_SECONDS = 25.0, 300.0
_LONGEST_NAME = 236


@dataclass
class _Recorded:
    name: str
    count: int
    first: str


@dataclass
class _Similar:
    since: float
    messages: set[str] = field(default_factory=set)


@dataclass
class _Allowance:
    left: float
    at: float


class Correlator:
    """Aggregates and limits events. No I/O."""

    def __init__(self) -> None:
        self._similar: OrderedDict[tuple[str, ...], _Similar] = OrderedDict()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()
        self.recorded: OrderedDict[tuple[str, ...], _Recorded] = OrderedDict()

    def allow(self, uid: str, now: float) -> bool:
        """Whether the object may have one more event at time now (seconds); counts it."""
        allowance = self._allowances.setdefault(uid, _Allowance(_BURST, now))
        self._allowances.move_to_end(uid)
        allowance.left = min(_BURST, allowance.left + (now - allowance.at) / _REFILL_SECONDS)
        allowance.at = now
        _trim(self._allowances)
        if allowance.left < 1:
            return False
        allowance.left -= 1
        return True

    def message(self, uid: str, reason: str, message: str, now: float) -> str:
        """The message to emit: the given one, or one for all similar events."""
        similar = self._similar.get((uid, reason))
        if similar is None or now - similar.since > _SIMILAR_SECONDS:
            similar = self._similar[uid, reason] = _Similar(now)
        self._similar.move_to_end((uid, reason))
        similar.messages.add(message)
        _trim(self._similar)
        if len(similar.messages) > _SIMILAR:
            return f"(combined from similar events): {message}"
        return message


def _trim(entries: OrderedDict[Any, Any]) -> None:
    while len(entries) > _REMEMBERED:
        entries.popitem(last=False)


@dataclass(frozen=True)
class _Report:
    """An event to write. at: wall clock time. moment: monotonic time, for limits."""

    about: ObjectReference
    type: str
    reason: str
    message: str
    at: float
    moment: float
    name: str
    """Of the Event: after the object, and unique."""
    once: str = ""


class EventRecorder:
    """Records Events of a component (and host). record() returns at once; run() writes."""

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        host: str = "",
        clock: Clock | None = None,
        suffix: Callable[[], str] = lambda: f"{time.time_ns():016x}",
    ) -> None:
        """suffix: end of an Event's name; the time, as in Kubernetes: kubectl sorts those of a second by name."""
        self._client = client
        self._component, self._host = component, host
        self._clock = clock or RealClock()
        self._suffix = suffix
        self._correlator = Correlator()
        self._locks = KeyedLocks()
        self._waiting: asyncio.Queue[_Report] = asyncio.Queue(_WAITING)

    def record(self, about: ObjectReference, type_: str, reason: str, message: str, *, once: str = "") -> None:
        """Record an event. type_ is Normal or Warning, reason one CamelCase word. Dropped when 5000 are queued.

        once: a text that identifies the event. It is not emitted while the cluster has an event of that object and
        text from any process, for what many processes detect at the same time.
        """
        now, moment = self._clock.time(), self._clock.monotonic()
        end = hashlib.sha256(once.encode()).hexdigest()[:16] if once else self._suffix()
        name = f"{about.name[:_LONGEST_NAME].rstrip('.-')}.{end}"
        try:
            self._waiting.put_nowait(_Report(about, type_, reason, message[:1024], now, moment, name, once))
        except asyncio.QueueFull:
            log.debug("event dropped reason=%s object=%s", reason, about.name)

    def normal(self, about: ObjectReference, reason: str, message: str) -> None:
        """Record a Normal event."""
        self.record(about, NORMAL, reason, message)

    def warning(self, about: ObjectReference, reason: str, message: str, *, once: str = "") -> None:
        """Record a Warning event. once: see record()."""
        self.record(about, WARNING, reason, message, once=once)

    async def run(self) -> None:
        """Write until cancelled: several at once, but those of one object in order."""
        async with asyncio.TaskGroup() as writers:
            for _ in range(_WRITERS):
                writers.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            report = await self._waiting.get()
            try:
                async with self._locks.hold(report.about.uid):
                    await self._write(report)
            except TonnageError as failure:
                log.debug("event not written reason=%s error=%s", report.reason, failure)

    async def _write(self, report: _Report) -> None:
        about = report.about
        if not self._correlator.allow(about.uid or about.name, report.moment):
            return
        message = self._correlator.message(about.uid, report.reason, report.message, report.moment)
        combined = message != report.message
        key = (about.uid, about.name, about.field_path, report.type, report.reason, "" if combined else message)
        recorded = self._correlator.recorded.get(key)
        if recorded is not None and not report.once and await self._again(about, recorded, message, report.at):
            return
        try:
            self._correlator.recorded[key] = await self._first(report, message)
        except ApiAlreadyExistsError:
            if not report.once:
                raise
        _trim(self._correlator.recorded)

    async def _again(self, about: ObjectReference, recorded: _Recorded, message: str, at: float) -> bool:
        recorded.count += 1
        patch = {"count": recorded.count, "lastTimestamp": rfc3339(at), "message": message}
        try:
            await self._client.patch(EVENTS, recorded.name, patch, about.namespace or "default")
        except ApiNotFoundError:  # it has expired: begin anew
            return False
        return True

    async def _first(self, report: _Report, message: str) -> _Recorded:
        about, name = report.about, report.name
        body = self.body(about, report.type, report.reason, message, name=name, at=report.at)
        await self._client.create(EVENTS, body, about.namespace or "default")
        return _Recorded(name, 1, body["firstTimestamp"])

    def body(
        self, about: ObjectReference, type_: str, reason: str, message: str, *, name: str, at: float
    ) -> dict[str, Any]:
        """Body of a first event, for a caller that writes it itself. at: wall clock time."""
        stamp = rfc3339(at)
        return {
            "metadata": {"name": name, "namespace": about.namespace or "default"},
            "involvedObject": to_builtins(about),
            "type": type_,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": {"component": self._component} | ({"host": self._host} if self._host else {}),
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }
