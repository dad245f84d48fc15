"""PoolGrowth: makes a pool's volumes larger, and their file systems where they are in use.

The record has the new size first. A file system that cannot grow while mounted, or is not, grows when it is staged.
"""

from __future__ import annotations

from pathlib import Path

from tonnage.base.errors import InvalidError, NotFoundError, OutOfRangeError, PreconditionError
from tonnage.storage.pools.base import reservation
from tonnage.storage.pools.base.contract import FeaturedPool, PoolVolume, unsupported
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.trash import PoolTrash
from tonnage.storage.pools.core.work import PoolWork, uses_disk


class PoolGrowth:
    """The growth of one pool's volumes. All methods are idempotent, and raise UnavailableError, HostError."""

    def __init__(self, work: PoolWork, trash: PoolTrash) -> None:
        self.work = work
        self._backend, self._trash = work.backend, trash
        self._unfinished: dict[str, str] = {}  # volume -> why its file system could not grow while mounted

    @uses_disk
    async def expand(self, name: str, size: int, *, limit: int = 0) -> PoolVolume:
        """Expand a volume to at least `size` bytes; durable when this returns.

        The file system of a volume in use grows too. Where it cannot grow while mounted, the volume is `pending` and
        unfinished() says why. A volume that is not in use grows when it is staged. A volume that is large enough is
        returned unchanged. limit: maximum bytes, 0 for none. Raises: NotFoundError, ExhaustedError, OutOfRangeError
        (can never fit, or the volume is larger than limit: no volume ever shrinks), InvalidError, UnsupportedError.
        """
        async with self.work.locks.hold(name):
            self._backend.check_open()
            record = await self._trash.evicting(self._trash.part_of(name), self._expand, name, size, limit)
            self._unfinished.pop(name, None)
            if record.pending:
                record = await self.work.run(self._grow_used, record)
            return self._backend.volume(record)

    def unfinished(self, name: str) -> str:
        """Why the file system of an expanded volume could not grow while mounted, "" if it could or is not in use."""
        return self._unfinished.get(name, "")

    def forget(self, name: str) -> None:
        """Forget a volume that was deleted. Idempotent."""
        self._unfinished.pop(name, None)

    def _grow_used(self, record: VolumeRecord) -> VolumeRecord:
        try:
            return self._backend.mounts.grow_used(record)
        except NotFoundError:
            return record  # not in use: stage() grows it
        except PreconditionError as why:
            self._unfinished[record.name] = str(why)
            return record

    def _expand(self, name: str, size: int, limit: int) -> VolumeRecord:
        record = self._backend.record(name)
        wanted = expanded_size(self._backend, record.volume(), size, limit, step=self._backend.step_of(record))
        if wanted <= record.size:
            return record
        reserve = self._backend.reserve(record.parameters)
        free = self._backend.left(reserve, record.fstype, record.parameters, block=record.block)
        reservation.check_more(self._backend.name, record.volume(), wanted, free, reserve)
        self._backend.check_expand(record, wanted)
        self._backend.check_evicted(wanted - record.size, free, reserve)
        return self._backend.expand(name, wanted)

    @uses_disk
    async def grow(self, name: str, path: Path) -> PoolVolume:
        """Grow the file system at path (or the raw block device) to the expanded size, the node's part.

        Raises: NotFoundError when the volume or path is not there, PreconditionError when it cannot grow while mounted
        (the next stage() grows it), UnsupportedError.
        """
        if not self._backend.features.expansion:
            raise unsupported(self._backend, "larger volumes")
        async with self.work.locks.hold(name):
            record = await self.work.run(self._backend.mounts.grow, self._backend.record(name), path)
            self._unfinished.pop(name, None)
            return self._backend.volume(record)


def expanded_size(pool: FeaturedPool, volume: PoolVolume, size: int, limit: int, *, step: int = 1) -> int:
    """The size of a volume after expand(), its present size when that is large enough.

    Raises: InvalidError, UnsupportedError, and OutOfRangeError when it is or would be larger than limit: no volume
    shrinks.
    """
    if not pool.features.expansion:
        raise unsupported(pool, "larger volumes")
    if not 0 <= size <= reservation.LARGEST or not 0 <= limit <= reservation.LARGEST:
        raise InvalidError(f"volume {volume.name}: size {size}, limit {limit}: want 0 to {reservation.LARGEST} bytes")
    if limit and volume.size > limit:
        raise OutOfRangeError(
            f"volume {volume.name} has {volume.size} bytes, requested at most {limit}: a volume is never made smaller,"
            " its content could be cut off; make a new one and copy"
        )
    wanted = max(volume.size, -(-size // step) * step)
    if limit and wanted > limit:
        raise OutOfRangeError(f"volume {volume.name}: {wanted} bytes (whole blocks) are more than the limit {limit}")
    return wanted
