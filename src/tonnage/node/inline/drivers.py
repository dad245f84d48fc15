"""The inline drivers of one node, each with its socket and registration. Used by the node process and the box.

One driver that cannot start does not stop the others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tonnage.base.errors import TonnageError
from tonnage.csi.driver.inline_endpoint import InlineEndpoint
from tonnage.csi.inline.base import InlinePod, PodEvents
from tonnage.csi.inline.driver import InlineDriver
from tonnage.csi.inline.memory import MemoryStore
from tonnage.csi.inline.timer import FillRate
from tonnage.kubernetes.api.meta import ObjectReference
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.node.inline.config import InlineConfig
from tonnage.node.inline.sources import InlineContext, build

log = logging.getLogger(__name__)


def pod_events(events: EventRecorder) -> PodEvents:
    """Return the function that emits Events on pods."""

    def emit(pod: InlinePod, type_: str, reason: str, message: str) -> None:
        about = ObjectReference(kind="Pod", api_version="v1", namespace=pod.namespace, name=pod.name, uid=pod.uid)
        events.record(about, type_, reason, message)

    return emit


class InlineDrivers:
    """All inline drivers of a node.

    kubelet: its directory; sockets: directory of the CSI sockets, `<kubelet>/plugins/<driver>` by default; registry:
    directory of the registration sockets. Raises: InvalidError for a kind or option that does not exist.
    """

    def __init__(
        self,
        configs: Sequence[InlineConfig],
        context: InlineContext,
        *,
        kubelet: Path,
        registry: Path | None,
        sockets: Path | None = None,
    ) -> None:
        self._endpoints: list[InlineEndpoint] = []
        rate = FillRate(context.clock)
        for config in configs:
            folder = kubelet / "plugins" / config.name
            driver = InlineDriver(
                config.name,
                build(config, context),
                MemoryStore(folder / "mem", config.memory),
                events=context.events,
                clock=context.clock,
                pools=context.pools,
                rate=rate,
            )
            socket = sockets / f"{config.name}.sock" if sockets is not None else folder / "csi.sock"
            self._endpoints.append(
                InlineEndpoint(driver, socket, node_id=context.node, roots=(kubelet,), registry=registry)
            )

    @property
    def names(self) -> list[str]:
        """The drivers' names."""
        return [endpoint.driver.name for endpoint in self._endpoints]

    async def start(self) -> None:
        """Start all. One that fails is logged; the kubelet then does not know it."""
        for endpoint in self._endpoints:
            try:
                await endpoint.start()
            except TonnageError as failure:
                log.error("inline driver not started driver=%s error=%s", endpoint.driver.name, failure)
                await endpoint.stop()

    async def measure(self) -> None:
        """Update the gauges of all volumes."""
        for endpoint in self._endpoints:
            await endpoint.driver.measure()

    async def stop(self) -> None:
        """Stop all; volumes and mounts stay. Idempotent."""
        for endpoint in reversed(self._endpoints):
            await endpoint.stop()
