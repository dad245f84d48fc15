"""SQLite store: reads come from memory, every write is durable in SQLite before it is answered.

One thread writes. Writes that arrive while it is busy share the next commit (WAL, synchronous=FULL), as one
statement, so that the thread and the event loop rarely wait for each other. A write becomes visible, to readers and
watchers alike, when it is durable. Deletions leave a row without data until later, which keeps the revision counter.
Watch history is not stored: after a start older revisions are gone (410) and clients list again. Each row has a
checksum: a start that reads anything else than what was written changes nothing and reports what to do.

A full disk does not stop deletions, updates of status and Events. Their space is inside the files, where no other
program can take it: the log is allocated before it is written, the database never has more pages than are allocated,
and a table of zeros is deleted bit by bit when no more can be. It is filled again when the disk has space.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import logging
import os
import sqlite3
import struct
import zlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tonnage.base.errors import BusyError, ExhaustedError, PreconditionError, TonnageError, UnavailableError
from tonnage_box.apiserver.storage.store import Extract, Obj, ObjectKey, Store, StoredObject, StoreLimits

log = logging.getLogger(__name__)
APPLICATION_ID = 0x746F6E6E  # "tonn"
FORMAT = 2
_REMEDY = "restore it from a copy, or start an empty cluster, which keeps all volumes, with `tonnage up --recover`"
_FILES = ("", "-wal", "-shm", "-journal")
"""What SQLite adds to the name of a database."""
_LOG_BYTES = 8 << 20
"""Bytes of the write-ahead log that stay allocated: it is written back every 4 MiB, and a batch comes on top."""
_PIECE = 256 << 10
"""Bytes of a row of the reserve."""
_PIECES = 32
"""Rows of a full reserve."""
_FOR_REMOVALS = _PIECES // 4
"""Rows of the reserve that only writes without growth of an object may use."""
_STEP = 1 << 20
"""Bytes by which the database grows."""
_SLIGHTLY, _MUCH = 1 << 10, 16 << 10
"""Bytes by which an update makes an object larger: a deletion's timestamp or a condition, a whole status."""
_EVENTS = "events"
_NEEDED = frozenset({_EVENTS, "coordination.k8s.io/leases"})
"""Collections whose new objects a full disk must not reject."""
_BATCH = 128
_BATCH_BYTES = 1 << 20
"""The first write beyond it is a batch's last: what follows a write in the event loop takes time for each byte."""
_TOMBSTONES = 1024
_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    collection TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    revision INTEGER NOT NULL,
    data BLOB,
    checksum INTEGER,
    PRIMARY KEY (collection, namespace, name)
)
"""
_RESERVE = "CREATE TABLE IF NOT EXISTS reserve (zeros BLOB)"
_PURGE = "DELETE FROM objects WHERE data IS NULL AND revision < (SELECT max(revision) FROM objects)"
_HEADER, _FRAME = 32, 24
"""Bytes of the header of a write-ahead log, and of each of its frames without the page."""
_MAGIC = 0x377F0682
_Row = tuple[str, str, str, int, bytes | None, int]
_Loaded = tuple[list[tuple[str, str, str, int, bytes]], int]
"""Rows with data, and the highest revision."""


class _DamagedError(UnavailableError):
    """The database is not what was written: missing, empty, truncated or changed."""


class _Need(IntEnum):
    """How much of the reserve a write may take when the disk is full."""

    NONE = 0
    SOME = 1
    """All but what only removals may use."""
    ALL = 2


class _Write(NamedTuple):
    record: StoredObject
    removed: bool
    need: _Need
    done: asyncio.Future[None]

    def row(self) -> _Row:
        data = None if self.removed else self.record.data
        return (*self.record.key, self.record.revision, data, _checksum(*self.record.key, self.record.revision, data))


class SqliteStore(Store):
    """A Store in one SQLite file, opened by one process at a time.

    used: objects were in it before, so a file that is missing or empty is damage. recover: rename a damaged file and
    begin with an empty one; without damage it changes nothing.
    """

    def __init__(
        self,
        path: Path,
        fields: Extract,
        *,
        used: bool = False,
        recover: bool = False,
        limits: StoreLimits | None = None,
    ) -> None:
        super().__init__(fields, limits)
        self._path = path
        self._used, self._recover = used, recover
        self._file: _File | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._waiting: deque[_Write] = deque()
        self._pending: dict[ObjectKey, asyncio.Future[None]] = {}
        self._writing = False
        self._making_way = asyncio.Lock()

    async def start(self) -> None:
        """See Store.

        Raises: BusyError (another process has it), PreconditionError (not ours), UnavailableError (damaged).
        Idempotent. A start that raises leaves the database and its log as they were.
        """
        if self._file is not None:
            return
        loop = asyncio.get_running_loop()
        file = _File(self._path, used=self._used, recover=self._recover)
        rows, revision = await loop.run_in_executor(self._thread, file.open)
        self._file = file
        self._load((StoredObject(ObjectKey(*place), at, data, self._extract) for *place, at, data in rows), revision)

    async def stop(self) -> None:
        """See Store."""
        while self._pending:
            await asyncio.wait(list(self._pending.values()))
        file, self._file = self._file, None
        if file is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, file.close)
        self._thread.shutdown(wait=False)

    async def _write(
        self, key: ObjectKey, obj: Obj, expected: int, *, removed: bool, is_last: bool = False
    ) -> StoredObject:
        """is_last: a full disk is reported at once. Else the oldest Events give way to what may use the reserve."""
        while (earlier := self._pending.get(key)) is not None:
            await asyncio.wait((earlier,))
        if self._file is None:
            raise UnavailableError(f"the store {self._path} is not open")
        self._check(key, expected)
        loop = asyncio.get_running_loop()
        before = self.get(key)
        record = self._stamp(key, obj)
        self._check_space(record, obj, removed=removed)
        write = _Write(record, removed, _need(record, before, removed=removed), loop.create_future())
        self._pending[key] = write.done
        self._waiting.append(write)
        if not self._writing:
            self._writing = True
            loop.call_soon(self._commit)  # other writes of this turn of the loop join
        try:
            await asyncio.shield(write.done)
        except asyncio.CancelledError:  # the write continues: the caller must not release its locks before it ends
            await asyncio.wait((write.done,))
            raise
        except ExhaustedError:
            if write.need is _Need.NONE or is_last:
                raise
        else:
            return write.record
        async with self._making_way:  # those that waited find what the first of them removed
            with suppress(ExhaustedError):
                return await self._write(key, obj, expected, removed=removed, is_last=True)
            await self._remove_oldest_events()
            return await self._write(key, obj, expected, removed=removed, is_last=True)

    async def _remove_oldest_events(self) -> None:
        """As their time to live would."""
        oldest = sorted(self.records(_EVENTS), key=lambda record: record.revision)[:_BATCH]
        removals = (self._write(r.key, r.decode(), r.revision, removed=True, is_last=True) for r in oldest)
        await asyncio.gather(*removals, return_exceptions=True)
        if self._file is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._file.purge)

    def _commit(self) -> None:
        """Hand the next batch to the thread."""
        assert self._file is not None
        batch: list[_Write] = []
        size = 0
        while self._waiting and len(batch) < _BATCH and size <= _BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].record.data)
        rows = [write.row() for write in batch]
        needs = [write.need for write in batch]
        job = asyncio.get_running_loop().run_in_executor(self._thread, self._file.write, rows, needs)
        job.add_done_callback(functools.partial(self._committed, batch))

    def _committed(self, batch: list[_Write], job: asyncio.Future[list[BaseException | None]]) -> None:
        """Make a batch visible and answer it, or answer its errors; then continue."""
        failure = asyncio.CancelledError() if job.cancelled() else job.exception()
        errors: Sequence[BaseException | None] = job.result() if failure is None else [failure] * len(batch)
        for write, error in zip(batch, errors, strict=True):
            del self._pending[write.record.key]
            if error is None:
                self._apply(write.record, removed=write.removed)
                write.done.set_result(None)
            else:
                write.done.set_exception(_clear(error, self._path))
                write.done.exception()  # the waiter may be cancelled: prevents asyncio's warning
        if self._waiting:
            self._commit()
        else:
            self._writing = False


class _File:
    """The SQLite file and its lock. Lives in the store's thread."""

    def __init__(self, path: Path, *, used: bool, recover: bool) -> None:
        self._path = path
        self._used, self._recover = used, recover
        self._connection: sqlite3.Connection
        self._descriptor = -1
        self._opened = ExitStack()
        self._allocated = 0
        """Bytes of the database that the disk has given."""
        self._pieces = 0
        """Rows of the reserve."""
        self._tombstones = 0

    def open(self) -> _Loaded:
        """Lock and open the file; all rows, and the revision."""
        try:
            self._take_lock()
            found = self._examined()
            self._connection = self._connect()
            self._prepare(self._connection)
            self._connection.execute(_PURGE)
            self._allocate()
        except BaseException as error:
            self.close()
            raise _clear(error, self._path) from error
        else:
            return found

    def _take_lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self._beside(".lock"), flags, 0o600)
        self._opened.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise BusyError(f"{self._path} is in use by another process (pid {owner}): stop it first") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)

    def _beside(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    def _examined(self) -> _Loaded:
        """Rows and revision of a file that is whole. Raises _DamagedError, PreconditionError."""
        if self._path.is_symlink():
            return [], 0  # opening rejects it
        try:
            if self._path.exists() and self._path.stat().st_size:
                return self._read()
            self._check_unused("empty" if self._path.exists() else "missing")
        except _DamagedError as damage:
            if not self._recover:
                raise
            self._set_aside(damage)
        return [], 0

    def _check_unused(self, state: str) -> None:
        """Raises _DamagedError where there were objects before."""
        if self._used:
            raise _DamagedError(f"the database {self._path} is {state}, and its folder had a cluster: {_REMEDY}")

    def _read(self) -> _Loaded:
        """Check the file before anything is written to it: a damaged one is not changed."""
        address = f"{self._path.absolute().as_uri()}?mode=ro"
        # SQLite makes both to read, and leaves them.
        made = [file for file in (self._beside("-wal"), self._beside("-shm")) if not file.exists()]
        try:
            with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=1.0)) as connection:
                return self._checked(connection)
        except (sqlite3.Error, MemoryError, OverflowError, ValueError, TypeError) as failure:
            if not self._used and getattr(failure, "sqlite_errorname", "") == "SQLITE_NOTADB":
                raise  # never ours
            if not isinstance(_clear(failure, self._path), (BusyError, ExhaustedError)):
                raise self._damaged(failure) from failure
            raise
        finally:
            for file in made:
                file.unlink(missing_ok=True)

    def _checked(self, connection: sqlite3.Connection) -> _Loaded:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise self._damaged(str(found).splitlines()[-1])
        tables, version = self._owned(connection)
        if fault := _fault_of_log(self._beside("-wal"), self._beside("-shm")):
            raise self._damaged(fault)
        columns = "*, NULL" if version == 1 else "*"
        rows = connection.execute(f"SELECT {columns} FROM objects").fetchall() if tables else []
        for *row, checksum in rows:
            if checksum != _checksum(*row) and (version > 1 or checksum is not None):
                raise self._damaged(f"the row of {row[0]!r} {row[1]!r} {row[2]!r} is not what was written")
        if not rows:
            self._check_unused("empty")
        return [row[:5] for row in rows if row[4] is not None], max((row[3] for row in rows), default=0)

    def _owned(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """How many tables a file of ours has, and its format. Raises _DamagedError, PreconditionError."""
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if (tables or owner) and owner != APPLICATION_ID:
            if self._used:
                raise self._damaged(f"its application id is {owner:#x}")
            raise PreconditionError(f"{self._path} is a database of another program: name another data folder")
        if owner and not version:
            raise self._damaged("it has no format")
        if owner and version > FORMAT:
            raise PreconditionError(
                f"{self._path} has format {version}, this version of tonnage reads up to {FORMAT}: use the version "
                "that made it, or restore it from a copy"
            )
        return tables, version

    def _damaged(self, why: object) -> _DamagedError:
        return _DamagedError(f"the database {self._path} is damaged ({why}): {_REMEDY}")

    def _set_aside(self, damage: _DamagedError) -> None:
        """Rename the database, then its log: a kill between leaves a log without database, which is rejected too."""
        number = 1
        while any(self._beside(f".damaged-{number}{suffix}").exists() for suffix in _FILES):
            number += 1
        for suffix in _FILES:
            file = self._beside(suffix)
            if file.exists() and file.stat().st_size:
                file.rename(self._beside(f".damaged-{number}{suffix}"))
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        log.warning("beginning with an empty database, the old files are renamed .damaged-%d: %s", number, damage)

    def _connect(self) -> sqlite3.Connection:
        """Open the database, made with mode 0600."""
        # Closed after the connection: closing any descriptor of a file drops the locks that SQLite holds on it.
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._opened.callback(os.close, self._descriptor)
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, cached_statements=_BATCH + 16, timeout=1.0
        )
        return self._opened.enter_context(closing(connection))

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA cache_size=-256")  # KiB: everything is read from memory, SQLite is only written to
        connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
        (owned,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if owned and version < FORMAT:
            _upgrade(connection)
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")  # before the table: a kill leaves it ours
        connection.execute(_SCHEMA)
        connection.execute(_RESERVE)

    def _pragma(self, name: str) -> int:
        (number,) = self._connection.execute(f"PRAGMA {name}").fetchone()
        return int(number)

    def _allocate(self) -> None:
        """Have log and reserve allocated, as far as the disk has space."""
        self._connection.execute("PRAGMA wal_checkpoint")
        with suppress(OSError):
            log = os.open(self._beside("-wal"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.posix_fallocate(log, 0, _LOG_BYTES)
            finally:
                os.close(log)
        (self._pieces,) = self._connection.execute("SELECT count(*) FROM reserve").fetchone()
        self._bound()
        self._refill()

    def _bound(self) -> None:
        """Let the database have the pages that are allocated. Writing the log back cuts off those that it lacks."""
        page = self._pragma("page_size")
        size = max(self._pragma("page_count") * page, os.fstat(self._descriptor).st_size)
        with suppress(OSError):  # holes
            os.posix_fallocate(self._descriptor, 0, size)
        self._allocated = size
        self._pragma(f"max_page_count={size // page}")

    def _grow(self, more: int) -> bool:
        """Allocate bytes for the database; whether the disk had them."""
        try:
            os.posix_fallocate(self._descriptor, self._allocated, -(-more // _STEP) * _STEP)
        except OSError:  # no space, or a failing disk: the write reports which
            return False
        self._bound()
        return True

    def _refill(self) -> None:
        """Fill the reserve again once the disk, or what was deleted, leaves space for all of it and some more."""
        if self._pieces == _PIECES:
            return
        missing = (_PIECES - self._pieces) * _PIECE + _STEP
        found = os.fstatvfs(self._descriptor)
        if self._pragma("freelist_count") * self._pragma("page_size") < missing and (
            found.f_bavail * found.f_frsize < missing + _STEP or not self._grow(missing)
        ):
            return
        with suppress(sqlite3.Error):  # the next write tries again
            self._connection.executemany(
                "INSERT INTO reserve VALUES (zeroblob(?))", [(_PIECE,)] * (_PIECES - self._pieces)
            )
            self._pieces = _PIECES

    def _give_up(self, need: _Need) -> bool:
        """Delete a row of the reserve, for its pages; whether there was one."""
        if self._pieces <= {_Need.NONE: self._pieces, _Need.SOME: _FOR_REMOVALS, _Need.ALL: 0}[need]:
            return False
        try:
            self._connection.execute("DELETE FROM reserve WHERE rowid = (SELECT max(rowid) FROM reserve)")
        except sqlite3.Error as failure:
            log.error("cannot use the reserve path=%s error=%s", self._path, failure)
            return False
        self._pieces -= 1
        if self._pieces == _PIECES - 1:
            log.warning("disk full, using the reserve path=%s", self._path)
        return True

    def write(self, rows: Sequence[_Row], needs: Sequence[_Need]) -> list[BaseException | None]:
        """Make rows durable: all together or, where space is short, each by itself. Returns an error for each, or None.

        Raises: what is no lack of space; then none is written.
        """
        self._refill()
        errors: list[BaseException | None] = [None] * len(rows)
        if self._pieces < _PIECES or (error := self._try(rows, _Need.NONE)) is not None:
            if self._pieces == _PIECES and error is not None and not _is_full(error):
                raise error
            errors = [self._try_one(row, need) for row, need in zip(rows, needs, strict=True)]
        self._tombstones += sum(row[4] is None for row in rows)
        if self._tombstones > _TOMBSTONES:
            self.purge()
        if os.fstat(self._descriptor).st_size < self._allocated:
            self._bound()
        return errors

    def _try_one(self, row: _Row, need: _Need) -> BaseException | None:
        """As _try(). What may not use the reserve waits until it is full again: its free pages are for the others."""
        if need is _Need.NONE and self._pieces < _PIECES:
            return _full(self._path)
        return self._try([row], need)

    def _try(self, rows: Sequence[_Row], need: _Need) -> sqlite3.Error | None:
        """Write rows, with space of the disk or the reserve. Returns why they are not written, None when they are."""
        values = [value for row in rows for value in row]
        is_grown = False
        while True:
            try:
                self._connection.execute(_upsert(len(rows)), values)
            except sqlite3.Error as error:
                if not _is_full(error):
                    return error
                if not is_grown and self._grow(sum(len(row[4] or b"") for row in rows) * 2 + _STEP // 2):
                    is_grown = True
                elif not self._give_up(need):
                    return error
            else:
                return None

    def purge(self) -> None:
        """Delete rows without data. An error leaves them: what was to be written is."""
        self._tombstones = 0
        with suppress(sqlite3.Error):
            self._connection.execute(_PURGE)

    def close(self) -> None:
        """Close the file, then release the lock. Idempotent."""
        self._opened.close()


@functools.cache
def _upsert(rows: int) -> str:
    """One statement for so many rows: the thread gives up the interpreter's lock once, not once a row."""
    values = ",".join(["(?,?,?,?,?,?)"] * rows)
    change = "DO UPDATE SET revision = excluded.revision, data = excluded.data, checksum = excluded.checksum"
    return f"INSERT INTO objects VALUES {values} ON CONFLICT (collection, namespace, name) {change}"


def _need(record: StoredObject, before: StoredObject | None, *, removed: bool) -> _Need:
    """How much of the reserve a write may use: a deletion and its finalizers all, a status or Event most of it."""
    if removed:
        return _Need.ALL
    more = len(record.data) - (len(before.data) if before is not None else 0)
    if before is not None and more <= _SLIGHTLY:
        return _Need.ALL
    if before is not None or record.key.collection in _NEEDED:
        return _Need.SOME if more <= _MUCH else _Need.NONE
    return _Need.NONE


def _checksum(collection: str, namespace: str, name: str, revision: int, data: bytes | None) -> int:
    """CRC-32 of a row: SQLite finds damage of its trees, and none inside what they hold."""
    place = f"{collection}\0{namespace}\0{name}\0{revision}\0{data is None}\0".encode()
    return zlib.crc32(data or b"", zlib.crc32(place))


def _upgrade(connection: sqlite3.Connection) -> None:
    """Add the checksums that format 1 lacks, and the number of the format, in one transaction."""
    connection.execute("BEGIN")
    connection.execute("ALTER TABLE objects ADD COLUMN checksum INTEGER")
    connection.create_function("checksum", 5, _checksum, deterministic=True)
    connection.execute("UPDATE objects SET checksum = checksum(collection, namespace, name, revision, data)")
    connection.execute(f"PRAGMA user_version={FORMAT}")
    connection.execute("COMMIT")


def _fault_of_log(wal: Path, index: Path) -> str:
    """Damage inside the write-ahead log, "" for none.

    SQLite reads the log up to the first frame that is not what was written, and drops the rest: a power cut may cut
    the last transaction short, which was not answered. More than one after the end of what it reads is damage.
    index: SQLite's index of the log while a connection reads it.
    """
    if not wal.exists() or wal.stat().st_size <= _HEADER or not index.exists():
        return ""
    with open(wal, "rb") as file, open(index, "rb") as known:
        header = file.read(_HEADER)
        (page,) = struct.unpack(">I", header[8:12])
        (end,) = struct.unpack("=I", os.pread(known.fileno(), 4, 16))
        if not any(header) and not any(file.read(_FRAME)):
            return ""  # allocated, and never written
        if not _is_header(header):
            return f"the header of {wal.name} is not what was written"
        commits = 0
        for frame in range((wal.stat().st_size - _HEADER) // (_FRAME + page)):
            head = os.pread(file.fileno(), _FRAME, _HEADER + frame * (_FRAME + page))
            if frame >= end and head[8:16] == header[16:24]:
                commits += head[4:8] != b"\0\0\0\0"
    return f"transactions in {wal.name} after frame {end} cannot be read" if commits > 1 else ""


def _is_header(header: bytes) -> bool:
    """Whether a write-ahead log's header has its checksum."""
    magic, first, second = struct.unpack(">I20xII", header)
    if magic & ~1 != _MAGIC:
        return False
    words = struct.unpack(f"{'>' if magic & 1 else '<'}6I", header[:24])
    one = two = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return (one, two) == (first, second)


def _is_full(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" or getattr(error, "errno", 0) == errno.ENOSPC


def _full(path: Path) -> ExhaustedError:
    return ExhaustedError(f"the disk of {path} is full: nothing was written; free space on it and try again")


def _clear(error: BaseException, path: Path) -> BaseException:
    """What went wrong, in words that help."""
    if isinstance(error, TonnageError) or not isinstance(error, (sqlite3.Error, OSError)):
        return error
    name = getattr(error, "sqlite_errorname", "") or ""
    if _is_full(error):
        return _full(path)
    if name.startswith("SQLITE_NOTADB"):
        return PreconditionError(f"{path} is not a database: name another data folder")
    if name.startswith("SQLITE_CORRUPT"):
        return UnavailableError(f"the database {path} is damaged ({error}): {_REMEDY}")
    if name.startswith("SQLITE_READONLY") or getattr(error, "errno", 0) in (errno.EROFS, errno.EACCES):
        return UnavailableError(f"{path} cannot be written: it, or its file system, is read-only")
    if name.startswith("SQLITE_BUSY"):
        return BusyError(f"{path} is in use by another program")
    return UnavailableError(f"the store {path} failed: {error}; repair its disk, or restore it from a copy")
