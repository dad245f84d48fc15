"""Recovery of a volume group: suspended devices are resumed, half-made volumes removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs
from tests.unit.storage.pools.lvm.group import EXTENT, Group

from tonnage.host import lvm
from tonnage.host.lvm import LogicalVolume
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs import online
from tonnage.storage.pools.lvm import tags
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.table import refresh
from tonnage.storage.pools.lvm.tags import TagEntry, TagKind

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


def test_what_is_frozen_is_thawed_before_any_command(
    backend: LvmBackend, group: Group, again: Callable[[], LvmBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LVM would suspend the device of a frozen file system; one that is suspended already is resumed first."""
    thawed: dict[str, int] = {}

    def thaw(_roots: object, record: VolumeRecord, mark: Path, **_: object) -> None:
        thawed[record.name] = len(group.commands)
        mark.unlink()

    monkeypatch.setattr(online, "thaw_left", thaw)
    for number, name in enumerate(("a", "b"), 1):
        record = structs.replace(RECORD, name=name, uuid=UUID(int=number), block=False, fstype="ext4")
        group.volumes[name] = LogicalVolume(
            name, EXTENT, tuple(tags.encode(TagEntry(TagKind.VOLUME, record))), "linear"
        )
        group.devices[name] = f"/dev/none/{name}"
        backend.table.frozen_mark(name).touch()
    left = TagEntry(TagKind.COPY, structs.replace(RECORD, name="c", uuid=UUID(int=3)))
    name = tags.lv_name("tonnage-unit-test", left)
    group.volumes[name] = LogicalVolume(name, EXTENT, tuple(tags.encode(left)), "linear", origin="a")
    group.commands, group.suspended = [], [lvm.mapper_name("tonnage-unit-test", "b")]
    again()
    assert thawed == {"a": 0, "b": 1}
    assert group.commands[0][0] == "vgchange"
    assert not backend.table.frozen_mark("b").exists()


def test_a_mark_of_a_volume_that_is_not_active_says_nothing(
    backend: LvmBackend, group: Group, again: Callable[[], LvmBackend]
) -> None:
    entry = TagEntry(TagKind.VOLUME, RECORD)
    group.volumes["a"] = LogicalVolume("a", EXTENT, tuple(tags.encode(entry)), "linear")
    backend.table.frozen_mark("a").touch()
    again()
    assert not backend.table.frozen_mark("a").exists()


def test_records_of_the_first_format_get_a_checksum(
    backend: LvmBackend, group: Group, again: Callable[[], LvmBackend]
) -> None:
    old = VolumeRecord("a", EXTENT, UUID(int=1), length=EXTENT, block=True, state="formatted", version=1)
    entry = TagEntry(TagKind.VOLUME, old)
    group.volumes["a"] = replace(LogicalVolume("a", EXTENT, (), "linear"), tags=tuple(tags.encode(entry)))
    assert again().record("a") == RECORD
    assert any(tag.startswith("tonnage.sum=") for tag in group.volumes["a"].tags)
