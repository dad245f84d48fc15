"""What is written in one turn of the loop goes out at once, in order, and is not lost when the connection is closed."""

from __future__ import annotations

import asyncio
from typing import cast

from tonnage.csi.server.coalesce import Corked

HEAD = b"\0\0\1\1\4\0\0\0\1h"
BODY = b"\0\0\1\0\0\0\0\0\1b"
END = b"\0\0\1\1\5\0\0\0\1e"
PING = b"\0\0\10\6\1\0\0\0\0tonnage!"


class _Transport:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": "me"}.get(name, default)


async def test_one_write_a_turn() -> None:
    below = _Transport()
    corked = Corked(cast(asyncio.Transport, below))
    for data in (HEAD, b"", BODY):
        corked.write(data)
    assert below.sent == []
    await asyncio.sleep(0)
    assert below.sent == [HEAD + BODY]
    corked.write(BODY)
    await asyncio.sleep(0)
    assert below.sent == [HEAD + BODY, BODY]
    assert (corked.get_extra_info("peername"), corked.get_extra_info("none", 1)) == ("me", 1)


async def test_the_end_of_an_answer_goes_at_once_with_all_before_it() -> None:
    below = _Transport()
    corked = Corked(cast(asyncio.Transport, below))
    for data in (HEAD, BODY, END):
        corked.write(data)
    assert below.sent == [HEAD + BODY + END]
    corked.write(PING)
    assert len(below.sent) == 1
    await asyncio.sleep(0)
    assert below.sent[1:] == [PING]


async def test_closing_sends_first() -> None:
    below = _Transport()
    corked = Corked(cast(asyncio.Transport, below))
    corked.write(BODY)
    corked.close()
    assert (below.sent, below.closed, corked.is_closing()) == ([BODY], True, True)
    corked.write(HEAD)
    await asyncio.sleep(0)
    assert below.sent == [BODY]
