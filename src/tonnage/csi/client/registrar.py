"""Kubelet registration of external drivers, as node-driver-registrar.

A driver may start later than its agent. A driver with a registrar of its own keeps that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock
from tonnage.base.errors import InvalidError, PreconditionError, TonnageError, UnavailableError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.driver.registration import Registration
from tonnage.kubernetes.api import names

log = logging.getLogger(__name__)
_PATIENCE = 5.0
"""Seconds after which a driver that is not ready is reported, once: its socket may be named wrong."""


class Registrar:
    """Registers the drivers behind CSI sockets with a node's kubelet.

    endpoints: the sockets, at the kubelet's paths. registry: the directory of registration sockets. taken: names that
    other drivers of the node have.
    """

    def __init__(self, endpoints: Sequence[Path], registry: Path, *, clock: Clock, taken: Sequence[str] = ()) -> None:
        self._endpoints, self._registry, self._taken, self._clock = endpoints, registry, taken, clock
        self._made: list[Registration] = []

    async def run(self) -> None:
        """Register each driver when it is ready, retried without limit. Returns when none is left.

        A driver that can never be registered is logged.
        """
        async with asyncio.TaskGroup() as tasks:
            for endpoint in self._endpoints:
                tasks.create_task(self._register(endpoint))

    async def stop(self) -> None:
        """Remove the registrations; drivers run on, and pods' volumes stay mounted. Idempotent."""
        while self._made:
            await self._made.pop().stop()

    async def _register(self, endpoint: Path) -> None:
        backoff, waited = Backoff(initial=0.05, maximum=10.0), 0.0
        async with CsiClient(endpoint) as client:
            while True:
                try:
                    self._made.append(await self._try(client))
                except PreconditionError as reason:
                    log.info("driver has a registrar of its own socket=%s found=%s", endpoint, reason)
                except InvalidError as failure:
                    log.error("driver not registered socket=%s error=%s", endpoint, failure)
                except TonnageError as failure:
                    pause = backoff.next("")
                    log.info("driver not registered yet socket=%s retry=%.2fs error=%s", endpoint, pause, failure)
                    if waited < _PATIENCE <= waited + pause:
                        log.warning(
                            "driver not registered yet: start it at this socket socket=%s error=%s", endpoint, failure
                        )
                    waited += pause
                    await self._clock.sleep(pause)
                    continue
                else:
                    log.info("driver registered with the kubelet driver=%s socket=%s", client.driver, endpoint)
                return

    async def _try(self, client: CsiClient) -> Registration:
        """Register a ready driver. Raises: CsiError, UnavailableError, InvalidError, and as Registration.start()."""
        if not await client.probe():
            raise UnavailableError("it is not ready")
        name = names.check_driver_name((await client.plugin_info()).name)  # it becomes part of a path
        if name in self._taken:
            raise InvalidError(f"another driver of this node has the name {name}: give this one another name")
        registration = Registration(name, client.socket, self._registry)
        await registration.start()
        return registration
