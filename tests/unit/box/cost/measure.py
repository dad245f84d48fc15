"""What the largest values of a field cost."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as default
from typing import Any

from tests.unit.box.cost.largest import KindField
from tests.unit.box.cost.turns import CallCounter, Turns
from tests.unit.box.cost.world import World

from tonnage.kubernetes.client.transport import MERGE_PATCH
from tonnage_box.apiserver.request import negotiate

MOST_CALLS = 1_000_000
"""Calls and returns in one turn of the loop: about 100 ms of plain Python."""
MOST_APART = 10_000_000
"""Calls and returns of one large request in the thread of large requests, which others of them wait for."""
_FEWER = (30_000, 10_000, 4096, 1024, 1000, 512, 500, 253, 101, 100, 99, 63, 32, 15, 8, 4, 1)
"""Sizes that are tried where the largest is not admitted: those of the bounds among them."""
_TRIES = 4


@dataclass
class Cost:
    """Of one field. admitted: the largest size that was admitted, 0 for none; steps: calls of the longest turn, by what
    was done; apart: the most calls of one request in the thread of large requests, with its milliseconds of processor."""

    field: KindField
    admitted: int = 0
    rejection: str = ""
    milliseconds: float = 0.0
    steps: dict[str, tuple[int, float]] = default(default_factory=dict)
    apart: int = 0

    @property
    def worst(self) -> tuple[int, float, str]:
        """Calls and milliseconds of the longest turn, and what was done."""
        return max(((calls, took, step) for step, (calls, took) in self.steps.items()), default=(0, 0.0, ""))

    def __str__(self) -> str:
        calls, took, step = self.worst
        return (
            f"{calls:>9} calls {took:7.0f} ms {step:7} {self.apart:>9} {self.milliseconds:5.0f} ms apart  "
            f"{self.field.name} x {self.admitted} of {self.field.most} {self.rejection}"
        )


class Meter:
    """Measures fields in a world."""

    def __init__(self, world: World, turns: Turns) -> None:
        self._world, self._turns, self._apart = world, turns, CallCounter()
        self._most_apart = (0, 0.0)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count in the loop, and in the thread of large requests."""
        plain = negotiate._uncollected

        def uncollected(function: Any, *arguments: Any) -> Any:
            before, start = self._apart.count, time.thread_time()
            self._apart.start()
            try:
                return plain(function, *arguments)
            finally:
                self._apart.stop()
                took = (time.thread_time() - start) * 1000
                self._most_apart = max(self._most_apart, (self._apart.count - before, took))

        negotiate._uncollected = uncollected
        try:
            with self._turns.counted():
                yield
        finally:
            negotiate._uncollected = plain

    async def cost(self, field: KindField) -> Cost:
        """Ask for the largest value, store the largest that is admitted, let others meet it, and delete it."""
        cost, self._most_apart = Cost(field), (0, 0.0)
        self._turns.take()
        body = await self._admitted(cost)
        if body is not None and "create" in field.resource.verbs and len(field.resource.verbs) > 1:
            await self._life(cost, body)
        cost.apart, cost.milliseconds = self._most_apart
        return cost

    async def _admitted(self, cost: Cost) -> bytes | None:
        """The body with the largest value that is admitted, None if none is."""
        size, tries = cost.field.most, 0
        while True:
            with self._turns.paused():
                body = json.dumps(cost.field.largest(size), separators=(",", ":")).encode()
            status, text = await self._send(cost, body, dry=True)
            if status in (200, 201):
                cost.admitted = size
                return body
            cost.rejection = cost.rejection or f"{status} {text[:160]}"
            tries += 1
            if status in (413, 400) and "more than" in text and tries < _TRIES:
                size = size * 2 // 3
                continue
            size = next((fewer for fewer in _FEWER if fewer < size), 0)
            if not size:
                return None

    async def _send(self, cost: Cost, body: bytes, *, dry: bool) -> tuple[int, str]:
        field, world = cost.field, self._world
        query = {"dryRun": "All"} if dry and len(field.resource.verbs) > 1 else {}
        if field.subresource:
            if dry:
                small = json.dumps({"metadata": {"name": "x"}} | field.largest(0) | {"status": {}})
                await world.ask("POST", collection(field), small.encode())
            answer = await world.ask("PATCH", f"{path(field)}/status", body, query, MERGE_PATCH)
            if dry:
                await self._freed(cost)
        else:
            answer = await world.ask("POST", collection(field), body, query)
        step = "ask" if dry else "create"
        cost.steps[step] = max(cost.steps.get(step, (0, 0.0)), self._turns.take())
        return answer.status, "" if answer.status < 400 else json.loads(answer.body)["message"]

    async def _freed(self, cost: Cost) -> None:
        """The object that a status was for is removed, uncounted."""
        kept = self._turns.take()
        await self._world.remove(path(cost.field))
        self._turns.take()
        self._turns.calls, self._turns.milliseconds = kept

    async def _life(self, cost: Cost, body: bytes) -> None:
        if cost.field.subresource:
            small = json.dumps(cost.field.largest(0) | {"status": {}})
            await self._world.ask("POST", collection(cost.field), small.encode())
        status, text = await self._send(cost, body, dry=False)
        assert status in (200, 201), (cost.field.name, text)
        await self._step(cost, "settle", self._world.settle())
        twin = path(cost.field, "y")
        has_twin = not cost.field.subresource and await self._twin(cost)
        await self._step(cost, "stir", self._world.stir())
        await self._step(cost, "remove", self._world.remove(path(cost.field)))
        if has_twin:
            await self._step(cost, "remove", self._world.remove(twin))

    async def _twin(self, cost: Cost) -> bool:
        """Whether another object with the same value could be made, which the first one meets."""
        with self._turns.paused():
            body = json.dumps(cost.field.largest(cost.admitted, "y")).encode()
        answer = await self._world.ask("POST", collection(cost.field), body)
        await self._step(cost, "twin", self._world.settle())
        return answer.status == 201

    async def _step(self, cost: Cost, name: str, work: Awaitable[None]) -> None:
        await work
        cost.steps[name] = max(cost.steps.get(name, (0, 0.0)), self._turns.take())


def collection(field: KindField) -> str:
    """Where the kind's objects are made."""
    return field.resource.kind.path("default")


def path(field: KindField, name: str = "x") -> str:
    """Of the object that is made."""
    return f"{collection(field)}/{field.largest(0, name)['metadata']['name']}"
