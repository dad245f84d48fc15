"""External CSI drivers of a box: sockets of each node, and registration with its kubelet."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import Clock
from tonnage.box.kubelet.volumes.plugins import check_driver_name
from tonnage.csi.client.client import CsiClient
from tonnage.csi.driver.registration import Registration
from tonnage.csi.errors import CsiError
from tonnage.csi.server.sockets import check_length
from tonnage.errors import Invalid, TonnageError, Unavailable

log = logging.getLogger(__name__)


def endpoints(texts: Sequence[str], nodes: Sequence[str]) -> dict[str, list[Path]]:
    """Node -> sockets, out of `[NODE=]SOCKET`. NODE may be left out when there is one node. Raises Invalid.

    A socket may be written as a path or as CSI_ENDPOINT is (`unix:///run/driver.sock`); it need not exist yet.
    """
    found: dict[str, list[Path]] = {}
    users: dict[Path, str] = {}
    for text in texts:
        node, socket = _parse(text, nodes)
        if socket in users:
            raise Invalid(f"--csi-endpoint {text}: {socket} already serves {users[socket]}; a driver serves one node")
        users[socket] = node
        found.setdefault(node, []).append(socket)
    return found


def _parse(text: str, nodes: Sequence[str]) -> tuple[str, Path]:
    before, equals, after = text.partition("=")
    if not equals or "/" in before:
        before, after = "", text
    if not before and len(nodes) > 1:
        raise Invalid(
            f"--csi-endpoint {text}: there are {len(nodes)} nodes, say which one the driver serves: {nodes[0]}={text}"
        )
    node = before or nodes[0]
    if node not in nodes:
        raise Invalid(f"--csi-endpoint {text}: there is no node {node!r}, only {', '.join(nodes)}")
    path = after.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]
    if not path or "\0" in path:
        raise Invalid(f"--csi-endpoint {text!r}: want [NODE=]SOCKET, the path of the driver's unix socket")
    socket = Path(os.path.abspath(path))
    check_length(socket)
    return node, socket


class ExternalRegistrar:
    """Registers the driver behind a CSI socket with its node's kubelet, as node-driver-registrar does.

    taken: names that other drivers of the node have. A driver that does not answer yet is retried without limit.
    """

    def __init__(self, socket: Path, registry: Path, *, taken: Sequence[str], clock: Clock) -> None:
        self.socket, self._registry, self._taken, self._clock = socket, registry, taken, clock
        self._registration: Registration | None = None

    async def run(self) -> None:
        """Wait for the driver's registration socket. Returns, with a log entry, when it can never exist."""
        client = CsiClient(self.socket)
        try:
            name = await self._name(client)
            registration = Registration(name, self.socket, self._registry)
            await registration.start()
            self._registration = registration
        except TonnageError as failure:
            log.error("driver not registered socket=%s error=%s", self.socket, failure)
        finally:
            client.close()

    async def stop(self) -> None:
        """Withdraw the registration; the driver itself runs on. Idempotent."""
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.stop()

    async def _name(self, client: CsiClient) -> str:
        """The driver's name, once it is ready. Raises Invalid."""
        backoff = Backoff(initial=0.05, maximum=10.0)
        while True:
            try:
                if await client.probe():
                    return self._checked((await client.plugin_info()).name)
                failure: TonnageError = Unavailable("it is not ready")
            except CsiError as refused:
                failure = refused
            delay = backoff.next("")
            log.info("driver not ready socket=%s retry=%.2fs error=%s", self.socket, delay, failure)
            await self._clock.sleep(delay)

    def _checked(self, name: str) -> str:
        check_driver_name(name)
        if name in self._taken:
            raise Invalid(f"another driver of this node has the name {name}: give this one another name")
        return name
