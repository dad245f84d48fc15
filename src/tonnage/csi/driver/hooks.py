"""What a driver tells the agent that works over its pools, since no CSI call reports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Hooks(Protocol):
    """Called by the driver and its pools, in the event loop."""

    def capacity_changed(self) -> None:
        """An inline volume came or went, or blocks were erased: published capacity is out of date."""

    def unfit(self, context: Mapping[str, str], why: str) -> None:
        """A pod's inline volume does not fit. context: of the publish call, which names the pod."""

    async def before_stage(self, handle: str) -> None:
        """Called with a volume's id before it is staged; an error that it raises fails the call."""

    def unstaged(self, handle: str) -> None:
        """A volume was unstaged: its pods may have finished."""

    def pool_fault(self, pool: str, why: str) -> None:
        """A pool cannot write, or can again (why "")."""


class NoHooks:
    """Those of a driver without an agent: any volume may be staged."""

    def capacity_changed(self) -> None:
        """Do nothing."""

    def unfit(self, context: Mapping[str, str], why: str) -> None:
        """Do nothing."""

    async def before_stage(self, handle: str) -> None:
        """Do nothing."""

    def unstaged(self, handle: str) -> None:
        """Do nothing."""

    def pool_fault(self, pool: str, why: str) -> None:
        """Do nothing."""


class Relay:
    """Passes each call on to `to`, the agent of the moment: one that starts anew is another object."""

    def __init__(self) -> None:
        self.to: Hooks = NoHooks()

    def capacity_changed(self) -> None:
        """As Hooks."""
        self.to.capacity_changed()

    def unfit(self, context: Mapping[str, str], why: str) -> None:
        """As Hooks."""
        self.to.unfit(context, why)

    async def before_stage(self, handle: str) -> None:
        """As Hooks."""
        await self.to.before_stage(handle)

    def unstaged(self, handle: str) -> None:
        """As Hooks."""
        self.to.unstaged(handle)

    def pool_fault(self, pool: str, why: str) -> None:
        """As Hooks."""
        self.to.pool_fault(pool, why)
