"""The records of a pool's volumes in memory: by name, with damage and reserved bytes.

The back end has written what is here to its disk. Reading is free of locks; reserved bytes change under one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import UUID

from tonnage.errors import Exhausted, HostError, NotFound, Unavailable
from tonnage.pools.base.contract import VolumeOrigin, VolumeRequest
from tonnage.pools.base.parameters import MKFS_OPTIONS, SOURCE
from tonnage.pools.base.record import VolumeRecord

REMEDY = "put a copy of the record back and restart the driver, or save its content and remove both by hand"


class Records:
    """Records of volumes.

    where: the pool and its location, for messages. most: maximum bytes to reserve, 0 for unlimited. remedy: what to do
    about a damaged record. key: returns the key in `damaged` for a volume's name.
    """

    def __init__(
        self, where: str, *, most: int = 0, remedy: str = REMEDY, key: Callable[[str], str] = lambda name: name
    ) -> None:
        self.where = where
        self.most = most
        self.remedy = remedy
        self.volumes: dict[str, VolumeRecord] = {}
        self.damaged: dict[str, str] = {}
        """Volumes with damaged records, and the damage; they are left alone."""
        self.used = 0
        """Reserved bytes."""
        self.problem = ""
        """Why the last open() failed, "" when it succeeded or was not called."""
        self.lock = threading.RLock()
        self._key = key

    def closed(self) -> Unavailable:
        """The error while the pool is not open: an unreachable volume is never taken for a deleted one."""
        return Unavailable(f"{self.where} is not open{self.problem and ': '}{self.problem}")

    def check_damaged(self, name: str) -> None:
        """Raises HostError when a damaged record has that name."""
        if (fault := self.damaged.get(self._key(name))) is not None:
            raise HostError(
                f"the record of volume {name} in {self.where} is damaged ({fault}), nothing was touched: {self.remedy}"
            )

    def get(self, name: str) -> VolumeRecord:
        """A record. Raises NotFound, HostError for a damaged one."""
        self.check_damaged(name)
        try:
            return self.volumes[name]
        except KeyError:
            raise NotFound(f"{self.where} has no volume {name[:128]!r}") from None

    def all(self) -> list[VolumeRecord]:
        """All records, sorted by name."""
        return [record for _, record in sorted(self.volumes.items())]

    def book(self, name: str, size: int) -> None:
        """Count bytes of a volume or snapshot as reserved; negative releases them. Raises Exhausted."""
        with self.lock:
            if size > 0 and self.most and self.used + size > self.most:
                raise Exhausted(f"{size} bytes for {name} do not fit any more into {self.where}")
            self.used += size

    def put_back(self, record: VolumeRecord) -> None:
        """Count a volume again whose deletion did not become durable: it may reappear."""
        self.volumes[record.name] = record
        with self.lock:
            self.used += record.size


def new_record(
    request: VolumeRequest,
    size: int,
    fstype: str,
    *,
    uuid: UUID,
    created: float,
    origin: VolumeRecord | None = None,
    length: int = 0,
) -> VolumeRecord:
    """The record of a volume to create.

    size: usable bytes. created: seconds since the epoch. origin: the volume or snapshot that it is a copy of; the copy
    of one that was never used is formatted and populated as that. length: bytes of its content.
    """
    parameters, source = request.parameters, request.source or VolumeOrigin()
    is_empty = origin is None or origin.state == "new"
    folder = parameters.get(SOURCE, "") if origin is None else origin.from_folder
    return VolumeRecord(
        request.name,
        size,
        uuid,
        block=request.block,
        fstype=fstype,
        parameters=dict(parameters),
        owner=dict(request.owner),
        created=created,
        from_snapshot=source.snapshot,
        from_volume=source.volume,
        from_folder=folder if is_empty else "",
        mkfs=parameters.get(MKFS_OPTIONS, "") if origin is None else origin.mkfs,
        mutable={key: value for key, value in request.mutable.items() if value},
        length=length,
    )
