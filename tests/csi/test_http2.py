"""What callers say that is not quite gRPC."""

from __future__ import annotations

import asyncio
import logging

import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError

from tonnage.csi.client import CsiClient
from tonnage.csi.endpoint import DriverEndpoint
from tonnage.csi.errors import Code

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty settings
PING = b"\0\0\10\6\0\0\0\0\0" + b"tonnage!"
PONG = b"\0\0\10\6\1\0\0\0\0" + b"tonnage!"


class _Raw(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: object, message_type: object) -> bytes:
        assert isinstance(message, bytes)
        return message

    def decode(self, data: bytes, message_type: object) -> bytes:
        return data


async def test_frames_of_an_unknown_kind_are_ignored(endpoint: DriverEndpoint) -> None:
    reader, writer = await asyncio.open_unix_connection(str(endpoint.socket))
    writer.write(PREFACE + b"\0\0\3\xfa\0\0\0\0\0abc" + PING)
    await reader.readuntil(PONG)
    writer.close()
    await writer.wait_closed()


async def test_who_does_not_speak_http2_loses_the_connection_only(
    endpoint: DriverEndpoint, client: CsiClient, caplog: pytest.LogCaptureFixture
) -> None:
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 500, PREFACE + b"\0" * 500):
        reader, writer = await asyncio.open_unix_connection(str(endpoint.socket))
        writer.write(said)
        await reader.read()
        writer.close()
        await writer.wait_closed()
    assert await client.probe()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_request_that_cannot_be_read_is_answered_as_grpc_does(
    endpoint: DriverEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    async with Channel(path=str(endpoint.socket), codec=_Raw()) as channel:
        method: UnaryUnaryMethod[bytes, bytes] = UnaryUnaryMethod(channel, "/csi.v1.Identity/Probe", bytes, bytes)
        with pytest.raises(GRPCError) as raised:
            await method(b"\xff\xff", timeout=60)
    assert raised.value.status.value == Code.INTERNAL
    assert "Probe: the request cannot be read" in (raised.value.message or "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
