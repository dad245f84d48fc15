"""The folder through which the kubelet's program passes its calls: one folder a call, with a FIFO for the answer.

The program renames a complete call into sight, so none is seen by halves. A call whose program has ended has no reader
of its FIFO and is removed undone; the kubelet repeats it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from tonnage.base.aio.tasks import Background
from tonnage.base.errors import HostError, TonnageError, host_errors
from tonnage.host import tree
from tonnage.host.descriptor import closing, opened
from tonnage.host.inotify import DELETE_SELF, DONT_FOLLOW, MOVED_TO, ONLYDIR, Inotify
from tonnage.node.flexvolume.protocol import LARGEST, FlexCall, encode_answer, parse_request

log = logging.getLogger(__name__)
_CALL = "q."
_MINE = 0o700


class FlexSpool:
    """Serves the calls in a folder. kubelet: its folder, for the paths of calls."""

    def __init__(self, folder: Path, kubelet: Path, serve: Callable[[FlexCall], Awaitable[None]]) -> None:
        self._folder, self._kubelet, self._do = folder, kubelet, serve
        self._tasks = Background("flexvolume")
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Serve until cancelled. Raises: HostError where the folder cannot be used, or is removed."""
        self._prepare()
        try:
            with Inotify() as watch, host_errors(f"cannot watch {self._folder}"):
                watch.add(str(self._folder), MOVED_TO | DELETE_SELF | ONLYDIR | DONT_FOLLOW)
                while True:
                    self._look()
                    await watch.wait()
        finally:
            await self._tasks.close()
            self._seen.clear()

    def _prepare(self) -> None:
        """Make the folder, for root only: options hold Secrets."""
        with host_errors(f"cannot make {self._folder}"):
            self._folder.mkdir(mode=_MINE, parents=True, exist_ok=True)
            with opened(str(self._folder), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as fd:
                if os.fstat(fd).st_uid != os.geteuid():
                    raise HostError(f"{self._folder}: it belongs to another user; remove it")
                os.fchmod(fd, _MINE)

    def _look(self) -> None:
        try:
            there = {name for name in os.listdir(self._folder) if name.startswith(_CALL)}
        except FileNotFoundError:
            raise HostError(f"{self._folder} was removed") from None
        for name in sorted(there - self._seen):
            self._tasks.start(self._serve(name), name)
        self._seen = there

    async def _serve(self, name: str) -> None:
        path = self._folder / name
        try:
            answer = os.open(path / "answer", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as failure:
            if failure.errno != errno.ENOENT:  # its program ended, and could not remove it
                await _remove(path)
            return
        with closing(answer):
            if not stat.S_ISFIFO(os.fstat(answer).st_mode):
                log.warning("FlexVolume call without a FIFO is left alone call=%s", path)
                return
            text = encode_answer(await self._result(path))
            with suppress(BrokenPipeError, BlockingIOError):  # the program ended meanwhile
                os.write(answer, text)
        await _remove(path)

    async def _result(self, path: Path) -> str:
        """Do a call; why it failed, "" for success. Only the command and the folder are logged."""
        about = "call"
        try:
            call = parse_request(_read(path / "request"), self._kubelet)
            about = f"{call.command} {call.target.path}"
            await self._do(call)
        except TonnageError as failure:
            log.warning("FlexVolume call failed call=%s error=%s", about, failure)
            return str(failure)
        except Exception as failure:  # the kubelet waits for an answer
            log.exception("FlexVolume call failed call=%s", about)
            return f"internal error of tonnage node agent ({type(failure).__name__}); see its log"
        log.info("FlexVolume call done call=%s", about)
        return ""


async def _remove(path: Path) -> None:
    """Remove a call, which its program may be removing too."""
    with suppress(OSError):
        await asyncio.to_thread(tree.remove, str(path))


def _read(path: Path) -> bytes:
    """The start of a call's file. Raises: HostError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with host_errors(f"cannot read {path}"), opened(str(path), flags) as fd, open(fd, "rb", closefd=False) as file:
        return file.read(LARGEST)
