"""The Trash service: makes a volume of a deleted one, for the command line. CSI has no call for this."""

from __future__ import annotations

from tonnage.csi._proto import inventory_pb2
from tonnage.csi.driver.driver import Driver


class Trash:
    """The Trash service."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def RestoreVolume(self, request: inventory_pb2.RestoreVolumeRequest) -> inventory_pb2.RestoreVolumeResponse:
        """Restore a volume; success for one that is no trash. Idempotent.

        Raises: NotFoundError for one that is evicted or unknown, ExhaustedError when its capacity is reserved.
        """
        pool, name = self._driver.place(request.volume_id)
        self._driver.check_open(pool)
        await pool.trash.restore(name)
        return inventory_pb2.RestoreVolumeResponse()
