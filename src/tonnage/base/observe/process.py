"""Tuning of long-running processes: malloc arenas, garbage collector, limit of open files; and their end."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import logging
import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_MI = 1 << 20
_THREADS = 4
_WHOLE = 60


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit: containers need four descriptors each, watches one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tune_allocator() -> None:
    """Use one malloc arena, and return freed memory early. Call it before any thread. No effect without glibc."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_TRIM_THRESHOLD, _MI)
        libc.mallopt(_M_MMAP_THRESHOLD, _MI)


def settle() -> None:
    """Tune the garbage collector after the start: exclude present objects, and run less often. Idempotent.

    Decoding many objects is much faster that way. Blocking calls share a few threads, as each costs memory.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="blocking"))
    _freeze()
    # Small second steps: a check of 100,000 objects stops all threads for more than 30 ms.
    gc.set_threshold(10_000, 2, 50)
    _trim()


async def keep_trimmed(*, every: float = 60.0) -> None:
    """Return freed memory to the machine periodically, until cancelled.

    Present objects are excluded from collection, as after the start: a collection of 10,000 pods and their caches would
    stop all threads for more than 50 ms, in the middle of any request. Once in _WHOLE times the collector checks all of
    them.
    """
    for turn in itertools.count(1):
        await asyncio.sleep(every)
        if turn % _WHOLE == 0:
            gc.unfreeze()
        _freeze()
        _trim()


async def end_tasks(seconds: float) -> None:
    """Cancel and await all that is left on the event loop, as asyncio.run() does; end the process after `seconds`.

    Work that a dead disk holds in a thread can be neither cancelled nor awaited. Call it once all else is closed.
    """
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    threads = asyncio.get_running_loop().shutdown_default_executor()
    ended = asyncio.gather(*left, threads, return_exceptions=True)
    await asyncio.wait([ended], timeout=seconds)
    if not ended.done():
        leave(0)


def leave_stuck() -> None:
    """End the process if a thread would keep it."""
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        leave(0)  # Python would wait for a thread that a dead disk holds


def leave(code: int) -> None:
    """End the process at once; threads may be stuck in the kernel.

    A start after a kill works as well as one after a clean stop.
    """
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _freeze() -> None:
    gc.collect()
    gc.freeze()


def _trim() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
