"""Errors and Events of snapshots and of groups, each reported once, also by a controller that starts anew."""

from __future__ import annotations

from typing import Any, Generic

from tonnage.base.aio.clock import rfc3339
from tonnage.controller.config import LoopContext
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.object_write import write_status
from tonnage.provisioning.claims.snapshot_shape import S
from tonnage.provisioning.claims.timers import Waits


class Reports(Generic[S]):
    """Reports about objects of one kind."""

    def __init__(self, context: LoopContext, kind: Kind[S]) -> None:
        self._client, self._events, self._clock = context.client, context.events, context.clock
        self._kind: Kind[S] = kind
        self._waits = Waits(context.clock)

    def over(self, key: str) -> None:
        """Forget an object that is gone."""
        self._waits.over(key)

    async def reject(self, snapshot: S, reason: str, message: str, *, ready: bool | None = False) -> None:
        """Write and emit why there is no snapshot; neither again while it is the same.

        ready: what readyToUse is written as, None for not.
        """
        status, error = snapshot.status, snapshot.status.error
        same = error is not None and error.message == message
        if not same or (ready is not None and status.ready_to_use is not ready):
            body: dict[str, Any] = {"error": {"message": message, "time": rfc3339(self._clock.time())}}
            if ready is not None:
                body["readyToUse"] = ready
            await write_status(self._client, self._kind, snapshot, body)
        self.warn(snapshot, reason, message)

    def warn(self, snapshot: S, reason: str, message: str) -> None:
        """Emit a warning once."""
        text = f"{snapshot.metadata.uid}\0{reason}\0{message}"
        if not self._waits.news(snapshot.key, text):
            return
        self._events.warning(refer(self._kind, snapshot), reason, message, once=text)

    def announce(self, snapshot: S, reason: str, message: str) -> None:
        """Emit what went well."""
        self._events.normal(refer(self._kind, snapshot), reason, message)
