"""The erase queue of persistent memory: a job names a namespace, and survives the process."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from tonnage.base.errors import UnavailableError
from tonnage.host.ndctl import PmemNamespace
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.directory.directory import Directory
from tonnage.storage.pools.pmem.erase_queue import PmemErasures
from tonnage.storage.pools.pmem.region import PmemRegion

MI = 1024**2
RECORD = VolumeRecord("v", 8 * MI, uuid4(), length=16 * MI, fstype="ext4", state="formatted")


class Home(PmemRegion):
    """A region whose records are in a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__("region0")
        path.mkdir(exist_ok=True)
        self.directory = Directory(path, "pmem")
        self.namespaces = {RECORD.uuid: PmemNamespace("n", "region0", RECORD.uuid, "v", 32 * MI, "fsdax", "/dev/p", 9)}

    def find(self, uuid: UUID) -> PmemNamespace | None:
        return self.namespaces.get(uuid)

    def destroy(self, uuid: UUID) -> None:
        self.namespaces.pop(uuid, None)


def test_a_job_survives_the_process_and_ends(tmp_path: Path) -> None:
    freed: list[int] = []
    home, queue = Home(tmp_path / "home"), PmemErasures(freed.append)
    assert queue.open([home], {}) == []
    queue.add(home, RECORD, home.namespaces[RECORD.uuid], "zero")
    [job] = queue.jobs()
    queue.save(replace(job, done=5))
    queue.close()
    with pytest.raises(UnavailableError):
        queue.path(job)
    assert queue.open([home], {"v": RECORD}) == ["v"], "a kill left its record"
    [job] = queue.jobs()
    assert (job.name, job.length, job.done, queue.used()) == ("v", 9, 5, 8 * MI)
    assert queue.path(job) == Path("/dev/p")
    queue.finish(job)
    assert (list(queue.jobs()), home.namespaces, freed) == ([], {}, [8 * MI])
    queue.close()


def test_a_damaged_job_is_named(tmp_path: Path) -> None:
    home, queue = Home(tmp_path / "home"), PmemErasures(lambda _: None)
    queue.open([home], {})
    queue.close()
    (home.directory.path / ".erasing" / f"{RECORD.uuid}.json").write_text("{}")
    queue.open([home], {})
    assert list(queue.jobs()) == []
    [fault] = queue.faults
    assert "ndctl destroy-namespace" in fault
    queue.close()
