"""The record of a volume or snapshot, its validation, and its text.

The text is JSON with a checksum as the last field; jobs and markers have the same form. It is valid only if it is byte
for byte what seal() makes of its object. A missing, unknown or repeated field, another order or a flipped bit is
damage. Format 1 had no checksum; such a text is read once and rewritten.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar
from uuid import UUID

import msgspec

from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ExhaustedError, HostError, InvalidError, NotFoundError, UnavailableError
from tonnage.storage.pools.base.contract import (
    PoolVolume,
    Snapshot,
    VolumeOrigin,
    VolumeRequest,
    VolumeState,
    check_name,
)
from tonnage.storage.pools.base.mkfs_options import read_mkfs_options
from tonnage.storage.pools.base.parameters import MKFS_OPTIONS, SOURCE, erase_of, reserve_of

UNDELETE = "tonnage.dev/undelete"
"""Key of a volume's owner record: seconds for which it stays as trash after its deletion."""
TRASHED = "trashed"
"""Key of a volume's owner record: when it was deleted, in seconds since the epoch. Only trash has it."""
STAGED = "staged"
"""Key of a volume's owner record: when it was first staged, in seconds since the epoch; "" before that.

Earlier versions did not write it."""
CONTENT = "content"
"""Key of a volume's owner record: `filling:DIGEST` or `filled:DIGEST`, the digest that of the content's text."""
FILLING, FILLED = "filling:", "filled:"
T = TypeVar("T", bound=msgspec.Struct)
FORMAT = 2
_UNSEALED = 1
_BEFORE, _AFTER = b',"checksum":"', b'"}'
_DIGITS = 64
_LARGEST = 2**63 - 1
LATEST = 253402300799.0
"""Seconds since the epoch: the last that a date can say."""


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
    version: int = FORMAT

    @property
    def is_trash(self) -> bool:
        """Whether it was deleted, and stays until it is restored or evicted."""
        return TRASHED in self.owner

    @property
    def trashed(self) -> float:
        """When it was deleted, in seconds since the epoch; 0 for a volume, and where that cannot be read."""
        return seconds_of(self.owner, TRASHED)

    @property
    def undelete(self) -> float:
        """Seconds for which it stays after its deletion, as its class says, 0 for not at all."""
        return seconds_of(self.owner, UNDELETE)

    @property
    def use(self) -> str:
        """Why it may hold data of a pod, "" where no pod ever had it.

        The first stage is recorded before anything is mounted, so only an empty mark proves that there was none.
        """
        if (staged := self.owner.get(STAGED)) == "":
            return ""
        if staged is None:
            return "its record is of an earlier version, which did not write when a volume was first staged"
        return f"it was first staged at {rfc3339(seconds_of(self.owner, STAGED))}"

    @property
    def content(self) -> str:
        """What it was made with, "" for a volume that was empty."""
        if self.source is not None:
            return f"it is a copy of {self.source}"
        is_filled = self.from_folder or self.owner.get(CONTENT, "").startswith(FILLED)
        return "it was filled when it was made" if is_filled else ""

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
            owner={key: value for key, value in self.owner.items() if key != STAGED},
            created=self.created,
            source=self.source,
            pending=self.pending,
            mutable=self.mutable,
        )


def seconds_of(owner: Mapping[str, str], key: str) -> float:
    """The seconds that an owner record has under a key, 0 without the key, and for what is no time."""
    try:
        return min(max(0.0, float(owner.get(key, "0"))), LATEST)
    except ValueError:
        return 0.0


def check(record: VolumeRecord) -> None:
    """Check the values of a record. Raises: ValueError."""
    try:
        check_name(record.name)
        parameters = record.volume().effective  # raises ValueError for an unknown state
        erase_of(parameters)
        reserve_of(parameters)
        if record.fstype and record.mkfs:
            read_mkfs_options(record.fstype, record.mkfs)
    except (InvalidError, KeyError) as failure:
        raise ValueError(str(failure)) from None
    if not 0 < record.size <= _LARGEST or not 0 <= record.length <= _LARGEST or not 0 <= record.made <= _LARGEST:
        raise ValueError(f"its size is {record.size}, its length {record.length}, it was made for {record.made}")
    if not 0 <= record.created <= LATEST:
        raise ValueError(f"it was created at {record.created}")
    if not 0 <= record.project < 2**32:
        raise ValueError(f"it is in project {record.project}")
    if record.block == bool(record.fstype):
        raise ValueError("it is raw block with a file system" if record.block else "it has no file system")


def upgraded(record: VolumeRecord) -> VolumeRecord:
    """The same record in the current format."""
    return msgspec.structs.replace(record, version=FORMAT)


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

    def closed(self) -> UnavailableError:
        """The error while the pool is not open: an unreachable volume is never taken for a deleted one."""
        return UnavailableError(f"{self.where} is not open{self.problem and ': '}{self.problem}")

    def check_damaged(self, name: str) -> None:
        """Raises: HostError when a damaged record has that name."""
        if (fault := self.damaged.get(self._key(name))) is not None:
            raise HostError(
                f"the record of volume {name} in {self.where} is damaged ({fault}), nothing was touched: {self.remedy}"
            )

    def get(self, name: str) -> VolumeRecord:
        """A record. Raises: NotFoundError, HostError for a damaged one."""
        self.check_damaged(name)
        try:
            return self.volumes[name]
        except KeyError:
            raise NotFoundError(f"{self.where} has no volume {name[:128]!r}") from None

    def all(self) -> list[VolumeRecord]:
        """All records, sorted by name."""
        return [record for _, record in sorted(self.volumes.items())]

    def reserve(self, name: str, size: int) -> None:
        """Count bytes of a volume or snapshot as reserved; negative releases them. Raises: ExhaustedError."""
        with self.lock:
            if size > 0 and self.most and self.used + size > self.most:
                raise ExhaustedError(f"{size} bytes for {name} do not fit any more into {self.where}")
            self.used += size

    def put_back(self, record: VolumeRecord) -> None:
        """Count a volume again whose deletion did not become durable: it may reappear."""
        self.volumes[record.name] = record
        self.recount(record)

    def recount(self, record: VolumeRecord) -> None:
        """Count the bytes of a volume, though others may have them."""
        with self.lock:
            self.used += record.size

    def trash(self) -> list[VolumeRecord]:
        """Deleted volumes that stay, the oldest first."""
        found = [record for record in list(self.volumes.values()) if record.is_trash]
        return sorted(found, key=lambda record: (record.trashed, record.name))

    def trash_bytes(self) -> int:
        """Bytes of the deleted volumes that stay."""
        return sum(record.size for record in self.trash())


def new_record(
    request: VolumeRequest,
    size: int,
    fstype: str,
    *,
    uuid: UUID,
    created: float,
    origin: VolumeRecord | None = None,
) -> VolumeRecord:
    """The record of a volume to create.

    size: usable bytes. created: seconds since the epoch. origin: the volume or snapshot that it is a copy of; the copy
    of one that was never used is formatted and populated as that.
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
        owner={**request.owner, STAGED: ""},
        created=created,
        from_snapshot=source.snapshot,
        from_volume=source.volume,
        from_folder=folder if is_empty else "",
        mkfs=parameters.get(MKFS_OPTIONS, "") if origin is None else origin.mkfs,
        mutable={key: value for key, value in request.mutable.items() if value},
    )


class _Version(msgspec.Struct):
    version: int


def checksum(body: bytes) -> str:
    """The checksum of a text."""
    return hashlib.sha256(body).hexdigest()


def seal(value: msgspec.Struct) -> bytes:
    """Encode an object that has a field `version`: FORMAT, or what a test wants."""
    text = msgspec.json.encode(value)
    if getattr(value, "version", FORMAT) == _UNSEALED:
        return text
    return text[:-1] + _BEFORE + checksum(text).encode() + _AFTER


def newer(version: int) -> ValueError:
    """The damage of a record in a later format, which is none to the version that wrote it."""
    return ValueError(f"it was made by a newer tonnage (format {version}), which reads it: start that version again")


def unseal(text: bytes, kind: type[T]) -> T:
    """Decode a text whose `version` names its format.

    Raises: ValueError with the damage found.
    """
    body = _body(text)
    try:
        version = msgspec.json.decode(body or text, type=_Version).version
        if body is not None and version > FORMAT:
            raise newer(version)
        if version != (_UNSEALED if body is None else FORMAT):
            raise ValueError("it has no checksum" if body is None else f"its format is {version}")
        found = msgspec.json.decode(body or text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as failure:
        raise ValueError(f"it cannot be read: {failure}") from None
    if seal(found) != text:
        raise ValueError("it has missing, unknown or misplaced fields")
    return found


def _body(text: bytes) -> bytes | None:
    """Return the bytes that the checksum covers, None where there is no checksum.

    Raises: ValueError when it does not match.
    """
    end = len(text) - len(_AFTER)
    start = end - _DIGITS
    if start < 0 or text[end:] != _AFTER or not text[:start].endswith(_BEFORE):
        return None
    body = text[: start - len(_BEFORE)] + b"}"
    if checksum(body).encode() != text[start:end]:
        raise ValueError("its checksum is wrong")
    return body
