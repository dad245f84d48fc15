"""A pool's directory: locked by one process, marked as the pool's, with a record per volume. Blocking.

Layout: `.tonnage-pool` (marker, locked while in use), `<name>.json` (record), `<name>.img` or `<name>` (content, by the
kind of pool), `.new-...` (half-written, removed at the next start). A volume exists when its record does. Content of a
volume that is being made has a mark `.making-<name>` until the record is there. Content of a deleted volume is renamed
to `.deleted-<name>-<uuid>` before the record is removed. Both are removed at the next start. Any other content without
a record is an orphan, and is left alone: its record was lost.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from uuid import UUID, uuid4

import msgspec

from tonnage.base.errors import ExhaustedError, HostError, NotFoundError, OutOfRangeError, UnavailableError, host_errors
from tonnage.host import files, fstab, obstacles
from tonnage.host.descriptor import closing, opened
from tonnage.storage.pools.base.contract import MAX_NAME
from tonnage.storage.pools.base.record import FORMAT, VolumeRecord, check, seal, unseal
from tonnage.storage.pools.base.reservation import LARGEST

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that is full, or of a quota that is reached."""


class _DiskErrors:
    """Raise an OSError of the body as `what: cause; advice`; ExhaustedError `insufficient free space full: cause`.

    A file that is larger than the file system allows is an OutOfRangeError: no free space would help.
    """

    __slots__ = ("_full", "_what")

    def __init__(self, what: str, *, full: str) -> None:
        self._what, self._full = what, full

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(failure, OSError):
            if failure.errno in FULL:
                raise ExhaustedError(f"insufficient free space {self._full}: {failure.strerror}") from failure
            if failure.errno == errno.EFBIG:
                raise OutOfRangeError(f"{self._what}: {failure.strerror}") from failure
            raise HostError(f"{self._what}: {failure.strerror}; look at the kernel's log and at its disk") from failure


disk_errors = _DiskErrors


log = logging.getLogger(__name__)
MARKER = ".tonnage-pool"
NOTE = ".nothing-is-mounted-here"
"""A file in a mount point, hidden by the mounted disk and visible when the disk is missing."""
OWN = ".tonnage"
"""The subdirectory for records in a directory that is not tonnage's own."""
_COPY = "trusted.tonnage.marker"
"""The extended attribute of a pool's directory that has the marker a second time."""
_RECORD = ".json"
HALF = ".new-"
_MAKING, _DELETED = ".making-", ".deleted-"
LOST = "there is none, only its content"
"""The fault of content without a record."""
_MARK = 512  # bytes of a marker, spaces at its end: so it is one sector, and written again as a whole or not at all
_DAMAGE = (errno.EIO, errno.ELOOP, errno.EISDIR, errno.EUCLEAN, errno.EBADMSG)  # one bad block is no end of the others
_LONGEST = 1 << 20  # bytes of a record
_HEX = 32  # characters of a UUID
_OURS = frozenset({MARKER, "lost+found"})
T = TypeVar("T", bound=msgspec.Struct)
S = TypeVar("S")


class Marker(msgspec.Struct):
    """Content of the marker file. name: of the pool, the prefix of its volumes' ids."""

    kind: str
    id: UUID
    version: int = FORMAT
    name: str = ""


def read_marker(text: bytes) -> Marker:
    """Parse a marker. Raises: ValueError when it is damaged or of a newer tonnage."""
    marker = unseal(text.rstrip(), Marker)
    if marker.version == FORMAT and text != _marker_text(marker):
        raise ValueError(f"it has {len(text)} bytes")
    return marker


def marker_of(directory: Path) -> Marker | None:
    """The marker of a pool's directory, or its copy; None where its creation was killed.

    Raises: OSError, ValueError.
    """
    text = (directory / MARKER).read_bytes()
    try:
        return read_marker(text)
    except ValueError:
        if (copied := _copy(directory)) is None and text:
            raise
        return copied


def _marker_text(marker: Marker) -> bytes:
    return seal(marker).ljust(_MARK)


def _copy(directory: Path | int) -> Marker | None:
    """The second marker of a directory, None where it has no valid one."""
    try:
        return read_marker(os.getxattr(directory, _COPY))
    except (OSError, ValueError):
        return None


class Directory:
    """One pool directory.

    All methods raise UnavailableError when it cannot be reached, HostError when a write fails.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self._kind = kind
        self.unfinished: set[str] = set()
        """Names of contents that have a record, and still the mark that they are being made."""
        self._marker = -1
        self._at = -1
        self._opening = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether this process has locked the directory."""
        return self._at >= 0

    def open_inside(self, name: str = "") -> None:
        """Open a subdirectory of a checked pool, unless it is open: of the first two at once, one makes it.

        Raises: as open(), ExhaustedError when the disk is full.
        """
        with self._opening:
            if self.is_open:
                return
            try:
                self.open(name, inside=True)
            except UnavailableError as failure:
                why = failure.__cause__
                if isinstance(why, OSError) and why.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise ExhaustedError(str(failure)) from failure
                raise

    def open_existing(self, name: str = "") -> bool:
        """Open a subdirectory of a checked pool and clean it, if it is there; whether it is.

        Raises: as open_inside(), OSError when that cannot be seen: what it holds is not gone then.
        """
        try:
            os.lstat(self.path)
        except FileNotFoundError:
            return False
        self.open_inside(name)
        self.clean()
        return True

    def open(self, name: str = "", *, inside: bool = False) -> None:
        """Create the directory if it is missing, check that it is a pool's, lock it.

        name: the pool's, "" for any. inside: it is a subdirectory of a checked pool, so a damaged marker is rewritten.

        Raises: UnavailableError when it is not a plain directory, holds foreign files, or is in use by another process.
        Also when it belongs to another kind of pool, to one of another name that has volumes, or a newer version. Also
        when its marker is damaged and has no copy, and when its disk is not mounted: what is below a mount point is not
        the pool, and its volumes are not deleted.
        """
        try:
            self._check()
            self._take(name, inside=inside)
        except OSError as failure:
            self.close()
            raise UnavailableError(f"pool directory {self.path}: {failure.strerror}{_hint(failure)}") from failure
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        if point := fstab.missing(self.path):
            raise UnavailableError(
                f"pool directory {self.path}: its disk is not mounted: mount {point}, or take it out of {fstab.FSTAB}"
            )
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700, parents=True)
        mode = os.lstat(self.path).st_mode
        if stat.S_ISLNK(mode):
            raise UnavailableError(f"pool directory {self.path} is a symlink: name the directory itself")
        if not stat.S_ISDIR(mode):
            raise UnavailableError(f"pool directory {self.path} is not a directory")
        names = {entry for entry in os.listdir(self.path) if not entry.startswith(HALF)}
        if NOTE in names:
            raise UnavailableError(
                f"pool directory {self.path}: its disk is not mounted: mount it, or remove {self.path / NOTE} if"
                " volumes are to be made without it"
            )
        if MARKER not in names and (foreign := sorted(names - _OURS)):
            raise UnavailableError(
                f"pool directory {self.path} holds files that are not tonnage's ({foreign[0]!r}): name an empty one"
            )

    def _take(self, name: str, *, inside: bool) -> None:
        self._at = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.fstatvfs(self._at).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        flags = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._marker = os.open(MARKER, os.O_RDONLY | flags, 0o600, dir_fd=self._at)
        if not files.try_lock(self._marker):
            raise UnavailableError(f"pool directory {self.path} is in use by another process: stop that one first")
        marker = self._read_marker(name, inside=inside)
        if marker.kind != self._kind:
            raise UnavailableError(
                f"pool directory {self.path} belongs to a pool of kind {marker.kind}, not {self._kind}"
            )
        if name and marker.name != name:
            self._rename(marker, name)
        elif marker.version != FORMAT:
            self._mark(marker)

    def _read_marker(self, name: str, *, inside: bool) -> Marker:
        text = os.pread(self._marker, 4096, 0)
        try:
            marker = read_marker(text)
        except ValueError as failure:
            if "newer" in str(failure):
                raise UnavailableError(f"pool directory {self.path}: {failure}") from failure
            marker = self._restored(name, text, str(failure), inside=inside)
        if marker.version == FORMAT and _copy(self._at) != marker:
            self._mark(marker)
        return marker

    def _restored(self, name: str, text: bytes, fault: str, *, inside: bool) -> Marker:
        """The marker of a directory with a damaged one. Raises: UnavailableError."""
        made = Marker(self._kind, uuid4(), name=name)
        is_new = not text and not {entry for entry in os.listdir(self._at) if not entry.startswith(HALF)} - _OURS
        if is_new:  # or killed before the marker was written: nothing can be in it then
            self._mark(made)
            return made
        if (copied := _copy(self._at)) is None and not inside:
            example = msgspec.json.encode(msgspec.structs.replace(made, version=1)).decode()
            raise UnavailableError(
                f"pool directory {self.path}: its marker {MARKER} is damaged ({fault}), nothing was touched: put a copy"
                f" of it back; or if this is that pool's directory, write this line to it: {example}"
            )
        log.error("marker is damaged, written anew path=%s error=%s", self.path / MARKER, fault)
        marker = copied or made
        self._mark(marker)
        return marker

    def _rename(self, marker: Marker, name: str) -> None:
        """Check the pool's name: two pools with swapped names would each report the other's volumes as deleted."""
        if marker.name and any(entry.endswith(_RECORD) for entry in os.listdir(self._at)):
            raise UnavailableError(
                f"pool directory {self.path} has volumes of a pool named {marker.name!r}, which their ids begin with:"
                f" call it name={marker.name} instead of {name}, or delete them first"
            )
        marker.name = name
        self._mark(marker)

    def _mark(self, marker: Marker) -> None:
        marker.version = FORMAT
        text = _marker_text(marker)
        with opened(MARKER, os.O_WRONLY | os.O_NOFOLLOW, dir_fd=self._at) as fd:
            os.pwrite(fd, text, 0)
            os.ftruncate(fd, len(text))
            os.fsync(fd)
            with suppress(OSError):  # a file system without such attributes, or a user who may not set them
                os.setxattr(self._at, _COPY, text)
            os.fsync(self._at)

    def close(self) -> None:
        """Release it. Idempotent."""
        for fd in (self._marker, self._at):
            if fd >= 0:
                os.close(fd)
        self._marker = self._at = -1

    @property
    def at(self) -> int:
        """The open directory's descriptor. Raises: UnavailableError when it is not open."""
        if self._at < 0:
            raise UnavailableError(f"pool directory {self.path} is not open")
        return self._at

    def check_place(self) -> None:
        """Raises: UnavailableError unless the path still leads to the open directory.

        Content is named by paths. They lead elsewhere when the disk is unmounted under us (umount -l) or another one is
        mounted over it.
        """
        advice = "look at the kernel's log and at its disk"
        with host_errors(f"pool directory {self.path}", advice=advice, error=UnavailableError):
            is_same = os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self.at))
        if not is_same:
            raise UnavailableError(
                f"pool directory {self.path} is not the one that was opened: its disk was unmounted, or something"
                " mounted over it; mount it there as it was and start anew"
            )

    def fault(self) -> str:
        """The problem of the disk under it, "" for none.

        Listing and stat may be answered from the cache, so a file is opened, which fails on a disk that is gone.
        """
        try:
            self.check_place()
            with opened(MARKER, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.at) as fd:
                is_readonly = os.fstatvfs(fd).f_flag & os.ST_RDONLY
        except OSError as failure:
            return f"the disk under {self.path} cannot be read: {failure.strerror}"
        except UnavailableError as failure:
            return str(failure)
        return f"the file system under {self.path} is read-only: look at the kernel's log" if is_readonly else ""

    def clean(self) -> None:
        """Remove half-written files."""
        for entry in os.listdir(self.path):
            if entry.startswith(HALF):
                log.info("removing half-written file path=%s", self.path / entry)
                os.unlink(self.path / entry)

    def records(self) -> tuple[dict[str, VolumeRecord], dict[str, str]]:
        """All records by name, and the damage of damaged ones. Raises: OSError for other errors of the disk."""
        return self.read_all(self.read, passing=_DAMAGE)

    def read_all(
        self, read: Callable[[str], S], *, passing: Container[int] | None = None
    ) -> tuple[dict[str, S], dict[str, str]]:
        """What `read` returns for each file that put() wrote, by name; and the damage of damaged ones, which is logged.

        passing: numbers of the errors that are damage, None for all. Raises: OSError for others.
        """
        found: dict[str, S] = {}
        damaged: dict[str, str] = {}
        for entry in sorted(os.listdir(self.path)):
            name = entry.removesuffix(_RECORD)
            if name == entry or entry.startswith(".") or len(name) > MAX_NAME:
                continue
            try:
                found[name] = read(name)
            except NotFoundError:
                continue  # removed since it was listed
            except (ValueError, OSError) as failure:
                if isinstance(failure, OSError) and passing is not None and failure.errno not in passing:
                    raise
                log.error("record is damaged, left alone path=%s error=%s", self.path / entry, failure)
                damaged[name] = str(failure)
        return found, damaged

    def largest_file(self) -> int:
        """The largest size that the file system there allows for a file, LARGEST where that cannot be seen."""
        with suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with opened(f"{HALF}size", flags, dir_fd=self.at) as fd:
                os.unlink(f"{HALF}size", dir_fd=self.at)
                return _largest_size(fd)
        return LARGEST

    # Content without a record

    def check_free(self, name: str, suffix: str) -> None:
        """Raises: HostError when there is content of that name already, and no failed call has left it."""
        content = self.path / f"{name}{suffix}"
        if os.path.lexists(content) and not self.is_begun(name):
            raise HostError(
                f"{content} has no record, nothing was touched: it may be a volume whose record is lost, then put a"
                " copy of that back and restart the driver; if it is not needed, remove it"
            )

    def begin(self, name: str) -> None:
        """Mark content as being made, before any of it is there. Idempotent. Raises: ExhaustedError, HostError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with disk_errors(f"cannot write in {self.path}", full=f"to write in {self.path}"):
            os.close(os.open(f"{_MAKING}{name}", flags, 0o600, dir_fd=self.at))

    def finish(self, name: str) -> None:
        """Remove that mark: the content has a record, or is gone. Idempotent. Raises: HostError."""
        with host_errors(f"cannot write in {self.path}"), suppress(FileNotFoundError):
            os.unlink(f"{_MAKING}{name}", dir_fd=self.at)
        self.unfinished.discard(name)

    def try_finish(self, name: str) -> None:
        """The same, for content whose record is durable: a mark that stays is removed with the next write, or start."""
        try:
            self.finish(name)
        except HostError as failure:
            log.warning("mark of made content stays name=%s error=%s", name, failure)
            self.unfinished.add(name)

    def is_begun(self, name: str) -> bool:
        """Whether content is marked as being made."""
        return os.path.lexists(self.path / f"{_MAKING}{name}")

    def finish_all(self, suffix: str, *known: Container[str]) -> None:
        """Remove marks of contents that are known or gone; a kill left them. Raises: HostError."""
        for entry in os.listdir(self.path):
            name = entry.removeprefix(_MAKING)
            if name != entry and (_is_in(name, known) or not os.path.lexists(self.path / f"{name}{suffix}")):
                self.finish(name)

    def deleted(self, name: str, uuid: UUID, suffix: str) -> Path:
        """Path of the content of a deleted volume."""
        return self.path / f"{_DELETED}{name}-{uuid.hex}{suffix}"

    def all_deleted(self, name: str, suffix: str) -> list[Path]:
        """Contents of deleted volumes of that name."""
        start = f"{_DELETED}{name}-"
        length = len(start) + _HEX + len(suffix)
        found = [entry for entry in os.listdir(self.path) if entry.startswith(start) and entry.endswith(suffix)]
        return [self.path / entry for entry in sorted(found) if len(entry) == length]

    def set_aside(self, name: str, uuid: UUID, suffix: str) -> Path:
        """Rename the content of a volume whose record is to be removed; return its path. Idempotent. Raises: HostError.

        It is durable when the record's removal is. On a full disk the content may keep its name, and that path is
        returned.
        """
        aside, entry = self.deleted(name, uuid, suffix), f"{name}{suffix}"
        with host_errors(f"cannot rename {entry} in {self.path}"), suppress(FileNotFoundError):
            try:
                self._rename_content(entry, aside.name)
            except OSError as failure:
                if failure.errno not in FULL:
                    raise
                log.warning("deleted content keeps its name: its disk is full path=%s", self.path / entry)
                return self.path / entry
        return aside

    def rename_content(self, entry: str, name: str) -> None:
        """Rename a file or directory; not durable. Raises: HostError."""
        with host_errors(f"cannot rename {entry} in {self.path}"):
            self._rename_content(entry, name)

    def _rename_content(self, entry: str, name: str) -> None:
        try:
            os.rename(entry, name, src_dir_fd=self.at, dst_dir_fd=self.at)
        except OSError as failure:
            if failure.errno not in (errno.EPERM, errno.EROFS):
                raise
            obstacles.clear_entry(entry, self.at)
            os.rename(entry, name, src_dir_fd=self.at, dst_dir_fd=self.at)

    def put_back(self, name: str, uuid: UUID, suffix: str) -> None:
        """Undo set_aside(), if it can be undone.

        Not without its record, which may be gone although its removal failed: the content would be an orphan.
        """
        if not os.path.lexists(self.path / f"{name}{_RECORD}"):
            return
        with suppress(OSError):
            aside = self.deleted(name, uuid, suffix)
            os.rename(aside.name, f"{name}{suffix}", src_dir_fd=self.at, dst_dir_fd=self.at)

    def without_record(self, suffix: str, *known: Container[str]) -> tuple[list[Path], dict[str, str]]:
        """Contents, whose names end in suffix, of volumes that are not known.

        Those that may be removed: half made, or deleted. And the fault of each other, by name, which is logged.
        """
        rubbish: list[Path] = []
        lost: dict[str, str] = {}
        for entry in sorted(os.listdir(self.path)):
            name = entry.removesuffix(suffix)
            if name == entry or _is_in(name, known):
                continue
            if name.startswith(_DELETED) or self.is_begun(name):
                rubbish.append(self.path / entry)
            else:
                log.error("content has no record, left alone path=%s", self.path / entry)
                lost[name] = f"{LOST} {self.path / entry}"
        return rubbish, lost

    def read(self, name: str) -> VolumeRecord:
        """One record. Raises: NotFoundError, OSError, ValueError when it is damaged or of a newer tonnage."""
        record = self.read_as(name, VolumeRecord)
        check(record)
        if record.name != name:
            raise ValueError(f"it is of volume {record.name!r}")
        return record

    def read_as(self, name: str, kind: type[T]) -> T:
        """Read what put() wrote by that name. Raises: NotFoundError, OSError, ValueError when it is anything else."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO would wait for a writer
            fd = os.open(f"{name}{_RECORD}", flags, dir_fd=self.at)
        except FileNotFoundError:
            raise NotFoundError(f"no record of volume {name}") from None
        with closing(fd):
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError("it is no file")
            text = os.pread(fd, _LONGEST + 1, 0)
        if len(text) > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST} bytes")
        return unseal(text, kind)

    def write(self, record: VolumeRecord, *, durable: bool = True) -> None:
        """Write or replace a record, atomically.

        durable: synced when this returns; otherwise the caller commits the file system. Raises: ExhaustedError,
        HostError.
        """
        self.put(record.name, record, durable=durable)

    def put(self, name: str, value: msgspec.Struct, *, durable: bool = True) -> None:
        """Write or replace the file of that name with any content of the kind; as write()."""
        text = seal(value)
        half, final = f"{HALF}{name}{_RECORD}", f"{name}{_RECORD}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with disk_errors(f"cannot write {self.path / final}", full=f"to write {self.path / final}"):
            try:
                fd = os.open(half, flags, 0o600, dir_fd=self._at)
                try:
                    if os.write(fd, text) != len(text):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    if durable:
                        os.fsync(fd)
                finally:
                    os.close(fd)
                os.rename(half, final, src_dir_fd=self._at, dst_dir_fd=self._at)
                if durable:
                    os.fsync(self._at)
            except OSError:
                with suppress(OSError):
                    os.unlink(half, dir_fd=self._at)
                raise

    def remove(self, name: str, *, durable: bool = True) -> None:
        """Remove a record, which deletes the volume; durable as with write(). Idempotent."""
        with host_errors(f"cannot remove the record of volume {name}"):
            with suppress(FileNotFoundError):
                os.unlink(f"{name}{_RECORD}", dir_fd=self._at)
            if durable:
                os.fsync(self._at)


def _largest_size(fd: int) -> int:
    """The largest size of an open, empty file, by trying. Raises: OSError."""
    fits, high = 0, LARGEST
    while fits < high:
        middle = high if not fits else (fits + high + 1) // 2
        try:
            os.ftruncate(fd, middle)
            fits = middle
        except OSError as failure:
            if failure.errno not in (errno.EFBIG, errno.EINVAL):
                raise
            high = middle - 1
            fits = fits or 1
    return fits


def _is_in(name: str, known: Sequence[Container[str]]) -> bool:
    return any(name in names for names in known)


def is_unmounted(path: Path) -> bool:
    """Whether the disk that should hold a pool's directory is not mounted."""
    return bool(fstab.missing(path)) or (path / NOTE).exists()


def _hint(failure: OSError) -> str:
    hints = {
        errno.EACCES: ": run as root, or choose a directory that you may write",
        errno.EPERM: ": run as root, or choose a directory that you may write",
        errno.EROFS: "; choose one on a writable file system",
        errno.ENOSPC: ": free space on its disk",
    }
    return hints.get(failure.errno or 0, "")
