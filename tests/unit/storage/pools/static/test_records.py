"""The records of a static pool's disks."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tonnage.base.errors import UnavailableError
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.wipe import EraseJob
from tonnage.storage.pools.static.records import DiskRecord, DiskRecords

VOLUME = DiskRecord("d1", "wwid=1", volume=VolumeRecord("v", 4096, UUID(int=1), block=True))
JOB = DiskRecord("d2", "wwid=2", job=EraseJob("d2", "w", "zero", 4096))


def test_a_disk_has_one_record(tmp_path: Path) -> None:
    records = DiskRecords(tmp_path / "records")
    assert not records.is_open
    records.open("p")
    records.write(VOLUME)
    records.write(JOB)
    with pytest.raises(UnavailableError, match="in use by another process"):
        DiskRecords(tmp_path / "records").open("p")
    records.close()
    records.open("p")
    assert records.disks == {"d1": VOLUME, "d2": JOB}
    for _ in range(2):
        records.remove("d2")
    assert records.disks == {"d1": VOLUME}
    records.close()


@pytest.mark.parametrize(
    "record", [DiskRecord("d1", "x"), DiskRecord("d9", "x", job=JOB.job), DiskRecord("d1", "x", job=JOB.job)]
)
def test_records_that_contradict_themselves_are_left_alone(record: DiskRecord, tmp_path: Path) -> None:
    records = DiskRecords(tmp_path / "records")
    records.open()
    records._directory.put("d1", record)
    records.close()
    records.open()
    assert (list(records.damaged), records.disks) == (["d1"], {})
    records.close()


def test_the_volume_of_a_damaged_record_is_named(tmp_path: Path) -> None:
    records = DiskRecords(tmp_path / "records")
    records.open()
    records.write(VOLUME)
    records.close()
    path = tmp_path / "records" / "d1.json"
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    records.open()
    assert records.volumes == {"v": "d1"}
    records.close()
