"""The back end of a directory: leftovers, failures half-way, and what is counted."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tonnage.base.errors import ExhaustedError, HostError, UnavailableError
from tonnage.storage.pools.base.contract import PoolLimits, VolumeRequest
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.directory.backend import DirectoryBackend, is_overwritten
from tonnage.storage.pools.image.backend import make_backend

pytestmark = pytest.mark.real
MI = 1024**2
REQUEST = VolumeRequest("v", 8 * MI, block=True)


@pytest.fixture
def backend(real_folder: Path) -> DirectoryBackend:
    limits = PoolLimits(100 * MI, sparse=True, ratio=float("inf"))
    made = make_backend(real_folder / "pool", limits, disks=Disks())
    made.name = "p"
    made.open()
    return made


def test_order_of_steps(backend: DirectoryBackend) -> None:
    record = backend.create(REQUEST, backend.want(REQUEST))
    assert backend.folder.content("v").stat().st_size == record.length == 8 * MI
    assert backend.records.used == 8 * MI
    for name in (".making-half", "half.img", f".deleted-old-{record.uuid.hex}.img", ".making-v"):
        (backend.folder.path / name).touch()
    backend.close()
    assert not backend.is_open
    with pytest.raises(UnavailableError):
        backend.record("v")
    backend.open()
    assert backend.record("v") == record
    left = {path.name for path in backend.folder.path.iterdir()}
    assert left == {".tonnage-pool", "v.json", "v.img"}, "half-made and deleted content goes"
    backend.delete("v")
    backend.delete("v")
    assert [path.name for path in backend.folder.path.iterdir()] == [".tonnage-pool"]
    assert backend.records.used == 0
    backend.close()


def test_a_deletion_that_was_killed_after_the_rename_is_finished(backend: DirectoryBackend) -> None:
    record = backend.create(REQUEST, backend.want(REQUEST))
    backend.folder.directory.set_aside("v", record.uuid, ".img")
    backend.close()
    backend.open()
    assert (backend.records.volumes, backend.records.damaged, backend.records.used) == ({}, {}, 0)
    assert [path.name for path in backend.folder.path.iterdir()] == [".tonnage-pool"]
    backend.close()


def test_deleted_content_of_an_earlier_volume_does_not_delete_one_of_its_name(backend: DirectoryBackend) -> None:
    record = backend.create(REQUEST, backend.want(REQUEST))
    backend.folder.directory.deleted("v", UUID(int=1), ".img").touch()
    backend.close()
    backend.open()
    assert backend.record("v") == record
    assert not backend.folder.directory.all_deleted("v", ".img")
    backend.close()


def test_an_orphan_is_kept_counted_and_its_name_is_taken(backend: DirectoryBackend) -> None:
    backend.create(REQUEST, backend.want(REQUEST))
    backend.folder.directory.remove("v")
    del backend.records.volumes["v"]  # as a call sees it that comes before the next start
    for call in (lambda: backend.delete("v"), lambda: backend.create(REQUEST, backend.want(REQUEST))):
        with pytest.raises(HostError, match=r"v\.img has no record, nothing was touched"):
            call()
    backend.close()
    backend.open()
    assert backend.records.used == 8 * MI
    for call in (lambda: backend.delete("v"), lambda: backend.create(REQUEST, backend.want(REQUEST))):
        with pytest.raises(
            HostError, match=r"record of volume v .* nothing was touched: put a copy of the record back"
        ):
            call()
    assert backend.folder.content("v").exists()
    backend.close()


def test_a_failure_leaves_nothing(backend: DirectoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(record: VolumeRecord, **_: bool) -> None:
        raise HostError("its disk is gone")

    monkeypatch.setattr(backend.folder, "write", fail)
    with pytest.raises(HostError):
        backend.create(REQUEST, backend.want(REQUEST))
    assert not backend.folder.content("v").exists()
    assert (backend.records.used, backend.records.volumes) == (0, {})
    backend.close()


def test_an_expansion_that_does_not_fit_changes_nothing(backend: DirectoryBackend) -> None:
    record = backend.create(REQUEST, backend.want(REQUEST))
    with pytest.raises(ExhaustedError):
        backend.expand("v", 200 * MI)
    assert (backend.record("v"), backend.records.used) == (record, 8 * MI)
    assert backend.expand("v", 16 * MI).size == 16 * MI
    assert backend.records.used == 16 * MI
    backend.close()


def test_which_content_is_overwritten(backend: DirectoryBackend) -> None:
    record = backend.create(REQUEST, backend.want(REQUEST))
    assert not is_overwritten(record)
    backend.folder.medium = backend.folder.medium.__class__("ext4", shares=False)
    assert is_overwritten(backend.modify("v", {"erase": "shred"}))
    backend.close()
