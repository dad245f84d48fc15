"""CSI drivers whose volumes the controller attaches: each is asked once for its name and capabilities."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock
from tonnage.base.errors import InvalidError, TonnageError, UnavailableError
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.kubernetes.api import names

log = logging.getLogger(__name__)
RETRY_START, RETRY_MAX = 0.05, 10.0


class AttachEndpoint(NamedTuple):
    """Socket of a driver's controller service. node: the one whose volumes it attaches, "" for all."""

    socket: Path
    node: str = ""


@dataclass(frozen=True, eq=False)
class AttachingDriver:
    """A driver that has answered. controller: its capabilities. clients: by node, "" for all nodes."""

    name: str
    controller: frozenset[str]
    has_topology: bool
    clients: dict[str, CsiClient]

    @property
    def finalizer(self) -> str:
        """The finalizer of attachments and attached PVs, as external-attacher names it."""
        return names.attacher_finalizer(self.name)

    def has(self, capability: str) -> bool:
        """Whether the controller service has a capability."""
        return capability in self.controller

    def client(self, node: str) -> CsiClient:
        """The client for a node's volumes: that of any other node where it has none, as after the node is gone."""
        return self.clients.get(node) or self.clients.get("") or next(iter(self.clients.values()))


class AttachingDrivers:
    """The drivers behind the endpoints, once they answer. make_client: of a socket."""

    def __init__(
        self,
        endpoints: Sequence[AttachEndpoint],
        clock: Clock,
        *,
        make_client: Callable[[Path], CsiClient] = CsiClient,
    ) -> None:
        self._endpoints, self._clock, self._make_client = endpoints, clock, make_client
        self._drivers: dict[str, AttachingDriver] = {}
        self._listeners: list[Callable[[AttachingDriver], None]] = []
        self._unanswered = set(endpoints)

    def __iter__(self) -> Iterator[AttachingDriver]:
        return iter(list(self._drivers.values()))

    def get(self, name: str) -> AttachingDriver | None:
        """Return the driver of that name, None for one that is not served here or has not answered yet."""
        return self._drivers.get(name)

    @property
    def is_complete(self) -> bool:
        """Whether all endpoints have answered: no other driver is served here."""
        return not self._unanswered

    def on_add(self, listener: Callable[[AttachingDriver], None]) -> None:
        """Call listener for each endpoint of a driver that answers."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Connect to all endpoints, retried without limit, and keep the connections until cancelled."""
        clients = [(endpoint, self._make_client(endpoint.socket)) for endpoint in self._endpoints]
        try:
            async with asyncio.TaskGroup() as tasks:
                for endpoint, client in clients:
                    tasks.create_task(self._connect(endpoint, client))
            await asyncio.Event().wait()
        finally:
            self._drivers.clear()
            self._unanswered = set(self._endpoints)
            for _, client in clients:
                client.close()

    async def _connect(self, endpoint: AttachEndpoint, client: CsiClient) -> None:
        backoff = Backoff(RETRY_START, RETRY_MAX)
        while True:
            try:
                driver = await _ask(client, endpoint.node)
                self._unanswered.discard(endpoint)
                self._add(endpoint, driver)
            except InvalidError as failure:
                self._unanswered.discard(endpoint)
                log.error("driver not served socket=%s error=%s", endpoint.socket, failure)
            except TonnageError as failure:
                pause = backoff.next("")
                log.info("driver not ready socket=%s retry=%.2fs error=%s", endpoint.socket, pause, failure)
                await self._clock.sleep(pause)
                continue
            return

    def _add(self, endpoint: AttachEndpoint, driver: AttachingDriver) -> None:
        known = self._drivers.setdefault(driver.name, driver)
        if endpoint.node in known.clients and known is not driver:
            raise InvalidError(f"another endpoint serves driver {driver.name} already: name each socket once")
        known.clients.update(driver.clients)
        log.info("volumes are attached here driver=%s socket=%s", driver.name, endpoint.socket)
        for listener in self._listeners:
            listener(known)


async def _ask(client: CsiClient, node: str) -> AttachingDriver:
    """Raises: CsiError, UnavailableError while it is not ready, InvalidError for a driver without a controller."""
    if not await client.probe():
        raise UnavailableError(f"driver at {client.socket} is not ready")
    name = names.check_driver_name((await client.plugin_info()).name)
    plugin = await client.plugin_capabilities()
    if types.CONTROLLER_SERVICE not in plugin:
        raise InvalidError(
            f"driver {name} has no CONTROLLER_SERVICE at {client.socket}: name the socket of its controller plugin"
        )
    has_topology = types.VOLUME_ACCESSIBILITY_CONSTRAINTS in plugin
    return AttachingDriver(name, await client.controller_capabilities(), has_topology, {node: client})
