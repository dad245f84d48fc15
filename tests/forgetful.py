"""A pool whose records are lost, older or another cluster's while its content stays, for tests of a whole cluster.

What the kinds of pools themselves do with such records is the subject of tests/unit/storage/pools.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from tonnage.base.aio.clock import Clock
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.backend import RequestedVolume
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.directory.directory import LOST
from tonnage.storage.pools.fake.backend import FEATURES, FakeBackend, FakePool


class ForgetfulBackend(FakeBackend):
    """content: volume -> when it was made. used: volumes that a pod had. newest: their records, as a person has them."""

    def __init__(self, size: int, clock: Clock) -> None:
        super().__init__(size, largest=0, features=FEATURES, directories=False, clock=clock, erase_rate=0)
        self.content: dict[str, float] = {}
        self.used: set[str] = set()
        self.newest: dict[str, VolumeRecord] = {}

    def create(self, request: VolumeRequest, want: RequestedVolume, origin: VolumeRecord | None = None) -> VolumeRecord:
        self.records.check_damaged(request.name)
        record = super().create(request, want, origin)
        self.content[record.name] = record.created
        return record

    def write(self, record: VolumeRecord) -> None:
        super().write(record)
        self.newest[record.name] = record

    def delete(self, name: str) -> None:
        self.records.check_damaged(name)
        is_known = name in self.records.volumes
        super().delete(name)
        if is_known:
            del self.content[name], self.newest[name]
            self.used.discard(name)

    def shows_use(self, record: VolumeRecord) -> bool:
        return record.name in self.used

    def put(self, records: Mapping[str, VolumeRecord]) -> None:
        """Have these records from now on: content without one is an orphan, a record without content is damaged."""
        self.records.volumes = {name: record for name, record in records.items() if name in self.content}
        self.records.damaged = {name: LOST for name in self.content if name not in records}
        self.records.damaged |= {name: "its content is gone" for name in records if name not in self.content}


class ForgetfulPool(FakePool):
    """A pool that counts volumes against `size` bytes, over a ForgetfulBackend."""

    def __init__(self, name: str, size: int, *, clock: Clock) -> None:
        self.fake: ForgetfulBackend = ForgetfulBackend(size, clock)
        self._directories = False
        Pool.__init__(self, name, self.fake, clock=clock)
        self.fake.records.where = f"pool {name!r}"


def foreign(record: VolumeRecord) -> VolumeRecord:
    """The record as another cluster's."""
    return structs.replace(record, owner={**record.owner, names.PARAM_CLUSTER: "cluster-of-others"})
