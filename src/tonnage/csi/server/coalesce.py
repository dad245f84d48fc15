"""A transport that coalesces all writes of one event loop turn into one system call.

grpclib writes the head, the body and the end of a response one by one, which wakes the caller three times. The end of a
request or response is sent without waiting for the turn's end, if its beginning is among the pending writes.
"""

from __future__ import annotations

import asyncio
from typing import Any

_KIND, _FLAGS = 3, 4  # places in a frame (RFC 9113, 4.1), which begins each write
_ENDING = (0, 1)  # DATA, HEADERS
_END_STREAM = 1


class Corked:
    """The part of asyncio.Transport that grpclib uses, over a real one."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._written: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send data at the end of this turn."""
        if not data:
            return
        if not self._written:
            self._loop.call_soon(self._flush)
        self._written.append(data)
        if data[_KIND] in _ENDING and data[_FLAGS] & _END_STREAM:
            self._flush()

    def _flush(self) -> None:
        written, self._written = self._written, []
        if written and not self._transport.is_closing():
            self._transport.write(written[0] if len(written) == 1 else b"".join(written))

    def close(self) -> None:
        """Send pending data, then close the connection."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it was closed, by us or the other side."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio."""
        return self._transport.get_extra_info(name, default)
