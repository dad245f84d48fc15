"""Plans of pool setup: commands that people can read, and that are run in order."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from tonnage.base.errors import HostError
from tonnage.host.run import CommandError, run

_MKFS_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Step:
    """One command of a plan, and its purpose."""

    command: tuple[str, ...]
    purpose: str

    def __str__(self) -> str:
        return " ".join(self.command)


@dataclass(frozen=True)
class PoolSetupPlan:
    """Ordered steps; none when the pool is complete.

    next: what a person does afterwards.
    """

    steps: tuple[Step, ...]
    next: tuple[str, ...] = ()

    def run(self, done: Callable[[Step], None]) -> None:
        """Run the steps; call done after each. Blocking.

        After a failure, plan and run again.

        Raises: HostError, PreconditionError.
        """
        for step in self.steps:
            try:
                if step.command[0] == "mkdir":
                    os.makedirs(step.command[-1], mode=0o700, exist_ok=True)
                else:
                    run(step.command, timeout=_MKFS_TIMEOUT)
            except (CommandError, OSError) as failure:
                raise HostError(f"{step.purpose}: {failure}") from failure
            done(step)
