"""Copies of the test's process, which has everything imported: a new interpreter takes a second of processor time."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

from tonnage.cli import up as _up  # noqa: F401  loaded before copies are made
from tonnage.cli.main import main

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


def tonnage(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a copy of this process. Not for what stays in the background: it would be a copy, too."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:

        def run() -> int:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            code = main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            return code

        code, returned = forked(run)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code or returned, out.read(), err.read())
