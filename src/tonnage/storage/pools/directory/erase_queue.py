"""The erase queue of a pool in a directory: contents of deleted volumes in `.erasing`. Blocking.

It is a Directory of its own, made with the first job. Order of steps, so that a kill between any two loses nothing and
restores nothing: the job is written; the content is moved here, which deletes the volume; the volume's record is
removed; at the end the content is removed, then the job. So a job without content is one whose volume was never
deleted, or whose content is gone. The next open removes it either way.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

import msgspec

from tonnage.base.errors import UnavailableError, host_errors
from tonnage.host import files
from tonnage.storage.pools.base.record import FORMAT, VolumeRecord
from tonnage.storage.pools.core.wipe import EraseJob, check
from tonnage.storage.pools.directory.directory import Directory

log = logging.getLogger(__name__)
FOLDER = ".erasing"
J = TypeVar("J", bound=EraseJob)
_RECORD, _CONTENT = ".json", ".content"


class _Entry(EraseJob, frozen=True, kw_only=True):
    """A job as written. volume: the UUID of the volume's record."""

    volume: UUID


class Erasures:
    """Jobs and their contents. freed: called with the job when its bytes are free."""

    def __init__(self, pool: Path, kind: str, freed: Callable[[EraseJob], None]) -> None:
        self._folder = pool / FOLDER
        self._freed = freed
        self._entries: dict[str, _Entry] = {}
        self._unreadable: dict[str, str] = {}
        self._directory = Directory(self._folder, f"{kind}-erasing")

    def open(self) -> None:
        """Read the jobs. Raises: UnavailableError, HostError, OSError."""
        self._entries, self._unreadable = {}, {}
        if not self._directory.open_existing():
            return
        entries, self._unreadable = self._directory.read_all(lambda key: read_job(self._directory, key, _Entry))
        for key, entry in entries.items():
            if self._content(key).exists():
                self._entries[key] = entry
            else:
                log.info("nothing left to erase volume=%s key=%s", entry.name, key)
                self._directory.remove(key)
        for path in sorted(self._folder.glob(f"*{_CONTENT}")):
            if path.stem not in entries:
                self._unreadable.setdefault(path.stem, "there is none")

    def faults(self) -> list[str]:
        """Problems of jobs, and what to do about each."""
        return [
            f"deleted content {self._content(key)} is neither erased nor removed: its job {self._folder / key}{_RECORD}"
            f" is damaged ({fault}): erase the content yourself (shred), then remove both"
            for key, fault in sorted(self._unreadable.items())
        ]

    def close(self) -> None:
        """Release the directory. Idempotent."""
        self._entries = {}
        self._directory.close()

    def add(self, record: VolumeRecord, method: str, content: Path) -> None:
        """Move a volume's content here, durably.

        Raises: ExhaustedError when the job cannot be written (nothing has changed then), HostError, UnavailableError.
        """
        self._add(
            _Entry(uuid4().hex, record.name, method, record.length, reserved=record.size, volume=record.uuid), content
        )

    def add_rubbish(self, content: Path) -> None:
        """Move leftovers here that no volume has and that hold bytes to overwrite. Raises: as add()."""
        length = os.stat(content).st_size
        self._add(_Entry(uuid4().hex, content.stem, "zero", length, volume=uuid4()), content)

    def _add(self, entry: _Entry, content: Path) -> None:
        with host_errors(f"cannot move {content} to {self._folder}"):
            self._directory.open_inside()
            self._directory.put(entry.key, entry)
            self._move(entry, content)

    def _move(self, entry: _Entry, content: Path) -> None:
        try:
            os.rename(content, self._content(entry.key))
        except OSError:
            self._directory.remove(entry.key)
            raise
        self._entries[entry.key] = entry
        files.sync(self._folder)  # here first: content in neither directory would never be erased
        files.sync(content.parent)

    def holds(self, record: VolumeRecord) -> bool:
        """Whether a volume's content is here, also after an add() that failed later."""
        entries = list(self._entries.values())  # at once: others add and finish meanwhile
        return any(entry.volume == record.uuid and entry.name == record.name for entry in entries)

    def jobs(self) -> Sequence[EraseJob]:
        return list(self._entries.values())

    def path(self, job: EraseJob) -> Path | None:
        self._check()
        path = self._content(job.key)
        return path if path.exists() else None

    def save(self, job: EraseJob) -> None:
        self._check()
        entry = msgspec.structs.replace(self._entries[job.key], method=job.method, done=job.done)
        self._directory.put(job.key, entry)
        self._entries[job.key] = entry

    def finish(self, job: EraseJob) -> None:
        self._check()
        with host_errors(f"cannot remove {self._content(job.key)}"):
            self._content(job.key).unlink(missing_ok=True)
        self._directory.remove(job.key)
        if self._entries.pop(job.key, None) is not None:
            self._freed(job)

    def used(self) -> int:
        """Bytes that count as used until they are erased."""
        sizes = (os.stat(path).st_size for path in map(self._content, self._unreadable) if path.exists())
        return sum(entry.reserved for entry in self._entries.values()) + sum(sizes)

    def _content(self, key: str) -> Path:
        return self._folder / f"{key}{_CONTENT}"

    def _check(self) -> None:
        if not self._directory.is_open:
            raise UnavailableError(f"{self._folder} is not open")


def read_job(directory: Directory, key: str, kind: type[J]) -> J:
    """Read a job; one of the first format is written with a checksum.

    Raises: OSError, ValueError when it is damaged.
    """
    job = directory.read_as(key, kind)
    if job.key != key:
        raise ValueError(f"it is of {job.key!r}")
    check(job)
    if job.version != FORMAT:
        job = msgspec.structs.replace(job, version=FORMAT)
        directory.put(key, job)
    return job
