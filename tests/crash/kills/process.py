"""A driver process of the test: opens its pool, serves one call at its socket, tells what it answered."""

from __future__ import annotations

import asyncio
import gc
import json
import mmap
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from grpclib.client import Channel
from grpclib.exceptions import GRPCError
from tests.crash.kills.calls import Call
from tests.crash.kills.kinds import Kind
from tests.crash.kills.machine import Machine
from tests.crash.kills.tracer import Ended, Step, Tracer

from tonnage.csi._proto import csi_grpc, inventory_grpc
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code
from tonnage.host import btrfs
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fs import ext4_template
from tonnage.storage.pools.fs.ext4_template import Template, Templates
from tonnage.storage.pools.image import file

LONGEST = 120
"""Seconds that a driver process may live."""
_TICK = 0.002  # seconds between two looks at an erasure, which no call waits for


_LEFT = Templates(worth=1)
"""The templates that the volumes before have left."""


@dataclass(frozen=True)
class Answer:
    """What a driver process said. code: of the answer; body: of it when it was OK. opened: whether the pool was.
    formatted: the volumes that had a file system when it was opened. formats: how often one was made after that."""

    killed: bool = False
    code: Code = Code.OK
    body: bytes = b""
    why: str = ""
    formatted: tuple[str, ...] = ()
    formats: int = 0


@dataclass
class Processes:
    """Starts driver processes of one kind. warm: they begin with the templates of file systems that the volumes before
    have left. forgetful: they never flush anything."""

    kind: Kind
    machine: Machine
    tracer: Tracer = field(default_factory=Tracer)
    warm: bool = False
    forgetful: bool = False

    def __post_init__(self) -> None:
        self._opened = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def is_open(self) -> bool:
        """Whether the process that runs has opened its pool."""
        return bool(self._opened[0])

    def warm_up(self, call: Call) -> None:
        """Serve a call in this very process, so that its copies have everything loaded."""
        file._templates = _LEFT
        asyncio.run(self._serve(call, {}, times=1))
        gc.collect()
        gc.freeze()

    def ask(self, call: Call, *, times: int = 2) -> Answer:
        """Serve it in a process that nobody disturbs."""
        answer, _ = self._run(call, times=times, traced=False, at_step=lambda _step: False)
        return answer

    def trace(self, call: Call, at_step: Callable[[Step], bool]) -> tuple[Answer, Ended]:
        """Serve it in a process that stops at each step."""
        return self._run(call, times=1, traced=True, at_step=at_step)

    def _run(self, call: Call, *, times: int, traced: bool, at_step: Callable[[Step], bool]) -> tuple[Answer, Ended]:
        told, ended = self.run(
            lambda told: self._serve(call, told, times=times), traced=traced, at_step=at_step, name=call.name
        )
        return (Answer(killed=True) if told is None else _read(told)), ended

    def run(
        self,
        body: Callable[[dict[str, Any]], Coroutine[Any, Any, None]],
        *,
        name: str,
        traced: bool = False,
        at_step: Callable[[Step], bool] = lambda _step: False,
    ) -> tuple[dict[str, Any] | None, Ended]:
        """Run a coroutine in a process of its own: what it told, with its `failure` if it raised; None when killed."""
        self._opened[0] = 0
        reading, writing = os.pipe()

        def child() -> None:
            told: dict[str, Any] = {}
            try:
                signal.alarm(LONGEST)
                self._count_formats(told)
                if self.forgetful:
                    for module, flush in ((os, "fsync"), (btrfs, "commit")):
                        setattr(module, flush, lambda _fd: None)
                asyncio.run(body(told))
            except BaseException as failure:
                told["failure"] = f"{type(failure).__name__}: {failure}"
            finally:
                os.write(writing, json.dumps(told).encode())  # less than a pipe holds
                os._exit(0)

        try:
            ended = self.tracer.run(child, traced=traced, at_step=at_step)
            os.set_blocking(reading, False)
            text = b"" if os.WIFSIGNALED(ended.status) else os.read(reading, 65536)
        finally:
            os.close(reading)
            os.close(writing)
        if os.WIFSIGNALED(ended.status):
            number = os.WTERMSIG(ended.status)
            assert number == signal.SIGKILL, f"{name}: not answered in {LONGEST} s (signal {number})"
            return None, ended
        assert text, f"{name}: ended with {ended.status}"
        return json.loads(text), ended

    def pool(self) -> Pool:
        """The pool, not yet open."""
        return make(parse(self.kind.describe(self.machine.home)), disks=Disks())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[Pool, Channel]]:
        """An open pool, and a client of the driver over it."""
        pool, socket = self.pool(), self.machine.folder / "csi.sock"
        endpoint = DriverEndpoint(Driver("node-1", {"p": pool}, self.machine.folder / "state"), socket)
        await pool.open()
        self._opened[0] = 1
        await endpoint.start()
        async with Channel(path=str(endpoint.socket)) as channel:
            yield pool, channel
            while await pool.erasing():
                await asyncio.sleep(_TICK)
        await endpoint.stop()
        await pool.close()

    async def _serve(self, call: Call, told: dict[str, Any], *, times: int) -> None:
        async with self.serving() as (pool, channel):
            told["formatted"] = [v.name for v in await pool.list() if v.state.value == "formatted"]
            stubs = inventory_grpc if call.service == "Trash" else csi_grpc
            method = getattr(getattr(stubs, f"{call.service}Stub")(channel), call.method)
            answers = [await _answer(method, call) for _ in range(times)]
            assert len(set(answers)) == 1, f"asked twice, answered differently: {answers}"
            told["code"], told["body"], told["why"] = answers[0]

    def _count_formats(self, told: dict[str, Any]) -> None:
        """Count runs of mkfs and uses of what one in memory has left; the btrfs that a pool makes of itself is no
        volume's."""
        told["formats"] = 0
        start, apply, copy = subprocess.Popen.__init__, Template.apply, ext4_template.copy

        def counting(process: Any, command: Any, *rest: Any, **more: Any) -> None:
            in_memory = any(os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:") for fd in more.get("pass_fds", ()))
            told["formats"] += os.path.basename(command[0]).startswith("mkfs.") and self.is_open and not in_memory
            start(process, command, *rest, **more)

        def applying(template: Template, *rest: Any) -> None:
            told["formats"] += 1
            apply(template, *rest)

        def copying(source: int, target: int) -> None:
            told["formats"] += 1
            copy(source, target)

        replaced: list[tuple[object, str, object]] = [
            (subprocess.Popen, "__init__", counting),
            (Template, "apply", applying),
            (ext4_template, "copy", copying),
            (file, "_templates", _LEFT if self.warm else Templates()),
        ]
        for kind, name, function in replaced:
            setattr(kind, name, function)


async def _answer(method: Any, call: Call) -> tuple[int, str, str]:
    try:
        async with method.open() as stream:
            await stream.send_message(call.request, end=True)
            answer = await stream.recv_message()
    except GRPCError as failure:
        return failure.status.value, "", str(failure.message)
    return 0, answer.SerializeToString(deterministic=True).hex(), ""


def _read(told: Mapping[str, Any]) -> Answer:
    if "failure" in told:
        return Answer(code=Code.UNKNOWN, why=told["failure"])
    return Answer(
        code=Code(told["code"]),
        body=bytes.fromhex(told["body"]),
        why=told["why"],
        formatted=tuple(told["formatted"]),
        formats=told["formats"],
    )
