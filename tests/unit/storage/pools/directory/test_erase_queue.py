"""The erase queue of a directory: content moves there with a job, and both go at the end."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace

from tonnage.base.errors import UnavailableError
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.wipe import EraseJob
from tonnage.storage.pools.directory.erase_queue import Erasures

RECORD = VolumeRecord("v", 4096, uuid4(), length=4096, block=True)


def _content(folder: Path) -> Path:
    path = folder / "v.img"
    path.write_bytes(b"x" * 4096)
    return path


def test_a_job_survives_the_process_and_ends(tmp_path: Path) -> None:
    freed: list[EraseJob] = []
    queue = Erasures(tmp_path, "image", freed.append)
    queue.open()
    assert not (tmp_path / ".erasing").exists()
    queue.add(RECORD, "zero", _content(tmp_path))
    assert not (tmp_path / "v.img").exists()
    assert queue.holds(RECORD)
    [job] = queue.jobs()
    queue.save(replace(job, done=512))
    queue.close()
    with pytest.raises(UnavailableError):
        queue.path(job)
    queue.open()
    [job] = queue.jobs()
    assert (job.name, job.done, job.reserved, queue.used()) == ("v", 512, 4096, 4096)
    path = queue.path(job)
    assert path is not None
    assert path.read_bytes() == b"x" * 4096
    queue.finish(job)
    assert (list(queue.jobs()), queue.path(job), [one.name for one in freed]) == ([], None, ["v"])
    queue.close()


def test_content_that_lost_its_job_is_kept_and_reported(tmp_path: Path) -> None:
    queue = Erasures(tmp_path, "image", lambda _: None)
    queue.open()
    queue.add(RECORD, "zero", _content(tmp_path))
    [job] = queue.jobs()
    queue.close()
    (tmp_path / ".erasing" / f"{job.key}.json").unlink()
    queue.open()
    assert (list(queue.jobs()), queue.used()) == ([], 4096)
    [fault] = queue.faults()
    assert f"{job.key}.content is neither erased nor removed" in fault
    assert "there is none" in fault
    queue.close()


def test_a_job_without_content_is_forgotten_and_a_damaged_one_stays(tmp_path: Path) -> None:
    queue = Erasures(tmp_path, "image", lambda _: None)
    queue.open()
    for _ in range(2):
        queue.add(replace(RECORD, uuid=uuid4()), "zero", _content(tmp_path))
    first, second = queue.jobs()
    queue.close()
    (tmp_path / ".erasing" / f"{first.key}.content").unlink()
    (tmp_path / ".erasing" / f"{second.key}.json").write_text("{}")
    queue.open()
    assert list(queue.jobs()) == []
    assert queue.used() == 4096
    [fault] = queue.faults()
    assert "is neither erased nor removed" in fault
    queue.close()
