"""Attachments of a node: waits until volumes are attached, and says which are in use (kubelet/volumemanager).

A volume is in status.volumesInUse of the Node from before a pod waits for it until every such pod has left it, so that
no one detaches it meanwhile. It is mounted only if the Node shows it as attached after that write: one that is about to
be detached is taken off that list first. Only volumes of drivers with attachRequired come here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from tonnage.base.errors import ApiError, UnavailableError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import ATTACHMENTS, NODES
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.claims.bind import find
from tonnage_box.kubelet.volumes.csi_volumes import MountError
from tonnage_box.kubelet.volumes.vol_data import VolumeData

log = logging.getLogger(__name__)
_AGAIN = 1.0
_FOUND = ""
"""Who uses a volume that is on disk after a start, until it is unstaged."""


class Attachments:
    """The attached volumes of one node."""

    def __init__(self, client: Client, node: str) -> None:
        self._client, self._node = client, node
        self._users: dict[str, set[str]] = {}
        """Uids of the pods that use a volume or wait for it."""
        self._written: set[str] = set()
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()

    def recover(self, node: Node, found: set[str]) -> None:
        """After a start: what is on disk is in use, and the status is corrected if it says otherwise."""
        self._users, self._written = {name: {_FOUND} for name in found}, set(node.status.volumes_in_use)
        if self._users.keys() != self._written:
            self._changed.set()

    async def wait(self, uid: str, volume: str, driver: str, handle: str) -> tuple[str, Mapping[str, str]]:
        """Name of the VolumeAttachment, and the driver's publish context. The volume is in use until left().

        uid: of the pod. volume: name of the PV. Raises: MountError while it is not attached, ApiError.
        """
        unique, name = names.attached_volume(driver, handle), names.attachment_name(handle, driver, self._node)
        self._users.setdefault(unique, set()).add(uid)
        node = await self._in_use(unique)
        found = await find(self._client, ATTACHMENTS, name)
        is_leaving = found is not None and found.metadata.deleting
        if found is None or is_leaving or all(one.get("name") != unique for one in node.status.volumes_attached):
            if is_leaving:
                why = "it is being detached, and is attached again after that"
            else:
                why = f"driver {driver} wants it to be attached: kubectl describe volumeattachment {name} says how far"
                why += " that is; if the driver needs no attachment, set attachRequired: false in its CSIDriver"
            text = f'Volume not attached according to node status for volume "{volume}" : {why}'
            raise MountError(text, topic=topic(unique))
        return name, found.status.get("attachmentMetadata") or {}

    async def _in_use(self, unique: str) -> Node:
        """Return the Node as it is after it was written that the volume is in use."""
        node = await self._write() or await self._client.get(NODES, self._node)
        if unique in node.status.volumes_in_use:
            return node
        self._written = set(node.status.volumes_in_use)  # somebody else has written it
        return await self._write() or node

    def left(self, uid: str) -> None:
        """A pod has no volumes any more, and waits for none. Idempotent."""
        self._drop(uid, list(self._users))

    def unstaged(self, data: VolumeData) -> None:
        """Nothing of the volume is on disk any more. Idempotent."""
        if data.attachment:
            self._drop(_FOUND, [names.attached_volume(*data.key)])

    def _drop(self, user: str, volumes: Iterable[str]) -> None:
        for name in volumes:
            users = self._users.get(name, set())
            if user in users:
                users.discard(user)
                if not users:
                    del self._users[name]
                    self._changed.set()

    async def _write(self) -> Node | None:
        """Write what is in use; return the Node as it is with that, None where nothing is new."""
        async with self._lock:
            wanted = set(self._users)
            if wanted == self._written:
                return None
            body = {"status": {"volumesInUse": sorted(wanted) or None}}
            node = await self._client.patch(NODES, self._node, body, subresource="status")
            self._written = wanted
            return node

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


def topic(unique: str) -> str:
    """What pods wait for: that the Node shows the volume as attached."""
    return f"attached {unique}"
