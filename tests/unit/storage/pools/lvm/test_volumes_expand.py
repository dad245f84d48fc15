"""Expansion of logical volumes: the volume first, then its record; repeated calls find what is there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.storage.pools.lvm.group import EXTENT, Group

from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.lvm.backend import LvmBackend

pytestmark = pytest.mark.real


def test_a_volume_is_extended_before_its_record_says_so(backend: LvmBackend, group: Group) -> None:
    request = VolumeRequest("a", 80 * EXTENT, fstype="xfs")
    record = backend.create(request, backend.want(request))
    backend.write(replace(record, state="formatted"))
    group.commands.clear()
    larger = backend.expand("a", 100 * EXTENT)
    assert [command[0] for command in group.commands] == ["lvextend", "lvchange"]
    assert (larger.size, larger.pending, larger.made) == (100 * EXTENT, True, record.length)
    assert group.volumes["a"].size >= larger.length
    assert backend.record("a") == larger


def test_an_extension_that_a_kill_left_is_not_repeated(backend: LvmBackend, group: Group) -> None:
    request = VolumeRequest("a", 80 * EXTENT, fstype="xfs")
    backend.create(request, backend.want(request))
    group.run("lvextend", "--extents", "200", "vg/a")
    backend.table.account.read()
    group.commands.clear()
    backend.expand("a", 100 * EXTENT)
    assert [command[0] for command in group.commands] == ["lvchange"]
