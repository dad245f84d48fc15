"""What volumes that are directories have in common: their limit, rejected parameters, first content."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tonnage.base.errors import InvalidError, OutOfRangeError
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.directory.bind_mounts import check_no_erasure, limit_for, seed

MI = 1024**2


def test_a_limit_leaves_room_for_what_is_counted_beside_the_content() -> None:
    for size in (MI, 100 * MI, 2**50):
        assert size < limit_for(size) <= size + 2 * MI + size // 256


def test_content_cannot_be_erased_where_its_blocks_cannot_be_named() -> None:
    check_no_erasure({})
    check_no_erasure({"erase": "none"})
    with pytest.raises(InvalidError, match="erase: zero: want none: a volume here has no device of its own"):
        check_no_erasure({"erase": "zero"})


def test_a_new_directory_has_the_content_of_its_source(tmp_path: Path) -> None:
    source, content = tmp_path / "source", tmp_path / "a.vol"
    source.mkdir()
    content.mkdir()
    (source / "file").write_text("text")
    record = VolumeRecord("a", MI, UUID(int=1), fstype="xfs")
    seed(record, content)
    assert list(content.iterdir()) == []
    record = VolumeRecord("a", MI, UUID(int=1), fstype="xfs", from_folder=f"dir://{source}")
    seed(record, content)
    assert (content / "file").read_text() == "text"
    with pytest.raises(OutOfRangeError, match="ask for more"):
        seed(VolumeRecord("a", 1, UUID(int=1), fstype="xfs", from_folder=f"dir://{source}"), content)
