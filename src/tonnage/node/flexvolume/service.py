"""FlexVolume service of a node: installs the kubelet's program, serves its calls, collects what vanished pods left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import TonnageError
from tonnage.csi.client.client import CsiClient
from tonnage.kubernetes.client.client import Client
from tonnage.node.flexvolume.install import SPOOL, install
from tonnage.node.flexvolume.mounts import FlexMounts
from tonnage.node.flexvolume.spool import FlexSpool

log = logging.getLogger(__name__)
COLLECT_EVERY = 3600.0


@dataclass(frozen=True)
class FlexPlaces:
    """Folders. plugins: the kubelet's, of FlexVolume drivers. kubelet: its root. state: of the CSI driver, below it."""

    plugins: Path
    kubelet: Path
    state: Path
    spool: Path = SPOOL


class FlexService:
    """Runs until cancelled. driver: the CSI driver of a node. changed: called when a volume was made."""

    def __init__(
        self,
        driver: CsiClient,
        client: Client,
        node: str,
        places: FlexPlaces,
        *,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._places, self._clock = places, clock
        self._mounts = FlexMounts(driver, client, node, kubelet=places.kubelet, state=places.state, changed=changed)
        self._calls = FlexSpool(places.spool, places.kubelet, self._mounts.serve)

    async def run(self) -> None:
        """Work until cancelled. Raises: HostError, PreconditionError."""
        await asyncio.to_thread(install, self._places.plugins, self._places.spool)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._calls.run())
            tasks.create_task(self._collect())

    async def _collect(self) -> None:
        while True:
            try:
                await self._mounts.collect()
            except TonnageError as failure:
                log.warning("FlexVolumes not collected error=%s", failure)
            await self._clock.sleep(COLLECT_EVERY)
