"""Kubelet registration of external drivers, as node-driver-registrar.

A driver may start later than its agent. A driver with a registrar of its own keeps that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import Clock
from tonnage.csi.client.client import CsiClient
from tonnage.csi.driver.registration import Registration
from tonnage.errors import Precondition, TonnageError

log = logging.getLogger(__name__)


class Registrar:
    """Registrations. endpoints: CSI sockets, at the kubelet's paths."""

    def __init__(self, endpoints: Sequence[Path], registry: Path, *, clock: Clock) -> None:
        self._endpoints, self._registry, self._clock = endpoints, registry, clock
        self._made: list[Registration] = []

    async def run(self) -> None:
        """Register each driver when it answers; return when all are registered."""
        async with asyncio.TaskGroup() as tasks:
            for endpoint in self._endpoints:
                tasks.create_task(self._register(endpoint))

    async def stop(self) -> None:
        """Remove the registrations; pods' volumes stay mounted. Idempotent."""
        while self._made:
            await self._made.pop().stop()

    async def _register(self, endpoint: Path) -> None:
        backoff = Backoff(initial=0.2, maximum=10.0)
        async with CsiClient(endpoint) as client:
            while True:
                try:
                    name = (await client.plugin_info()).name
                    made = Registration(name, endpoint, self._registry)
                    await made.start()
                    break
                except Precondition as reason:
                    log.info("driver has a registrar of its own socket=%s found=%s", endpoint, reason)
                    return
                except TonnageError as failure:
                    pause = backoff.next("")
                    log.info("driver not registered yet socket=%s retry=%.1fs error=%s", endpoint, pause, failure)
                    await self._clock.sleep(pause)
        self._made.append(made)
        log.info("driver registered with the kubelet driver=%s socket=%s", name, endpoint)
