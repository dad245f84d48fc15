"""Logical volumes: names are freed, foreign ones stay, a deleted origin stays until its snapshots are gone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.storage.pools.lvm.group import EXTENT, Group

from tonnage.base.errors import AlreadyExistsError, PreconditionError
from tonnage.host.lvm import LogicalVolume
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.tags import TagKind

pytestmark = pytest.mark.real


def _make(backend: LvmBackend, name: str, **more: str) -> None:
    request = VolumeRequest(name, 8 * EXTENT, fstype="ext4", parameters=more)
    backend.create(request, backend.want(request))


def test_the_name_of_a_foreign_volume_is_not_taken(backend: LvmBackend, group: Group) -> None:
    group.volumes["a"] = LogicalVolume("a", EXTENT, (), "linear")
    backend.table.account.read()
    with pytest.raises(AlreadyExistsError, match="not tonnage's"):
        _make(backend, "a")
    assert group.commands == []


def test_a_failed_creation_leaves_nothing(backend: LvmBackend, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.volumes, "complete", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
    with pytest.raises(RuntimeError):
        _make(backend, "a")
    assert (group.volumes, backend.records.used, backend.table.entries) == ({}, 0, {})


def test_a_used_volume_that_is_to_be_erased_stays_under_another_name(backend: LvmBackend, group: Group) -> None:
    _make(backend, "a", erase="zero")
    backend.write(replace(backend.record("a"), state="formatted"))
    backend.delete("a")
    [(name, entry)] = backend.table.entries.items()
    assert name.startswith("e+")
    assert set(group.volumes) == {name}
    assert (entry.kind, entry.method) == (TagKind.ERASING, "zero")


def test_a_foreign_snapshot_keeps_its_origin(backend: LvmBackend, group: Group) -> None:
    _make(backend, "a")
    group.volumes["backup"] = LogicalVolume("backup", EXTENT, (), "linear", origin="a")
    backend.table.account.read()
    with pytest.raises(PreconditionError, match="backup, which is not tonnage's"):
        backend.delete("a")
