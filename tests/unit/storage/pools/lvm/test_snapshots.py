"""Snapshots of thick logical volumes: what they reserve, and who goes with whom."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.storage.pools.lvm.group import EXTENT, Group

from tonnage.storage.pools.base.contract import SnapshotRequest, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.tags import TagKind

pytestmark = pytest.mark.real


@pytest.fixture
def used(backend: LvmBackend) -> LvmBackend:
    """With a volume that was used."""
    request = VolumeRequest("a", 16 * EXTENT, fstype="ext4", parameters={"cowSize": "8Mi"})
    record = backend.create(request, backend.want(request))
    backend.write(replace(record, state="formatted"))
    return backend


def test_a_snapshot_reserves_its_bytes_for_changes(used: LvmBackend, group: Group) -> None:
    assert used.snapshots.reserved_bytes(used.record("a")) == 2 * EXTENT
    taken = used.snapshot(SnapshotRequest("s", "a", {"o": "1"}))
    assert (taken.from_volume, taken.owner, taken.parameters) == ("a", {"o": "1"}, {})
    assert used.find_snapshot("s") == taken
    assert [record.name for record in used.all_snapshots()] == ["s"]
    assert group.volumes["s+s"].origin == "a"


def test_a_deleted_origin_goes_with_its_last_snapshot(used: LvmBackend, group: Group) -> None:
    used.snapshot(SnapshotRequest("s", "a"))
    used.delete("a")
    assert used.records.volumes == {}
    [origin] = [lv for lv, entry in used.table.entries.items() if entry.kind is TagKind.ORIGIN]
    assert origin in group.volumes
    group.volumes["s+s"] = type(group.volumes["s+s"])(**{**vars(group.volumes["s+s"]), "origin": origin})
    used.delete_snapshot("s")
    assert (group.volumes, used.table.entries) == ({}, {})


def test_a_copy_of_a_volume_that_was_never_used_is_a_new_one(backend: LvmBackend, group: Group) -> None:
    request = VolumeRequest("a", 16 * EXTENT, fstype="ext4", parameters={"mkfsOptions": "-i 4096"})
    origin = backend.create(request, backend.want(request))
    copy = VolumeRequest("b", 16 * EXTENT, fstype="ext4", source=VolumeOrigin(volume="a"))
    made = backend.create(copy, backend.want(copy), origin)
    assert (made.state, made.mkfs, made.from_volume) == ("new", "-i 4096", "a")
    assert not any("--snapshot" in command for command in group.commands)
