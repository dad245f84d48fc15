"""The store that survives: everything is served from memory, every write is in SQLite before it is answered.

One thread writes. What gathers while it is busy goes into the next commit together (WAL, synchronous=FULL), as one
statement, so that the thread and the event loop rarely wait for each other. A write becomes visible, to readers and
watchers alike, when it is durable. Deletions leave a row without data until later, which keeps the revision counter.
The history of watches is not kept: after a start older revisions are gone (410) and clients list again.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import os
import sqlite3
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tonnage.apiserver.store import HISTORY_BYTES, Extract, Key, MemoryStore, Obj, Record
from tonnage.errors import Busy, Exhausted, Precondition, TonnageError, Unavailable

APPLICATION_ID = 0x746F6E6E  # "tonn"
FORMAT = 1
_BATCH = 128
_TOMBSTONES = 1024
_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    collection TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    revision INTEGER NOT NULL,
    data BLOB,
    PRIMARY KEY (collection, namespace, name)
)
"""
_PURGE = "DELETE FROM objects WHERE data IS NULL AND revision < (SELECT max(revision) FROM objects)"
_Row = tuple[str, str, str, int, bytes | None]


class _Write(NamedTuple):
    record: Record
    removed: bool
    done: asyncio.Future[None]

    def row(self) -> _Row:
        return (*self.record.key, self.record.revision, None if self.removed else self.record.data)


class SqliteStore(MemoryStore):
    """A Store in one SQLite file, opened by one process at a time."""

    def __init__(self, path: Path, fields: Extract, *, history_bytes: int = HISTORY_BYTES) -> None:
        super().__init__(fields, history_bytes=history_bytes)
        self._path = path
        self._file: _File | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._waiting: deque[_Write] = deque()
        self._pending: dict[Key, asyncio.Future[None]] = {}
        self._writing = False

    async def start(self) -> None:
        """See Store. Raises Busy (another process has it), Precondition (not ours), Unavailable."""
        if self._file is not None:
            return
        loop = asyncio.get_running_loop()
        file = _File(self._path)
        rows, revision = await loop.run_in_executor(self._thread, file.open)
        self._file = file
        self._load((Record(Key(*place), at, data, self._extract) for *place, at, data in rows), revision)

    async def stop(self) -> None:
        """See Store."""
        while self._pending:
            await asyncio.wait(list(self._pending.values()))
        file, self._file = self._file, None
        if file is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, file.close)
        self._thread.shutdown(wait=False)

    async def put(self, key: Key, obj: Obj, expected: int) -> Record:
        """See Store."""
        return await self._write(key, obj, expected, removed=False)

    async def remove(self, key: Key, last: Obj, expected: int) -> Record:
        """See Store."""
        return await self._write(key, last, expected, removed=True)

    async def _write(self, key: Key, obj: Obj, expected: int, *, removed: bool) -> Record:
        while (before := self._pending.get(key)) is not None:
            await asyncio.wait((before,))
        if self._file is None:
            raise Unavailable(f"the store {self._path} is not open")
        self._check(key, expected)
        loop = asyncio.get_running_loop()
        write = _Write(self._stamp(key, obj), removed, loop.create_future())
        self._pending[key] = write.done
        self._waiting.append(write)
        if not self._writing:
            self._writing = True
            loop.call_soon(self._commit)  # whoever else writes in this turn of the loop joins
        try:
            await asyncio.shield(write.done)
        except asyncio.CancelledError:  # the write goes on: who holds locks over it must not let them go before
            await asyncio.wait((write.done,))
            raise
        return write.record

    def _commit(self) -> None:
        """Hand the next batch to the thread."""
        assert self._file is not None
        batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        rows = [write.row() for write in batch]
        job = asyncio.get_running_loop().run_in_executor(self._thread, self._file.write, rows)
        job.add_done_callback(functools.partial(self._committed, batch))

    def _committed(self, batch: list[_Write], job: asyncio.Future[None]) -> None:
        """Show and answer a batch, or answer its error; then go on."""
        error = asyncio.CancelledError() if job.cancelled() else job.exception()
        for write in batch:
            del self._pending[write.record.key]
            if error is None:
                self._apply(write.record, removed=write.removed)
                write.done.set_result(None)
            else:
                write.done.set_exception(_clear(error, self._path))
                write.done.exception()  # nobody may be waiting any more: that is no reason to complain
        if self._waiting:
            self._commit()
        else:
            self._writing = False


class _File:
    """The SQLite file and its lock. Lives in the store's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = -1
        self._connection: sqlite3.Connection | None = None
        self._tombstones = 0

    def open(self) -> tuple[Sequence[tuple[str, str, str, int, bytes]], int]:
        """Lock and open the file; all rows, and the revision."""
        try:
            self._take_lock()
            self._examine()
            self._connection = self._connect()
            self._prepare(self._connection)
            self._connection.execute(_PURGE)
            (revision,) = self._connection.execute("SELECT coalesce(max(revision), 0) FROM objects").fetchone()
            read = "SELECT collection, namespace, name, revision, data FROM objects WHERE data IS NOT NULL"
            return self._connection.execute(read).fetchall(), revision
        except BaseException as error:
            self.close()
            raise _clear(error, self._path) from error

    def _take_lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(self._path.with_name(self._path.name + ".lock"), flags, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise Busy(f"{self._path} is in use by another process (pid {owner}): stop it first") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _examine(self) -> None:
        """Look whether the file is whole before anything is written to it: a damaged one stays as it is.

        Opened to be read only, for the end of a connection that may write folds the log into the file.
        """
        if not self._path.is_file() or self._path.is_symlink() or not self._path.stat().st_size:
            return
        address = f"{self._path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=1.0)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            first = str(found).splitlines()[-1]
            raise Unavailable(f"the database {self._path} is damaged: restore it from a copy ({first})")

    def _connect(self) -> sqlite3.Connection:
        """Open the database, made with mode 0600."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, cached_statements=_BATCH + 16, timeout=1.0
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if (tables or owner) and owner != APPLICATION_ID:
            raise Precondition(f"{self._path} is a database of another program: name another data folder")
        if owner and version > FORMAT:
            raise Precondition(f"{self._path} has format {version}; this version of tonnage reads up to {FORMAT}")
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA cache_size=-256")  # KiB: everything is read from memory, SQLite is only written to
        connection.execute("PRAGMA journal_size_limit=16777216")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")  # before the table: a kill leaves it ours
        connection.execute(_SCHEMA)

    def write(self, rows: Sequence[_Row]) -> None:
        """Make rows durable: all or, when it raises, none."""
        assert self._connection is not None
        self._connection.execute(_upsert(len(rows)), [value for row in rows for value in row])
        self._tombstones += sum(1 for row in rows if row[4] is None)
        if self._tombstones > _TOMBSTONES:
            self._tombstones = 0
            try:
                self._connection.execute(_PURGE)
            except sqlite3.Error:  # the write is done; rows without data may stay
                return

    def close(self) -> None:
        """Close the file, then let the lock go. May be repeated."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@functools.cache
def _upsert(rows: int) -> str:
    """One statement for so many rows: the thread gives up the interpreter's lock once, not once a row."""
    values = ",".join(["(?,?,?,?,?)"] * rows)
    change = "DO UPDATE SET revision = excluded.revision, data = excluded.data"
    return f"INSERT INTO objects VALUES {values} ON CONFLICT (collection, namespace, name) {change}"


def _clear(error: BaseException, path: Path) -> BaseException:
    """What went wrong, in words that help."""
    if isinstance(error, TonnageError) or not isinstance(error, (sqlite3.Error, OSError)):
        return error
    name = getattr(error, "sqlite_errorname", "") or ""
    if name == "SQLITE_FULL" or getattr(error, "errno", 0) == errno.ENOSPC:
        return Exhausted(f"the disk of {path} is full: nothing was written; make room and try again")
    if name.startswith("SQLITE_NOTADB"):
        return Precondition(f"{path} is not a database: name another data folder")
    if name.startswith("SQLITE_CORRUPT"):
        return Unavailable(f"the database {path} is damaged: restore it from a copy ({error})")
    if name.startswith("SQLITE_READONLY") or getattr(error, "errno", 0) in (errno.EROFS, errno.EACCES):
        return Unavailable(f"{path} cannot be written: it, or its file system, is read-only")
    if name.startswith("SQLITE_BUSY"):
        return Busy(f"{path} is in use by another program")
    return Unavailable(f"the store {path} failed: {error}")
