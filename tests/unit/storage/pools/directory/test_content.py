"""Each kind in a directory implements all operations on content."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.storage.pools.btrfs import backend as btrfs
from tonnage.storage.pools.directory.backend import DirectoryBackend
from tonnage.storage.pools.directory.content import VolumeContent, nothing
from tonnage.storage.pools.image import backend as image
from tonnage.storage.pools.quota import backend as quota


def test_shared_blocks_are_not_counted_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 4096)
    assert nothing(tmp_path / "file") == 0


@pytest.mark.parametrize("kind", [image, btrfs, quota])
def test_the_parts_of_a_kind(kind: object, tmp_path: Path) -> None:
    backend = kind.make_backend(tmp_path / "pool")  # type: ignore[attr-defined]
    assert isinstance(backend, DirectoryBackend)
    operations = [name for name in vars(VolumeContent) if not name.startswith("_")]
    assert len(operations) > 15
    assert [name for name in operations if not callable(getattr(backend.contents, name, None))] == []
    assert backend.shares_commit != backend.contents.durable
    assert not list(tmp_path.iterdir())
