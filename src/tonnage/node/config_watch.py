"""Follows a node's file while the node serves: told by the kernel when it changes, so that nothing polls.

A ConfigMap's folder is swapped by the kubelet as a whole: `..data` is a symlink that is renamed over, and the file is a
symlink through it. A file that a person edits is written in place or renamed over. Both are events of the folders that
the path goes through.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.errors import Invalid
from tonnage.host import inotify
from tonnage.node.config.node import NodeConfig

log = logging.getLogger(__name__)
SETTLE = 0.3
"""Seconds after the first sign of a change: whoever writes it is done by then, or gives another sign."""
_CHANGES = inotify.CLOSE_WRITE | inotify.CREATE | inotify.MOVED_TO | inotify.ONLYDIR


class LiveConfig:
    """run() calls `apply` with each configuration that the file has had since, `refuse` with why it has none.

    read: reads the file (and the command line over it), blocking; raises Invalid. Both may be called again with what
    they know.
    """

    def __init__(
        self,
        file: Path,
        read: Callable[[], NodeConfig],
        *,
        apply: Callable[[NodeConfig], Awaitable[None]],
        refuse: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        self._file, self._read, self._apply, self._refuse = file, read, apply, refuse
        self._clock = clock or RealClock()

    async def run(self) -> None:
        """Follow until cancelled. Raises OSError when the folder cannot be watched."""
        with inotify.Inotify() as told:
            while True:
                _watch(told, self._file)  # anew each time: the path may lead elsewhere now
                await self._look()  # also what has changed before it was watched
                await told.wait()
                await self._clock.sleep(SETTLE)

    async def _look(self) -> None:
        try:
            wanted = await asyncio.to_thread(self._read)
        except Invalid as reason:
            self._refuse(str(reason))
            return
        await self._apply(wanted)


def _watch(told: inotify.Inotify, file: Path) -> None:
    told.add(str(file.parent), _CHANGES)
    with suppress(OSError):  # a symlink that leads nowhere, until it is swapped
        real = Path(os.path.realpath(file, strict=True))
        if real.parent != file.parent:
            told.add(str(real.parent), _CHANGES)
