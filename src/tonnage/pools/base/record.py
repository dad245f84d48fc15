"""The record of a volume: what a pool stores of it, and whether what is found is one."""

from __future__ import annotations

from uuid import UUID

import msgspec

from tonnage.errors import Invalid
from tonnage.pools.base import checksum
from tonnage.pools.base import mkfs_options as mkfs
from tonnage.pools.base.contract import Snapshot, Source, State, Volume, check_name
from tonnage.pools.base.parameters import erase_of, reserve_of

VERSION = checksum.FORMAT
_LARGEST = 2**63 - 1
_LATEST = 253402300799.0  # seconds since the epoch: the last that a date can say


class Record(msgspec.Struct, frozen=True):
    """A volume's or snapshot's sidecar. size: usable bytes; length: of the image file, 0 for none; uuid: of its file
    system; made: the image's length when its file system was made, 0 for the present one; pending: the file system has
    yet to grow; shared: the image shares its blocks with another; from_...: what it was filled from, or is to be while
    it is new (from_folder, as the class parameter source); mkfs: the mkfsOptions that its file system is made with;
    project: the one that its folder is in, of a quota pool."""

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
    def source(self) -> Source | None:
        """What it was filled from."""
        return Source(self.from_snapshot, self.from_volume) if self.from_snapshot or self.from_volume else None

    def snapshot(self) -> Snapshot:
        """The snapshot as the pool's users see it, for a record of one."""
        return Snapshot(
            self.name,
            self.from_volume,
            self.size,
            block=self.block,
            fstype=self.fstype,
            owner=self.owner,
            created=self.created,
        )

    def volume(self) -> Volume:
        """The volume as the pool's users see it."""
        return Volume(
            self.name,
            self.size,
            block=self.block,
            fstype=self.fstype,
            state=State(self.state),
            parameters=self.parameters,
            owner=self.owner,
            created=self.created,
            source=self.source,
            pending=self.pending,
            mutable=self.mutable,
        )


def check(record: Record) -> None:
    """Check what a record says, whatever it is written on. Raises ValueError."""
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


def upgraded(record: Record) -> Record:
    """The same record in the present format."""
    return msgspec.structs.replace(record, version=VERSION)
