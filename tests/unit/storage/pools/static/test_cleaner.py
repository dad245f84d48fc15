"""Cleaners: what they leave of a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import HostError, InvalidError
from tonnage.host.descriptor import opened
from tonnage.storage.pools.core.wipe import EraseJob
from tonnage.storage.pools.static.cleaner import Cleaning, cleaner_of, job_for, wipe_signatures
from tonnage.storage.pools.static.discovery import StaticDisk
from tonnage.storage.pools.static.records import DiskRecord, DiskRecords

MI = 1024**2


def test_names() -> None:
    assert cleaner_of({}) == "quick"
    assert cleaner_of({"cleaner": "shred"}) == "shred"
    with pytest.raises(InvalidError, match="cleaner: 'bleach' is unknown"):
        cleaner_of({"cleaner": "bleach"})


def test_signatures_are_wiped_wherever_they_are(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(b"x" * 80 * MI)
    with opened(disk, os.O_RDWR) as fd:
        wipe_signatures(fd)
    content = disk.read_bytes()
    assert not any(content[: 2 * MI] + content[-2 * MI :] + content[64 * MI : 64 * MI + 4096])
    assert content[2 * MI : 64 * MI] == b"x" * 62 * MI


def test_a_disk_is_free_when_it_is_clean(tmp_path: Path) -> None:
    (tmp_path / "disk" / "inner").mkdir(parents=True)
    (tmp_path / "disk" / "inner" / "file").touch()
    disk = StaticDisk("disk", tmp_path / "disk", 4096, "id", "0:1", fstype="tmpfs")
    freed: list[str] = []
    records = DiskRecords(tmp_path / "records")
    records.open()
    job = job_for(disk, "v", "quick")
    assert job.is_done
    records.write(DiskRecord("disk", "id", job=job))
    cleaning = Cleaning(records, lambda _: disk, freed.append)
    assert cleaning.jobs() == [job]
    cleaning.finish(job)
    assert (list(disk.path.iterdir()), freed, list(cleaning.jobs())) == ([], ["disk"], [])
    with pytest.raises(HostError, match="is a mount now"):
        cleaning.path(EraseJob("disk", "v", "zero", 4096))
    records.close()
