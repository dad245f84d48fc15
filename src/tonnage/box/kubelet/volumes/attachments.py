"""Attachments of a node: waits until volumes are attached, and says which are in use (kubelet/volumemanager).

A volume is in status.volumesInUse of the Node before it is mounted and until it is unstaged, so that no one detaches it
meanwhile. Only volumes of drivers with attachRequired come here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.kinds import ATTACHMENTS, NODES
from tonnage.box.kubelet.volumes.csi_volumes import MountError
from tonnage.box.kubelet.volumes.vol_data import VolumeData
from tonnage.claims.bind import find
from tonnage.errors import ApiError, UnavailableError
from tonnage.kube.client import Client

log = logging.getLogger(__name__)
_AGAIN = 1.0


class Attachments:
    """The attached volumes of one node."""

    def __init__(self, client: Client, node: str) -> None:
        self._client, self._node = client, node
        self._in_use: set[str] = set()
        self._written: set[str] = set()
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()

    def recover(self, node: Node, found: set[str]) -> None:
        """After a start: what is on disk is in use, and the status is corrected if it says otherwise."""
        self._in_use, self._written = set(found), set(node.status.volumes_in_use)
        if self._in_use != self._written:
            self._changed.set()

    async def wait(self, volume: str, driver: str, handle: str) -> tuple[str, Mapping[str, str]]:
        """Name of the VolumeAttachment, and the driver's publish context.

        volume: name of the PV. Raises MountError while it is not attached, ApiError.
        """
        self._in_use.add(names.attached_volume(driver, handle))
        await self._write()
        name = names.attachment_name(handle, driver, self._node)
        found = await find(self._client, ATTACHMENTS, name)
        if found is None or not found.status.get("attached"):
            text = (
                f'Volume not attached according to node status for volume "{volume}" : driver {driver} wants it to be'
            )
            text += " attached by its external-attacher; if it needs none, set attachRequired: false in its CSIDriver"
            raise MountError(text, topic=topic(name))
        return name, found.status.get("attachmentMetadata") or {}

    def release(self, data: VolumeData) -> None:
        """The volume is no longer mounted here. Idempotent."""
        if data.attachment:
            self._in_use.discard(names.attached_volume(*data.key))
            self._changed.set()

    async def _write(self) -> None:
        async with self._lock:
            wanted = set(self._in_use)
            if wanted != self._written:
                body = {"status": {"volumesInUse": sorted(wanted) or None}}
                await self._client.patch(NODES, self._node, body, subresource="status")
                self._written = wanted

    async def run(self) -> None:
        """Write what was released, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write()
            except (ApiError, UnavailableError) as failure:
                log.info("volumes in use not written node=%s error=%s", self._node, failure)
                asyncio.get_running_loop().call_later(_AGAIN, self._changed.set)


def topic(attachment: str) -> str:
    """What pods wait for: a change of that VolumeAttachment."""
    return f"attachment {attachment}"
