"""The table of an LVM pool: records found in tags, and what is reserved."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from tests.unit.storage.pools.lvm.group import EXTENT, Group

from tonnage.base.errors import ExhaustedError, HostError
from tonnage.host.lvm import LogicalVolume
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.lvm import tags
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.tags import TagEntry, TagKind

pytestmark = pytest.mark.real
RECORD = VolumeRecord("a", EXTENT, UUID(int=1), length=EXTENT, block=True)


def _volume(entry: TagEntry) -> LogicalVolume:
    name = tags.lv_name("tonnage-unit-test", entry)
    return LogicalVolume(name, EXTENT, tuple(tags.encode(entry)), "linear")


def test_records_are_read_and_foreign_and_damaged_ones_left(backend: LvmBackend, group: Group) -> None:
    volume = _volume(TagEntry(TagKind.VOLUME, RECORD))
    damaged = replace(volume, name="b", tags=(*volume.tags, "tonnage.more=1"))
    group.volumes = {"a": volume, "b": damaged, "theirs": LogicalVolume("theirs", EXTENT, (), "linear")}
    backend.table.account.read()
    assert backend.records.volumes == {"a": RECORD}
    assert list(backend.records.damaged) == ["b"]
    assert backend.records.used == 2 * EXTENT
    with pytest.raises(HostError, match=r"record of volume b .* is damaged"):
        backend.record("b")


def test_what_is_being_made_is_counted_until_it_is_kept(backend: LvmBackend) -> None:
    table = backend.table
    table.records.most = 2 * EXTENT
    with table.counting("a", EXTENT):
        assert table.records.used == EXTENT
        with pytest.raises(ExhaustedError), table.counting("b", 2 * EXTENT):
            pass
        table.keep("a", TagEntry(TagKind.VOLUME, RECORD), key="a")
    assert (table.records.used, table.records.volumes) == (EXTENT, {"a": RECORD})


def test_a_change_is_one_command_with_what_differs(backend: LvmBackend, group: Group) -> None:
    group.volumes = {"a": _volume(TagEntry(TagKind.VOLUME, RECORD))}
    backend.table.account.read()
    backend.modify("a", {"iops": "5"})
    [command] = group.commands
    assert "tonnage.m.iops=5" in command
    backend.table.account.read()
    assert backend.record("a").mutable == {"iops": "5"}
