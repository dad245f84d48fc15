"""Copies of the test's process, which has everything imported: a new interpreter takes a second of processor time."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

LONGEST = 300
"""Seconds after which a copy is ended by a signal: a guard."""


def forked(body: Callable[[], Any]) -> tuple[int, Any]:
    """Run body, a function or coroutine function, in a copy of this process: its exit code (1: it raised, negative: a
    signal), and what it returned, as JSON can tell it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            gc.freeze()  # pages that are not written to stay shared
            signal.alarm(LONGEST)
            result = body()
            if asyncio.iscoroutine(result):
                result = asyncio.run(result)
            os.write(writing, json.dumps(result).encode())  # less than a pipe holds
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading) as file:
        told = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, json.loads(told) if told else None
