"""State machine of one inline volume: asked, shown, stale. Used by the inline driver.

It makes no I/O. Once a volume is shown, no failure ends that; only its removal does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tonnage.base.errors import AlreadyExistsError
from tonnage.csi.inline.base import Files, Filled, InlinePod

FIRST_DELAY, LONGEST_DELAY = 1.0, 300.0
"""Seconds of the back-off after a failed fill."""
_SOONEST = 1.0
_JITTER, _LONGEST_JITTER = 0.05, 300.0


class InlinePhase(StrEnum):
    """Phase of a volume."""

    ASKED = "asked"
    SHOWN = "shown"


@dataclass(frozen=True)
class InlineRequest:
    """A publish call. target: the path where the pod's volume is shown. persistent: of a PersistentVolume."""

    handle: str
    target: str
    pod: InlinePod
    attributes: Mapping[str, str] = field(repr=False)
    read_only: bool = False
    persistent: bool = False

    @property
    def key(self) -> str:
        """The volume's key: a PersistentVolume is a volume of its own for each pod."""
        return key_of(self.handle, self.target, persistent=self.persistent)


def key_of(handle: str, target: str, *, persistent: bool) -> str:
    """Return the key of the volume with that handle at that path."""
    return f"{handle}@{target}" if persistent else handle


@dataclass
class InlineVolume:
    """One volume.

    due: when to fill it again (seconds since 1970), None: never. failures: fills that failed since the last success.
    error: text of the last failure, "" after a success. stale: from when on a failure is reported (seconds since 1970).
    reported: the failure that was reported since the last success. lacks_tokens: the agent was restarted and the
    kubelet has not published since.
    """

    request: InlineRequest
    phase: InlinePhase = InlinePhase.ASKED
    filled: Filled | None = None
    due: float | None = None
    failures: int = 0
    error: str = ""
    stale: float = 0.0
    reported: str = ""
    lacks_tokens: bool = False

    @property
    def is_shown(self) -> bool:
        """Whether the kubelet was answered, so that the pod may run."""
        return self.phase is InlinePhase.SHOWN

    def is_stale(self, now: float) -> bool:
        """Whether the pod sees content that could not be renewed in time."""
        return self.is_shown and self.failures > 0 and now >= self.stale

    def ask(self, request: InlineRequest, *, now: float, refill: bool) -> None:
        """Take a repeated publish call: fresh tokens and secrets; refill: fill soon.

        Raises: AlreadyExistsError for another target or other attributes.
        """
        if request.target != self.request.target:
            raise AlreadyExistsError(
                f"inline volume {request.handle}: it is published at another path: {self.request.target}"
            )
        waited, self.lacks_tokens = self.lacks_tokens, False
        self.request = request
        if self.is_shown and (refill or (waited and self.due is not None and self.due <= now)) and not self.failures:
            self.due = now

    def succeed(self, filled: Filled | None, *, now: float, chance: float) -> None:
        """Take the result of a fill. chance: 0 to 1, spreads the renewals of many volumes."""
        self.filled, self.failures, self.error, self.reported = filled, 0, "", ""
        again, self.stale = (filled.again, filled.stale) if isinstance(filled, Files) else (None, 0.0)
        if again is None:
            self.due = None
            return
        early = min((again - now) * _JITTER, _LONGEST_JITTER) * chance
        self.due = max(again - max(early, 0.0), now + _SOONEST)

    def show(self) -> None:
        """The content is mounted and recorded."""
        self.phase = InlinePhase.SHOWN

    def fail(self, why: str, *, now: float) -> None:
        """Take a failed fill; a shown volume is filled again later."""
        delay = min(FIRST_DELAY * 2.0 ** min(self.failures, 30), LONGEST_DELAY)
        self.failures += 1
        self.error = why
        self.due = now + delay if self.is_shown else None
