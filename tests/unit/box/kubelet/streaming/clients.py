"""A client of exec and attach without a connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tonnage_box.api.remote_command import StreamInput


@dataclass
class FakeClient:
    """Streams whose other side is the test. gone(): it disconnects."""

    output: dict[int, bytes] = field(default_factory=dict)
    _inputs: asyncio.Queue[StreamInput | None] = field(default_factory=asyncio.Queue)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> StreamInput | None:
        return await self._inputs.get()

    async def send(self, channel: int, data: bytes) -> None:
        self.output[channel] = self.output.get(channel, b"") + data
        self._changed.set()

    def type(self, data: bytes) -> None:
        """Send input."""
        self._inputs.put_nowait(StreamInput(data))

    def end(self) -> None:
        """End the input."""
        self._inputs.put_nowait(StreamInput(is_end=True))

    def resize(self, columns: int, rows: int) -> None:
        """Change the terminal's size."""
        self._inputs.put_nowait(StreamInput(size=(columns, rows)))

    def gone(self) -> None:
        """Disconnect."""
        self._inputs.put_nowait(None)

    async def until(self, text: bytes, channel: int = 1) -> None:
        """Wait for output."""
        async with asyncio.timeout(60):
            while text not in self.output.get(channel, b""):
                self._changed.clear()
                await self._changed.wait()
