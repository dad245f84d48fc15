"""The Reclaim service: deletions of which the volume itself decides whether they may be.

ReclaimVolume deletes the data of a volume that no pod can use again, while its PersistentVolume stays.
DeleteUnusedVolume deletes a volume that no pod ever had. CSI has no calls for this. It is a service on the driver's CSI
socket, for the node's agent. A volume has one call at a time, so none can stage it between the check, the mark and the
deletion.
"""

from __future__ import annotations

from typing import Any

from tonnage.base.errors import PreconditionError
from tonnage.csi._proto import inventory_pb2
from tonnage.csi.driver import filling as fillings
from tonnage.csi.driver.driver import Driver
from tonnage.csi.server.limits import check_id


class Reclaim:
    """The Reclaim service."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def ReclaimVolume(self, request: inventory_pb2.ReclaimVolumeRequest) -> inventory_pb2.ReclaimVolumeResponse:
        """Reclaim a volume, or report whether it was. Idempotent.

        Raises: NotFoundError for a volume that is unknown and was not reclaimed, PreconditionError while it is in use,
        UnavailableError when its pool is not open.
        """
        pool, name = self._driver.place(request.volume_id)
        self._driver.check_open(pool)
        marks = self._driver.reclaimed
        if not (why := marks.why(pool.name, name)):
            in_use = await pool.in_use(name)
            if not request.why:
                return inventory_pb2.ReclaimVolumeResponse(in_use=in_use)
            if in_use:
                raise PreconditionError(f"volume {request.volume_id} is in use: unpublish and unstage it first")
            marks.add(pool.name, name, request.why)
            why = marks.why(pool.name, name)
        await pool.delete(name, wait=False)
        return inventory_pb2.ReclaimVolumeResponse(why=why)

    async def DeleteUnusedVolume(
        self, request: inventory_pb2.DeleteUnusedVolumeRequest
    ) -> inventory_pb2.DeleteUnusedVolumeResponse:
        """Delete a volume that no pod ever had, or say why it stays. Idempotent; an unknown volume is success.

        Raises: PreconditionError while it is in use, UnavailableError when its pool is not served here or not open,
        HostError for a damaged record.
        """
        place = self._driver.locate(request.volume_id)
        if place is None:
            return inventory_pb2.DeleteUnusedVolumeResponse()
        pool, name = place
        self._driver.check_open(pool)
        if not request.ask:
            await self._driver.fillings.abandon(pool, name, self._driver.state / fillings.FOLDER / name)
        why = await pool.delete_unused(name, copies=request.copies, ask=request.ask)
        return inventory_pb2.DeleteUnusedVolumeResponse(why=why)


def check(request: Any) -> None:
    """Check a request: its reason may be longer than CSI's texts. Raises: InvalidError."""
    check_id("volume_id", request.volume_id)
