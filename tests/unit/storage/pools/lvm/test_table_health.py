"""The health of logical volumes: what the kernel and LVM report, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.storage.pools.lvm.group import EXTENT, Group

from tonnage.host import dm
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.table import is_lost_snapshot, volume_fault

pytestmark = pytest.mark.real


def test_faults(backend: LvmBackend, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    request = VolumeRequest("a", 16 * EXTENT, fstype="ext4")
    record = backend.create(request, backend.want(request))

    def fault() -> str:
        backend.table.account.read()
        return volume_fault(backend.table, record)

    assert fault() == ""
    volume = group.volumes["a"]
    group.volumes["a"] = replace(volume, health="partial")
    assert "a disk that it needs is missing" in fault()
    group.volumes["a"] = volume
    monkeypatch.setattr(dm, "status", lambda _: ("raid", "raid1 2 AD 100/100"))
    assert "only 1 of its 2 copies are there" in fault()
    del group.volumes["a"]
    assert "is gone" in volume_fault(backend.table, record) or "is gone" in fault()


@pytest.mark.parametrize(("status", "is_lost"), [("Invalid", True), ("Overflow", True), ("16/2048 16", False)])
def test_an_overflowed_snapshot_is_lost(status: str, is_lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dm, "status", lambda _: ("snapshot", status))
    assert is_lost_snapshot("vg0", "s+a") == is_lost
