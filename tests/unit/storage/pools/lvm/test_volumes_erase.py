"""The erase queue of an LVM pool: jobs are in the tags of deleted volumes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.unit.storage.pools.lvm.group import EXTENT, Group

from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.lvm.backend import LvmBackend

pytestmark = pytest.mark.real


def test_a_job_survives_the_process_and_ends(
    backend: LvmBackend, group: Group, again: Callable[[], LvmBackend]
) -> None:
    request = VolumeRequest("a", 16 * EXTENT, fstype="ext4", parameters={"erase": "zero"})
    record = backend.create(request, backend.want(request))
    backend.write(replace(record, state="formatted"))
    backend.delete("a")
    [job] = backend.erasures.jobs()
    assert (job.name, job.method, job.reserved, job.done) == ("a", "zero", record.size, 0)
    backend.erasures.save(replace(job, done=EXTENT))
    [job] = again().erasures.jobs()
    assert job.done == EXTENT
    assert backend.records.used == record.size
    backend.erasures.finish(job)
    backend.erasures.finish(job)
    assert (list(backend.erasures.jobs()), group.volumes, backend.records.used) == ([], {}, 0)
