"""The LVM back end over a group in memory: what it makes, offers and rejects."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.storage.pools.lvm.group import EXTENT, Group

from tonnage.base.errors import AlreadyExistsError, InvalidError, OutOfRangeError, UnavailableError
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.thin_pool import LvmLimits

pytestmark = pytest.mark.real
MI = 1024**2


def test_a_life(backend: LvmBackend, group: Group, again: Callable[[], LvmBackend]) -> None:
    request = VolumeRequest("a", 10 * MI, fstype="ext4")
    made = backend.create(request, backend.want(request))
    assert [command[0] for command in group.commands] == ["lvcreate", "lvrename"]
    assert set(group.volumes) == {"a"}
    assert again().record("a") == made
    backend.delete("a")
    assert group.volumes == {}
    backend.delete("a")


def test_its_disks_are_known_while_a_command_hangs(backend: LvmBackend) -> None:
    with ThreadPoolExecutor(1) as threads, backend.table.account.lock:
        assert threads.submit(backend.devices).result(timeout=60) == [Path("/dev/a")]


def test_a_volume_that_lost_its_tags_is_reported_and_left_alone(
    backend: LvmBackend, group: Group, again: Callable[[], LvmBackend]
) -> None:
    name = "pvc-0a53b1d5-4b5c-4a35-9b4e-1f2e3d4c5b6a"
    for request in (VolumeRequest(name, 10 * MI), VolumeRequest("b", 10 * MI)):
        backend.create(request, backend.want(request))
    group.volumes[name] = replace(group.volumes[name], tags=("of-others",))
    group.volumes["other"] = replace(group.volumes[name], name="other")
    backend = again()
    [problem] = backend.problems([])
    assert f"/{name}: it has a volume's name and no tags of tonnage, so it is left alone" in problem
    with pytest.raises(AlreadyExistsError, match="not tonnage's: it is left alone"):
        backend.create(VolumeRequest(name, 10 * MI), backend.want(VolumeRequest(name, 10 * MI)))
    backend.delete(name)
    assert set(group.volumes) == {name, "b", "other"}


def test_raw_block_volumes_have_whole_extents(backend: LvmBackend) -> None:
    assert backend.want(VolumeRequest("a", 5 * MI, block=True)).size == 2 * EXTENT
    with pytest.raises(OutOfRangeError, match="at least 8Mi"):
        backend.want(VolumeRequest("a", 5 * MI, limit=6 * MI, block=True))


def test_room_is_what_the_group_has_less_what_file_systems_take(backend: LvmBackend) -> None:
    raw, ext4 = backend.capacity("", {}, block=True), backend.capacity("ext4", {}, block=False)
    assert raw.largest == 1000 * EXTENT
    assert raw.largest - 200 * MI < ext4.largest < raw.largest


def test_rejections(backend: LvmBackend) -> None:
    with pytest.raises(OutOfRangeError, match="needs 2 disks, volume group tonnage-unit-test has 1"):
        backend.want(VolumeRequest("a", MI, fstype="ext4", parameters={"type": "raid1"}))
    with pytest.raises(InvalidError, match="type="):
        backend.check({"type": "raid7"}, "ext4", block=False)
    closed = LvmBackend("p", "vg0", LvmLimits())
    with pytest.raises(UnavailableError, match="not open"):
        closed.capacity("ext4", {}, block=False)
