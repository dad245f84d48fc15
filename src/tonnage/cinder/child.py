"""The child process that speaks with the storage: one JSON object a line, one request at a time.

A request is `{"id": 1, "call": "create", ...}`, its answer `{"id": 1, "result": ...}` or `{"id": 1, "error": KIND,
"text": "..."}`, with `"broken": true` where the process can do no more. A child that does not answer in time is killed
with all that it started; the next request starts another one. Lines that are no answer to the request are skipped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    HostError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    TonnageError,
    UnavailableError,
)

log = logging.getLogger(__name__)
ERRORS: Mapping[str, type[TonnageError]] = {
    "exists": AlreadyExistsError,
    "full": ExhaustedError,
    "in-use": PreconditionError,
    "invalid": InvalidError,
    "not-found": NotFoundError,
    "unfinished": UnavailableError,
}
"""The error of each kind that a child answers; others are HostError."""
_LONGEST = 16 << 20  # bytes of a line
_SECRET = re.compile(r"passw|passphrase|secret|keyring|token", re.IGNORECASE)
_SHOWN = 500  # characters of an error's text


class Child:
    """One child, started with the first request. All requests raise UnavailableError when it dies or hangs."""

    def __init__(self, what: str, command: Sequence[str], setup: Mapping[str, Any], *, limit: float) -> None:
        """what: for messages. setup: arguments of the first request to each process. limit: seconds for a request."""
        self._what, self._command, self._setup, self.limit = what, command, setup, limit
        self._secrets = frozenset(_secrets(setup))
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._number = 0

    async def call(self, call: str, **arguments: Any) -> Any:
        """The result of a request. Raises: the errors of ERRORS, HostError, UnavailableError.

        A request whose caller is cancelled continues in the child.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(self.limit):
                    process = await self._running()
                    answer = await self._ask(process, call, arguments)
                if answer.get("broken"):
                    await self._end()
            except TimeoutError:
                await self._end()
                raise UnavailableError(
                    f"{self._what}: {call}: no answer in {self.limit:g} s, the process was killed; look at the storage"
                ) from None
            except (OSError, EOFError, ValueError) as failure:
                code = await self._end()
                why = f"exit code {code}" if code is not None else str(failure)
                raise UnavailableError(f"{self._what}: {call}: the process ended: {why}; repeat the call") from None
        return self._result(call, answer, arguments)

    async def close(self) -> None:
        """Kill the process. Idempotent."""
        await self._end()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._end()
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, limit=_LONGEST, start_new_session=True
        )
        log.info("started child=%s pid=%d", self._what, process.pid)
        answer = await self._ask(process, "setup", self._setup)
        if "error" in answer:
            await self._end()
        self._result("setup", answer, {})
        return process

    async def _ask(self, process: asyncio.subprocess.Process, call: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to one request. Raises: EOFError, OSError, ValueError for a line that is too long."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._number += 1
        process.stdin.write(json.dumps({"id": self._number, "call": call, **arguments}).encode() + b"\n")
        await process.stdin.drain()
        while line := await process.stdout.readline():
            with suppress(ValueError, RecursionError):
                answer = json.loads(line)
                if isinstance(answer, dict) and answer.get("id") == self._number:
                    return answer
            log.warning("line skipped child=%s bytes=%d", self._what, len(line))  # it may hold secrets
        raise EOFError("its output ended")

    def _result(self, call: str, answer: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        if "error" not in answer:
            return answer.get("result")
        text = str(answer.get("text", ""))
        for secret in sorted({*self._secrets, *_secrets(arguments)}, key=len, reverse=True):
            text = text.replace(secret, "***")
        error = ERRORS.get(str(answer["error"]), HostError)
        raise error(f"{self._what}: {call}: {' '.join(text.split())[:_SHOWN]}")

    async def _end(self) -> int | None:
        """Kill the process and what it started; its exit code, None where we killed it."""
        process, self._process = self._process, None
        if process is None:
            return None
        with suppress(TimeoutError):  # one whose output ended is about to exit
            if process.stdout is not None and process.stdout.at_eof():
                await asyncio.wait_for(process.wait(), 1.0)
        code = process.returncode
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        return code


def _secrets(value: object, name: str = "") -> Iterator[str]:
    """All texts in value whose keys say that they are secret."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _secrets(part, str(key))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _secrets(part, name)
    elif isinstance(value, str) and value and _SECRET.search(name):
        yield value
