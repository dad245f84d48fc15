"""The record of a volume or snapshot, and its validation."""

from __future__ import annotations

from uuid import UUID

import msgspec

from tonnage.errors import Invalid
from tonnage.pools.base import checksum
from tonnage.pools.base import mkfs_options as mkfs
from tonnage.pools.base.contract import PoolVolume, Snapshot, VolumeOrigin, VolumeState, check_name
from tonnage.pools.base.parameters import erase_of, reserve_of

VERSION = checksum.FORMAT
_LARGEST = 2**63 - 1
_LATEST = 253402300799.0  # seconds since the epoch: the last that a date can say


class VolumeRecord(msgspec.Struct, frozen=True):
    """The record that a pool stores with a volume or snapshot.

    size: usable bytes. length: of the image file, 0 for none. uuid: of its file system. made: the image's length when
    its file system was made, 0 for the present one. pending: the file system has yet to grow. shared: the image shares
    its blocks with another. from_...: what it was copied from, or is to be while it is new (from_folder: the class
    parameter source). mkfs: the mkfsOptions that its file system is made with. project: the project quota of its
    directory, of a quota pool.
    """

    name: str
    size: int
    uuid: UUID
    length: int = 0
    sparse: bool = False
    block: bool = False
    fstype: str = ""
    state: str = "new"
    parameters: dict[str, str] = {}
    owner: dict[str, str] = {}
    created: float = 0.0
    made: int = 0
    pending: bool = False
    shared: bool = False
    from_snapshot: str = ""
    from_volume: str = ""
    from_folder: str = ""
    mkfs: str = ""
    project: int = 0
    mutable: dict[str, str] = {}
    version: int = VERSION

    @property
    def source(self) -> VolumeOrigin | None:
        """The snapshot or volume that it was copied from."""
        return VolumeOrigin(self.from_snapshot, self.from_volume) if self.from_snapshot or self.from_volume else None

    def snapshot(self) -> Snapshot:
        """The Snapshot for a snapshot's record."""
        return Snapshot(
            self.name,
            self.from_volume,
            self.size,
            block=self.block,
            fstype=self.fstype,
            owner=self.owner,
            created=self.created,
        )

    def volume(self) -> PoolVolume:
        """The PoolVolume for a volume's record."""
        return PoolVolume(
            self.name,
            self.size,
            block=self.block,
            fstype=self.fstype,
            state=VolumeState(self.state),
            parameters=self.parameters,
            owner=self.owner,
            created=self.created,
            source=self.source,
            pending=self.pending,
            mutable=self.mutable,
        )


def check(record: VolumeRecord) -> None:
    """Check the values of a record. Raises ValueError."""
    try:
        check_name(record.name)
        parameters = record.volume().effective  # raises ValueError for an unknown state
        erase_of(parameters)
        reserve_of(parameters)
        if record.fstype and record.mkfs:
            mkfs.read(record.fstype, record.mkfs)
    except (Invalid, KeyError) as failure:
        raise ValueError(str(failure)) from None
    if not 0 < record.size <= _LARGEST or not 0 <= record.length <= _LARGEST or not 0 <= record.made <= _LARGEST:
        raise ValueError(f"its size is {record.size}, its length {record.length}, it was made for {record.made}")
    if not 0 <= record.created <= _LATEST:
        raise ValueError(f"it was created at {record.created}")
    if not 0 <= record.project < 2**32:
        raise ValueError(f"it is in project {record.project}")
    if record.block == bool(record.fstype):
        raise ValueError("it is raw block with a file system" if record.block else "it has no file system")


def upgraded(record: VolumeRecord) -> VolumeRecord:
    """The same record in the current format."""
    return msgspec.structs.replace(record, version=VERSION)
