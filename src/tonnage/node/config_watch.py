"""Watch of a node's configuration file, by inotify, without polling.

The kubelet replaces a ConfigMap's directory as a whole: it renames a new symlink over `..data`, and the file is a
symlink through that. A person's editor writes the file in place or renames another over it. Both cause events in the
directories of the path.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from tonnage.aio.clock import Clock, RealClock
from tonnage.errors import InvalidError
from tonnage.host import inotify
from tonnage.node.config.node import NodeConfig

log = logging.getLogger(__name__)
SETTLE = 0.3
"""Seconds from the first event of a change to its completion."""
_CHANGES = inotify.CLOSE_WRITE | inotify.CREATE | inotify.MOVED_TO | inotify.ONLYDIR


class LiveConfig:
    """Calls `apply` with each new configuration, `refuse` with each error.

    read: reads the file with the command line over it; blocking; raises InvalidError. Both may be called again with the
    same value.
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
        """Follow the file until cancelled.

        Raises: OSError if the directory cannot be watched.
        """
        with inotify.Inotify() as told:
            while True:
                _watch(told, self._file)  # each time: the path may resolve to another directory now
                await self._look()  # includes changes from before the watch
                await told.wait()
                await self._clock.sleep(SETTLE)

    async def _look(self) -> None:
        try:
            wanted = await asyncio.to_thread(self._read)
        except InvalidError as reason:
            self._refuse(str(reason))
            return
        await self._apply(wanted)


def _watch(told: inotify.Inotify, file: Path) -> None:
    told.add(str(file.parent), _CHANGES)
    with suppress(OSError):  # a dangling symlink, until the kubelet replaces it
        real = Path(os.path.realpath(file, strict=True))
        if real.parent != file.parent:
            told.add(str(real.parent), _CHANGES)
