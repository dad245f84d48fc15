"""The erase queue of persistent memory: jobs of deleted volumes, stored in their region. Blocking.

A job names the namespace by its UUID, so nothing is moved. Order of steps: the job is written, which deletes the
volume; its record is removed; at the end the namespace is destroyed, then the job removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

from tonnage.base.errors import UnavailableError
from tonnage.host.ndctl import PmemNamespace
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.wipe import EraseJob
from tonnage.storage.pools.directory.directory import Directory
from tonnage.storage.pools.directory.erase_queue import FOLDER, read_job
from tonnage.storage.pools.pmem.region import PmemRegion


class PmemErasures:
    """The jobs of a pool's regions; a job's key is the UUID of its namespace. freed: called with freed bytes."""

    def __init__(self, freed: Callable[[int], None]) -> None:
        self._freed = freed
        self._jobs: dict[str, EraseJob] = {}
        self._regions: dict[str, PmemRegion] = {}
        self._folders: dict[str, Directory] = {}  # region -> its folder of jobs
        self.faults: list[str] = []
        """Problems of jobs, and what to do about each."""

    def open(self, regions: Sequence[PmemRegion], volumes: Mapping[str, VolumeRecord]) -> list[str]:
        """Read the jobs; return the names of volumes whose record a kill has left.

        Raises: UnavailableError, HostError.
        """
        self.faults = []
        by_uuid = {str(record.uuid): record.name for record in volumes.values()}
        for region in regions:
            folder = Directory(region.directory.path / FOLDER, "pmem-erasing")
            folder.open(inside=True)
            self._folders[region.name] = folder
            folder.clean()
            jobs, damaged = folder.read_all(partial(_read, folder))
            self.faults += [
                f"namespace {key} of a deleted volume is not erased: its job {folder.path / key}.json is damaged"
                f" ({fault}): remove both (ndctl destroy-namespace)"
                for key, fault in damaged.items()
            ]
            self._jobs |= jobs
            self._regions |= dict.fromkeys(jobs, region)
        return [by_uuid[key] for key in self._jobs if key in by_uuid]

    def close(self) -> None:
        """Release the directories. Idempotent."""
        for folder in self._folders.values():
            folder.close()
        self._folders, self._jobs, self._regions = {}, {}, {}

    def add(self, region: PmemRegion, record: VolumeRecord, namespace: PmemNamespace, method: str) -> None:
        """Add a volume's namespace; durable when this returns. Raises: ExhaustedError, HostError."""
        length = namespace.size if namespace.mode == "devdax" else namespace.usable
        job = EraseJob(str(record.uuid), record.name, method, length, reserved=record.size)
        self._put(region, job)
        self._jobs[job.key], self._regions[job.key] = job, region

    def _put(self, region: PmemRegion, job: EraseJob) -> None:
        if region.name not in self._folders:
            raise UnavailableError(f"{region.name} is not open")
        self._folders[region.name].put(job.key, job)

    def jobs(self) -> Sequence[EraseJob]:
        return list(self._jobs.values())

    def used(self) -> int:
        """Bytes that count as used until they are erased."""
        return sum(job.reserved for job in self._jobs.values())

    def path(self, job: EraseJob) -> Path | None:
        """The device to erase. devdax has no writable device: it is shown raw until it is destroyed."""
        region = self._region(job)
        found = region.find(UUID(job.key))
        if found is None:
            return None
        if found.mode == "devdax":
            found = region.tool.show_raw(found)
        elif not found.device:
            found = region.tool.enable(found)
        return Path(found.device)

    def save(self, job: EraseJob) -> None:
        self._put(self._region(job), job)
        self._jobs[job.key] = job

    def finish(self, job: EraseJob) -> None:
        region = self._region(job)
        region.destroy(UUID(job.key))
        self._folders[region.name].remove(job.key)
        del self._jobs[job.key], self._regions[job.key]
        self._freed(job.reserved)

    def _region(self, job: EraseJob) -> PmemRegion:
        try:
            return self._regions[job.key]
        except KeyError:
            raise UnavailableError(f"the region of volume {job.name} is not open") from None


def _read(folder: Directory, key: str) -> EraseJob:
    UUID(key)  # raises ValueError for a key that names no namespace
    return read_job(folder, key, EraseJob)
