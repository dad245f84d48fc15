"""The back end of a directory: leftovers, failures half-way, and what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.errors import ExhaustedError, HostError, UnavailableError
from tonnage.pools.base.contract import PoolLimits, VolumeRequest
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.base.reservation import Disks
from tonnage.pools.directory.backend import DirectoryBackend, is_overwritten
from tonnage.pools.image.backend import make_backend

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
    (backend.folder.path / "leftover.img").touch()
    backend.close()
    assert not backend.is_open
    with pytest.raises(UnavailableError):
        backend.record("v")
    backend.open()
    assert backend.record("v") == record
    assert not (backend.folder.path / "leftover.img").exists(), "content without a record"
    backend.delete("v")
    backend.delete("v")
    assert [path.name for path in backend.folder.path.iterdir()] == [".tonnage-pool"]
    assert backend.records.used == 0
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
