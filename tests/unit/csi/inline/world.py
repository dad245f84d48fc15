"""An inline driver over a real tmpfs, with a source that a test steers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tonnage.csi.inline.base import AttributeRule, Files, Filled, FillRequest, InlinePod, SourceNeeds
from tonnage.csi.inline.driver import InlineDriver
from tonnage.csi.inline.memory import MemoryStore
from tonnage.csi.inline.volume import InlineRequest
from tonnage.host import mount
from tonnage.host.atomic_writer import Content

POD = InlinePod("default", "web", "uid-1", tokens={"": "token-text"}, secrets={"s": "secret-text"})


@dataclass
class Steered:
    """A source whose next results a test sets."""

    result: Filled | Exception = field(default_factory=lambda: Files({"a": Content(b"one")}))
    attributes: Mapping[str, AttributeRule] = field(
        default_factory=lambda: {"colour": AttributeRule(), "password": AttributeRule(secret=True)}
    )
    needs: SourceNeeds = field(default_factory=SourceNeeds)
    asked: list[FillRequest] = field(default_factory=list)

    async def fill(self, request: FillRequest) -> Filled:
        """Return or raise what the test wants."""
        self.asked.append(request)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class World:
    """A driver, its folder and its targets. restart() is what a kill and a new process are to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.source = folder, Steered()
        self.events: list[tuple[str, str]] = []
        self.options: dict[str, Any] = {}
        self.driver = self.made()

    def made(self) -> InlineDriver:
        """A driver over what is there."""
        store = MemoryStore(self.folder / "mem", 2 << 20)

        def emit(_pod: InlinePod, _type: str, reason: str, message: str) -> None:
            self.events.append((reason, message))

        return InlineDriver("d.test", self.source, store, events=emit, **self.options)

    async def restart(self) -> None:
        await self.driver.stop()
        self.driver = self.made()
        await self.driver.start()

    def target(self, name: str = "t") -> Path:
        return self.folder / "pods" / name

    def request(self, handle: str = "csi-1", name: str = "t", **more: Any) -> InlineRequest:
        return InlineRequest(handle, str(self.target(name)), more.pop("pod", POD), more.pop("attributes", {}), **more)

    def left(self) -> list[str]:
        """Mounts and records that are there."""
        below = str(self.folder)
        mounts = [one.target for one in mount.mounts() if one.target.startswith(below)]
        records = os.listdir(self.folder / "mem")
        return [one for one in mounts if one != f"{below}/mem"] + records


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


Wait = Callable[[Callable[[], bool]], Awaitable[None]]
