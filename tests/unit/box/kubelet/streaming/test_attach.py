"""Output of a container for a slow client. Real containers: test_pod_streams."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tests.unit.box.kubelet.streaming.clients import FakeClient

from tonnage_box.kubelet.streaming.attach import AttachedOutput


class PausedPump:
    """Whether the container's output is read."""

    def __init__(self) -> None:
        self.is_paused = False

    def pause(self, tap: object) -> None:
        self.is_paused = True

    def resume(self, tap: object) -> None:
        self.is_paused = False


async def test_the_container_waits_for_a_slow_client() -> None:
    pump, client = PausedPump(), FakeClient()
    output = AttachedOutput(cast(Any, pump))
    parts = 0
    while not pump.is_paused:
        output.feed("stdout" if parts % 2 else "stderr", b"x" * 10_000)
        parts += 1
    output.end()
    await asyncio.wait_for(output.send(client), 60)
    assert not pump.is_paused
    assert sum(map(len, client.output.values())) == parts * 10_000
