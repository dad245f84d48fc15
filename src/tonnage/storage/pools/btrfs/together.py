"""Snapshots of several subvolumes at one moment. Blocking.

btrfs makes all snapshots of one transaction at the same point of its commit, when no writer is in it. Which transaction
a snapshot was made in is recorded with it. So the snapshots are made in threads at once, compared, and made again until
they are of one transaction. They meet while the transaction before is still being written: a new one takes writers
then, but is not committed. That is why one is committed first.

A snapshot holds the lock of the directory that it is made in until it is committed. So each is made in a folder of its
own, and moved.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from tonnage.base.errors import HostError, host_errors
from tonnage.host import btrfs
from tonnage.host.descriptor import opened

log = logging.getLogger(__name__)
_FOLDER = ".together-"
_DIRTY = "dirty"
_MADE = "snapshot"
_SHARE = 0.6
"""Of the time that a commit takes: when the snapshots are begun after it. Measured: nearly all meet then."""
_FIRST = 0.002  # seconds that a commit is expected to take


def snapshot(
    folder: Path, copies: Sequence[tuple[Path, Path]], late: Callable[[], bool], remove: Callable[[Path], None]
) -> None:
    """Make read-only snapshots of subvolumes at one moment, or none; they are durable after the next commit.

    folder: where it works, on the same btrfs. copies: path of each subvolume and of its snapshot, which does not exist.
    late: when to give up. remove: deletes a subvolume, if it is there. Raises: HostError.
    """
    clean(folder, remove)
    with host_errors(f"cannot make snapshots of several subvolumes in {folder}"):
        try:
            places = [_place(folder, number) for number in range(len(copies))]
            _meet(places, [source for source, _ in copies], late, remove)
            for place, (_, target) in zip(places, copies, strict=True):
                os.rename(place / _MADE, target)
                with opened(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as fd:
                    btrfs.set_readonly(fd)
        finally:
            clean(folder, remove)


def _place(folder: Path, number: int) -> Path:
    place = folder / f"{_FOLDER}{number}"
    place.mkdir(mode=0o700)
    return place


def _meet(
    places: Sequence[Path], sources: Sequence[Path], late: Callable[[], bool], remove: Callable[[Path], None]
) -> None:
    """Make a snapshot of each source in its place, again and again until all are of one transaction."""
    took, attempts = _FIRST, 0
    with ExitStack() as held:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        pairs = [
            (held.enter_context(opened(place, flags)), held.enter_context(opened(source, flags)))
            for place, source in zip(places, sources, strict=True)
        ]
        threads = held.enter_context(ThreadPoolExecutor(len(pairs) + 1))
        while True:
            attempts += 1
            took = _attempt(threads, pairs, places[0], took)
            if len({_transaction(at) for at, _ in pairs}) == 1:
                log.debug("snapshots of one moment volumes=%d attempts=%d", len(pairs), attempts)
                return
            if late():
                raise HostError(
                    f"{sources[0].name} and {len(sources) - 1} more: their snapshots did not get into one transaction"
                    f" in {attempts} attempts; try again when the machine does less"
                )
            for place in places:
                remove(place / _MADE)


def _attempt(threads: ThreadPoolExecutor, pairs: Sequence[tuple[int, int]], place: Path, took: float) -> float:
    """Make all snapshots at once while a commit is under way. took: seconds of the last one; return those of this."""
    btrfs.commit(pairs[0][0])  # little is left to be written
    (place / _DIRTY).write_text("")  # there is something to commit
    ready = threading.Barrier(len(pairs) + 1)

    def commit() -> float:
        ready.wait()
        started = time.monotonic()
        btrfs.commit(pairs[0][0])
        return time.monotonic() - started

    def make(at: int, source: int) -> None:
        ready.wait()
        time.sleep(took * _SHARE)
        btrfs.snapshot(at, _MADE, source, readonly=False)

    try:
        committed = threads.submit(commit)
        all_made = [threads.submit(make, at, source) for at, source in pairs]
    except BaseException:
        ready.abort()  # a thread that cannot start: the others would wait for it for ever
        raise
    for made in all_made:
        made.result()
    return committed.result()


def _transaction(at: int) -> int:
    with opened(_MADE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at) as fd:
        return btrfs.made_in(fd)


def clean(folder: Path, remove: Callable[[Path], None]) -> None:
    """Remove what a killed process left in folder. remove: deletes a subvolume. Raises: HostError."""
    with host_errors(f"cannot clean {folder}"), suppress(FileNotFoundError):
        for entry in os.listdir(folder):
            if entry.startswith(_FOLDER):
                remove(folder / entry / _MADE)
                shutil.rmtree(folder / entry)
