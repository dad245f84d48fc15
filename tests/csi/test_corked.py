"""What is written in one turn of the loop goes out at once, in order, and is not lost when the connection is closed."""

from __future__ import annotations

import asyncio
from typing import cast

from tonnage.csi.corked import Corked


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
    for data in (b"a", b"", b"b"):
        corked.write(data)
    assert below.sent == []
    await asyncio.sleep(0)
    assert below.sent == [b"ab"]
    corked.write(b"c")
    await asyncio.sleep(0)
    assert below.sent == [b"ab", b"c"]
    assert (corked.get_extra_info("peername"), corked.get_extra_info("none", 1)) == ("me", 1)


async def test_closing_sends_first() -> None:
    below = _Transport()
    corked = Corked(cast(asyncio.Transport, below))
    corked.write(b"last")
    corked.close()
    assert (below.sent, below.closed, corked.is_closing()) == ([b"last"], True, True)
    corked.write(b"too late")
    await asyncio.sleep(0)
    assert below.sent == [b"last"]
