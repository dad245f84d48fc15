"""Compares attachments with what the driver says, for drivers with LIST_VOLUMES_PUBLISHED_NODES.

A volume that somebody detached at the storage is attached again. A volume that is attached without an attachment is
left alone: the storage may serve another cluster. As external-attacher, once a minute.
"""

from __future__ import annotations

import logging

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import TonnageError
from tonnage.controller.attach.attacher import Attacher
from tonnage.controller.attach.decision import NODE_ID
from tonnage.controller.attach.drivers import AttachingDriver, AttachingDrivers
from tonnage.csi.client import types
from tonnage.kubernetes.api.storage import VolumeAttachment

log = logging.getLogger(__name__)
EVERY = 60.0
"""Seconds between two comparisons."""


class AttachmentComparison:
    """Loop over the drivers. Nothing is listed while a driver has no volume attached."""

    def __init__(self, attacher: Attacher, drivers: AttachingDrivers, clock: Clock, *, every: float = EVERY) -> None:
        self._attacher, self._drivers, self._clock, self._every = attacher, drivers, clock, every

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._clock.sleep(self._every)
            for driver in self._drivers:
                try:
                    await self.compare(driver)
                except TonnageError as failure:
                    log.warning("attachments not compared driver=%s error=%s", driver.name, failure)

    async def compare(self, driver: AttachingDriver) -> None:
        """Attach again what the driver does not list as attached. Raises: CsiError."""
        before = self._attacher.attached(driver.name)
        if not before or not driver.has(types.LIST_VOLUMES_PUBLISHED_NODES) or not driver.has(types.LIST_VOLUMES):
            return
        published: dict[str, frozenset[str]] = {}
        for client in driver.clients.values():
            for handle, nodes in (await client.list_published()).items():
                published[handle] = published.get(handle, frozenset()) | nodes
        # What was attached before the list was taken, and still is.
        for name, one in self._attacher.attached(driver.name).items():
            if _same(before.get(name), one) and self._is_missing(one, published):
                log.warning("volume is not attached, attaching it again attachment=%s driver=%s", name, driver.name)
                self._attacher.attach_again(name)

    def _is_missing(self, one: VolumeAttachment, published: dict[str, frozenset[str]]) -> bool:
        handle, node_id = self._attacher.handle_of(one), one.metadata.annotations.get(NODE_ID, "")
        return bool(handle and node_id) and node_id not in published.get(handle, frozenset())


def _same(one: VolumeAttachment | None, other: VolumeAttachment) -> bool:
    return one is not None and one.metadata.uid == other.metadata.uid
