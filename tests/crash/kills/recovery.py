"""What a driver finds when a machine comes up again after a power cut, and whether it can go on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from grpclib.client import Channel
from tests.crash.kills.calls import POD, Call, Calls
from tests.crash.kills.kinds import Kind
from tests.crash.kills.machine import Machine
from tests.crash.kills.process import Processes

from tonnage.csi._proto import csi_grpc
from tonnage.storage.pools.core.pool import Pool

_TICK = 0.002


Contents = Mapping[str, Sequence[bytes]]
"""What a volume or snapshot may hold, any of it."""


@dataclass(frozen=True)
class Expected:
    """there: volumes and snapshots that must be there; maybe: that may be. contents: as the pods made it durable.
    formatted: volumes that had a file system. under_way: the call that had no answer yet."""

    there: Set[str]
    maybe: Set[str]
    contents: Contents
    formatted: Set[str]
    under_way: Call | None


class Recovery:
    """Checks a pool that came back."""

    def __init__(self, kind: Kind, machine: Machine) -> None:
        self._kind = kind
        self._machine = machine
        self._calls = Calls(kind, machine.folder)
        self._processes = Processes(kind, machine, warm=True)

    def check(self, expected: Expected) -> None:
        """Raises AssertionError when something is missing, half there, or cannot be used or removed."""
        told, _ = self._processes.run(lambda told: self._check(expected, told), name="recovery")
        assert told is not None
        assert "failure" not in told, told["failure"]
        self._check_empty()

    async def _check(self, expected: Expected, told: dict[str, Any]) -> None:
        async with self._processes.serving() as (pool, channel):
            volumes = {volume.name for volume in await pool.list()}
            snapshots = {snapshot.name for snapshot in await pool.snapshots.list()}
            there = volumes | snapshots
            assert expected.there <= there, f"what was answered is gone: {expected.there - there}"
            assert there <= expected.there | expected.maybe, f"here again, or half: {there - expected.there}"
            for name in sorted(volumes - {POD}):
                before = told["formats"]
                await self._check_content(channel, name, expected.contents.get(name, ()))
                assert told["formats"] == before or name not in expected.formatted, f"{name} was formatted again"
            for name in sorted(snapshots):
                await self._ask(channel, self._calls.create("x", size=self._kind.size + 8, snapshot=name))
                await self._check_content(channel, "x", expected.contents.get(name, ()))
                await self._ask(channel, self._calls.delete("x"))
            if expected.under_way is not None and expected.under_way.service == "Controller":
                await self._ask(channel, expected.under_way)
            await self._remove_all(pool, channel)

    async def _check_content(self, channel: Channel, name: str, contents: Sequence[bytes]) -> None:
        await self._ask(channel, self._calls.stage(name))
        if contents:
            place = self._calls.staging(name) / ("device" if self._kind.block else "data")
            assert _head(place, len(contents[0])) in contents, f"the data of {name} are lost"
        await self._ask(channel, self._calls.unstage(name))

    async def _remove_all(self, pool: Pool, channel: Channel) -> None:
        for volume in await pool.list():
            await self._ask(channel, self._calls.gone() if volume.name == POD else self._calls.delete(volume.name))
        for snapshot in await pool.snapshots.list():
            await self._ask(channel, self._calls.forget(snapshot.name))
        while await pool.erasing():
            await asyncio.sleep(_TICK)
        assert (await pool.capacity()).used == 0, "something still counts"

    async def _ask(self, channel: Channel, call: Call) -> Message:
        method = getattr(getattr(csi_grpc, f"{call.service}Stub")(channel), call.method)
        answer: Message = await method(call.request)
        return answer

    def _check_empty(self) -> None:
        left = set()
        for folder in (self._machine.home, self._machine.home / ".snapshots"):
            if folder.exists():
                left |= {str(path.relative_to(self._machine.home)) for path in folder.iterdir()}
        left -= {".tonnage-pool", ".snapshots", ".snapshots/.tonnage-pool", ".erasing", ".erasing/.tonnage-pool"}
        assert not left, f"left in the empty pool: {sorted(left)}"


def _head(path: Path, size: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)
