"""Recovery of a volume group: suspended devices are resumed, half-made volumes removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from tests.unit.pools.lvm.conftest import EXTENT, Group

from tonnage.host.lvm import LogicalVolume
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.lvm import tags
from tonnage.pools.lvm.backend import LvmBackend
from tonnage.pools.lvm.table import refresh
from tonnage.pools.lvm.tags import TagEntry, TagKind

pytestmark = pytest.mark.real
RECORD = VolumeRecord("a", EXTENT, UUID(int=1), length=EXTENT, block=True, state="formatted")


def test_suspended_devices_are_resumed(backend: LvmBackend, group: Group) -> None:
    refresh(backend.table)
    assert group.commands == []
    group.suspended = ["vg-a"]
    refresh(backend.table)
    assert group.commands == [["vgchange", "--refresh", "tonnage-unit-test"]]


def test_what_a_kill_left_is_removed_and_volumes_stay(
    backend: LvmBackend, group: Group, again: Callable[[], LvmBackend]
) -> None:
    for kind, uuid in ((TagKind.COPY, 2), (TagKind.SCRATCH, 3), (TagKind.VOLUME, 1)):
        record = VolumeRecord("a" if kind is TagKind.VOLUME else "b", EXTENT, UUID(int=uuid), length=EXTENT, block=True)
        entry = TagEntry(kind, record)
        name = tags.lv_name("tonnage-unit-test", entry)
        group.volumes[name] = LogicalVolume(name, EXTENT, tuple(tags.encode(entry)), "linear")
    again()
    assert set(group.volumes) == {"a"}
    assert ["lvchange", "--activate", "y", "tonnage-unit-test/a"] in group.commands, "LVM may not have come to it"


def test_records_of_the_first_format_get_a_checksum(
    backend: LvmBackend, group: Group, again: Callable[[], LvmBackend]
) -> None:
    old = VolumeRecord("a", EXTENT, UUID(int=1), length=EXTENT, block=True, state="formatted", version=1)
    entry = TagEntry(TagKind.VOLUME, old)
    group.volumes["a"] = replace(LogicalVolume("a", EXTENT, (), "linear"), tags=tuple(tags.encode(entry)))
    assert again().record("a") == RECORD
    assert any(tag.startswith("tonnage.sum=") for tag in group.volumes["a"].tags)
