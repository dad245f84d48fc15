"""Subvolumes as the content of volumes: their limits follow records, copies share blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import InvalidError, UnsupportedError
from tonnage.storage.pools.base.contract import PoolLimits, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.btrfs.backend import Subvolumes, make_backend
from tonnage.storage.pools.btrfs.image_file import ROOT
from tonnage.storage.pools.directory.backend import DirectoryBackend

pytestmark = pytest.mark.real
MI = 1024**2
LIMITS = PoolLimits(200 * MI, float("inf"), sparse=True)


@pytest.fixture
def backend(real_folder: Path) -> Iterator[DirectoryBackend]:
    need("mkfs.btrfs")
    made = make_backend(real_folder / "pool", LIMITS, disks=Disks())
    made.name = "p"
    made.open()
    yield made
    made.close()


def test_content_copies_and_faults(backend: DirectoryBackend) -> None:
    assert isinstance(backend.contents, Subvolumes)
    request = VolumeRequest("a", 20 * MI)
    record = backend.create(request, backend.want(request))
    content = backend.folder.content("a")
    assert content.parent.name == ROOT
    (content / "file").write_bytes(b"x" * MI)
    backend.commit()
    assert backend.contents.held(content) >= MI
    clone = VolumeRequest("b", 20 * MI, source=VolumeOrigin(volume="a"))
    backend.create(clone, backend.want(clone), record)
    assert (backend.folder.content("b") / "file").read_bytes() == b"x" * MI
    assert backend.contents.fault(record) == ""
    backend.contents.remove(content)
    backend.contents.remove(content)
    assert "is gone" in backend.contents.fault(record)


def test_what_cannot_be(backend: DirectoryBackend) -> None:
    with pytest.raises(InvalidError, match="erase: zero"):
        backend.contents.check({"erase": "zero"})
    with pytest.raises(UnsupportedError, match="made as large as it is"):
        backend.rebound(replace(LIMITS, size=300 * MI))
    backend.rebound(LIMITS)
