"""Copies between descriptors and a client."""

from __future__ import annotations

import asyncio
import os
import struct
import termios
from fcntl import ioctl

from tests.unit.box.kubelet.streaming.clients import FakeClient

from tonnage_box.kubelet.streaming import stream_copy


def pipe() -> tuple[int, int]:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    return ours, theirs


async def test_output_to_its_end() -> None:
    ours, theirs = pipe()
    client = FakeClient()
    copying = asyncio.ensure_future(stream_copy.copy_output(ours, 1, client, asyncio.Event()))
    os.write(theirs, b"one")
    await client.until(b"one")
    os.write(theirs, b"two")
    os.close(theirs)
    await asyncio.wait_for(copying, 60)
    assert client.output == {1: b"onetwo"}
    os.close(ours)


async def test_output_of_a_process_that_has_ended_while_another_holds_the_pipe() -> None:
    ours, theirs = pipe()
    client, ended = FakeClient(), asyncio.Event()
    copying = asyncio.ensure_future(stream_copy.copy_output(ours, 1, client, ended))
    await asyncio.sleep(0)
    os.write(theirs, b"last")
    ended.set()
    await asyncio.wait_for(copying, 60)
    assert client.output == {1: b"last"}
    os.close(ours)
    os.close(theirs)


async def test_input_waits_for_a_slow_reader() -> None:
    ours, theirs = pipe()
    writing = asyncio.ensure_future(stream_copy.write_all(theirs, data := b"x" * (1 << 20)))
    found = b""
    while len(found) < len(data):
        found += stream_copy.read_part(ours) or b""
        await asyncio.sleep(0)
    await asyncio.wait_for(writing, 60)
    os.close(ours)
    os.close(theirs)


def test_sizes_that_cannot_be_are_cut() -> None:
    ours, theirs = os.openpty()
    stream_copy.resize(ours, (1 << 40, -5))
    rows, columns, _, _ = struct.unpack("HHHH", ioctl(theirs, termios.TIOCGWINSZ, b"\0" * 8))
    assert (columns, rows) == (0xFFFF, 0)
    os.close(theirs)
    assert stream_copy.read_part(ours) == b""
    os.close(ours)
