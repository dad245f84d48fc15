"""What surrounds a call: one at a time for each volume, failures, logs, stopping."""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tonnage.base.errors import PreconditionError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server import server
from tonnage.csi.server.http2 import ServerConnection
from tonnage.storage.pools.base.contract import PoolVolume, VolumeRequest
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30
MOUNT = [VolumeCapability()]

Rejected = Callable[..., Awaitable[CsiError]]


class Slow(FakePool):
    """create() waits until it is let go; `started` tells that it waits."""

    def __init__(self) -> None:
        super().__init__("default", 100 * GIB)
        self.started, self.let_go = asyncio.Event(), asyncio.Event()

    async def create(self, request: VolumeRequest) -> PoolVolume:
        if request.name == "slow":
            self.started.set()
            await self.let_go.wait()
        if request.name == "broken":
            raise ZeroDivisionError("in the pool")
        return await super().create(request)


@pytest.fixture
def slow(folder: Path) -> DriverEndpoint:
    """A driver over a slow pool, not yet started."""
    return DriverEndpoint(Driver("node-1", {"default": Slow()}, folder / "state"), folder / "csi.sock")


def pool_of(endpoint: DriverEndpoint) -> Slow:
    """Its pool."""
    pool = endpoint.driver.pools["default"]
    assert isinstance(pool, Slow)
    return pool


async def test_a_second_call_for_the_same_volume_is_aborted(slow: DriverEndpoint, rejected: Rejected) -> None:
    async with slow, CsiClient(slow.socket) as client:
        first = asyncio.ensure_future(client.create_volume("slow", GIB, MOUNT))
        await pool_of(slow).started.wait()
        again = await rejected(
            client.create_volume("slow", GIB, MOUNT), Code.ABORTED, "operation pending for volume slow", "CreateVolume"
        )
        assert not again.final
        await rejected(client.delete_volume("default/slow"), Code.ABORTED, "pending")
        await client.create_volume("other", GIB, MOUNT)
        assert (await client.get_capacity()).available == 99 * GIB, "calls that change no volume go on"
        pool_of(slow).let_go.set()
        assert await client.create_volume("slow", GIB, MOUNT) == await first


async def test_a_call_goes_on_when_its_caller_gives_up(slow: DriverEndpoint, rejected: Rejected) -> None:
    async with slow, CsiClient(slow.socket) as client:
        gone = client.create_volume("slow", GIB, MOUNT, timeout=0.05)
        assert not (await rejected(gone, Code.DEADLINE_EXCEEDED)).final
        await rejected(client.create_volume("slow", GIB, MOUNT), Code.ABORTED, "pending")
        pool_of(slow).let_go.set()
        assert (await client.create_volume("slow", GIB, MOUNT)).id == "default/slow"


async def test_a_fault_of_the_program_is_told_logged_and_survived(
    slow: DriverEndpoint, rejected: Rejected, caplog: pytest.LogCaptureFixture
) -> None:
    async with slow, CsiClient(slow.socket) as client:
        await rejected(client.create_volume("broken", GIB, MOUNT), Code.INTERNAL, "ZeroDivisionError: in the pool")
        assert any(record.exc_info for record in caplog.records if "call failed" in record.message)
        assert await client.probe()


async def test_secrets_are_never_logged(
    slow: DriverEndpoint, rejected: Rejected, caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    flags = [VolumeCapability(mount_flags=["password-hunter2"])]
    tokens = {"csi.storage.k8s.io/serviceAccount.tokens": "hunter2"}
    async with slow, CsiClient(slow.socket) as client:
        await client.create_volume("a", GIB, MOUNT, secrets={"key": "hunter2"})
        await client.delete_volume("default/a", secrets={"key": "hunter2"})
        await rejected(client.create_volume("", GIB, MOUNT, secrets={"key": "hunter2"}), Code.INVALID_ARGUMENT)
        await rejected(client.stage("default/b", folder, MOUNT[0], context=tokens), Code.NOT_FOUND)
        with pytest.raises(CsiError):
            await client.create_volume("c", GIB, flags)
    told = [record.getMessage() for record in caplog.records if record.name == "tonnage.csi.server.dispatch"]
    assert any("method=CreateVolume code=OK" in line and "default" not in line for line in told)
    assert any("default/b" in line for line in told), "the rest of a request is told"
    requests = [line.split("request=", 1)[1] for line in told if "request=" in line]
    assert not any("hunter2" in line for line in requests)


async def test_stopping_lets_a_call_end_and_hangs_up(slow: DriverEndpoint, rejected: Rejected) -> None:
    await slow.start()
    await slow.start()
    assert stat.S_IMODE(slow.socket.lstat().st_mode) == 0o600
    client = CsiClient(slow.socket)
    call = asyncio.ensure_future(client.create_volume("slow", GIB, MOUNT))
    await pool_of(slow).started.wait()
    asyncio.get_running_loop().call_later(0.05, pool_of(slow).let_go.set)
    await slow.stop()
    assert (await call).id == "default/slow"
    assert not slow.socket.exists()
    await rejected(client.probe(), Code.UNAVAILABLE, "cannot reach the driver")
    await slow.stop()
    client.close()


async def test_stopping_does_not_wait_for_a_call_that_hangs(slow: DriverEndpoint, rejected: Rejected) -> None:
    await slow.start()
    client = CsiClient(slow.socket)
    call = asyncio.ensure_future(client.create_volume("slow", GIB, MOUNT))
    await pool_of(slow).started.wait()
    async with asyncio.timeout(60):
        await slow.stop()
    assert not (await rejected(call, Code.UNAVAILABLE)).final
    client.close()


@pytest.mark.parametrize("turns", range(6))
async def test_who_connects_while_it_stops_is_hung_up_on(slow: DriverEndpoint, turns: int) -> None:
    """asyncio takes some turns from the connection to its protocol: none of them leaves it open."""
    await slow.start()
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(slow.socket))
        for _ in range(turns):
            await asyncio.sleep(0)
        await slow.stop()
        caller.setblocking(False)
        async with asyncio.timeout(60):
            while await _received(caller):
                pass


async def test_a_fault_of_one_connection_leaves_nobody_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = server.CsiServer(folder / "alone.sock", [])
    served.pause = 0.0
    made, faults = served._connection, iter([ZeroDivisionError("in a connection")])

    def connection() -> ServerConnection:
        for fault in faults:
            raise fault
        return made()

    monkeypatch.setattr(served, "_connection", connection)
    async with served:
        for _ in range(2):
            caller = socket.socket(socket.AF_UNIX)
            caller.connect(str(served.path))
            caller.setblocking(False)
            async with asyncio.timeout(60):
                first = await _received(caller)
            caller.close()
    assert first, "the second caller is served"
    assert "in a connection" in caplog.text


async def _received(caller: socket.socket) -> bytes:
    """What comes next; b"" when it was hung up on, also before it was accepted."""
    try:
        return await asyncio.get_running_loop().sock_recv(caller, 4096)
    except ConnectionResetError:
        return b""


async def test_two_processes_cannot_serve_one_socket(slow: DriverEndpoint) -> None:
    other = DriverEndpoint(slow.driver, slow.socket)
    async with slow, CsiClient(slow.socket) as client:
        with pytest.raises(PreconditionError, match="another process serves"):
            await other.start()
        await other.stop()
        assert await client.probe()


async def test_garbage_on_the_socket_harms_nobody(slow: DriverEndpoint) -> None:
    async with slow, CsiClient(slow.socket) as client:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
            reader, writer = await asyncio.open_unix_connection(str(slow.socket))
            writer.write(garbage)
            await writer.drain()
            writer.close()
            await reader.read()
        assert await client.probe()
