"""Deletion: deletes one volume or trash under its lock, and erases in the background what that left.

A volume that was not deleted for good stays visible, until the call is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tonnage.base.errors import TonnageError
from tonnage.storage.pools.base.contract import Erasure
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.work import PoolWork

if TYPE_CHECKING:
    from tonnage.storage.pools.core.eraser import Eraser  # loaded with the first job: most pools never erase


class Deletion:
    """The deletions of one pool.

    erase_rate: bytes per second, 0 for unlimited, None for the default. deleted: called with the name of what was
    deleted. freed: called when bytes of erased content become free.
    """

    def __init__(
        self, work: PoolWork, erase_rate: int | None, deleted: Callable[[str], None], freed: Callable[[], None]
    ) -> None:
        self._work, self._backend = work, work.backend
        self._erase_rate, self._deleted, self._freed = erase_rate, deleted, freed
        self._eraser: Eraser | None = None

    async def delete(self, name: str) -> None:
        """Delete a volume or trash, whose lock the caller holds; an unknown one is success. Raises: as Pool.delete."""
        gone = list[VolumeRecord]()
        try:
            await self._work.run_and_commit(self._delete, name, gone)
            self._deleted(name)
        except TonnageError:
            for record in gone:  # not for good: it must stay visible until the call is repeated
                self._backend.records.put_back(record)
                if record.is_trash:
                    self._backend.discount(record)
            raise
        finally:
            self.erase()  # also after a call that was cancelled, or failed when it was almost done

    def _delete(self, name: str, gone: list[VolumeRecord]) -> None:
        record = self._backend.records.volumes.get(name)
        if record is None or not record.is_trash:
            self._backend.delete(name)
        else:
            self._backend.recount(record)  # what its deletion releases
            try:
                self._backend.delete(name)
            except BaseException:
                if name in self._backend.records.volumes:
                    self._backend.discount(record)
                raise
        if record is not None:
            gone.append(record)

    def erase(self) -> None:
        """Start the eraser, if there are jobs."""
        records = self._backend.erasures
        if records is None or not records.jobs():
            return
        if self._eraser is None:
            from tonnage.storage.pools.core.eraser import RATE, Eraser

            name, kind, threads = self._backend.name, self._backend.features.kind, self._work.threads
            rate = RATE if self._erase_rate is None else self._erase_rate
            self._eraser = Eraser(name, kind, records, threads, self._work.clock, rate=rate, freed=self._freed)
        self._eraser.wake()

    def erasing(self) -> Sequence[Erasure]:
        """Contents that are being erased, sorted by volume name."""
        return self._eraser.erasing() if self._eraser is not None else []

    def change_rate(self, erase_rate: int | None) -> None:
        """Set another rate, None for the default."""
        self._erase_rate = erase_rate
        if self._eraser is not None:
            self._eraser.change_rate(erase_rate)

    async def close(self) -> None:
        """Stop erasing. Idempotent."""
        if self._eraser is not None:
            await self._eraser.close()
