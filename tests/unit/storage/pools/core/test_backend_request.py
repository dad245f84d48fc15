"""What all pools ask of a request: what it may say of content."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tonnage.base.errors import InvalidError
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.core.backend import check_content

GI = 1024**3


def test_raw_block_volumes_have_no_file_system_to_speak_of() -> None:
    check_content({"mkfsOptions": "", "erase": "zero"}, "", block=True)
    for key, value in (("mkfsOptions", "-i 4096"), ("source", "dir:///a")):
        with pytest.raises(InvalidError, match=f"parameter {key}: a raw block volume has no file system"):
            check_content({key: value}, "", block=True)


def test_a_copy_is_made_as_what_it_is_filled_from() -> None:
    plain = VolumeRecord("o", GI, uuid4(), fstype="ext4")
    special = VolumeRecord("o", GI, uuid4(), fstype="ext4", mkfs="-i4096 -I 512")
    check_content({"mkfsOptions": "-i 4096 -I 512"}, "ext4", special)
    check_content({}, "ext4", special)
    with pytest.raises(InvalidError, match="made with 'none' and is copied as it is"):
        check_content({"mkfsOptions": "-i 4096"}, "ext4", plain)
    with pytest.raises(InvalidError, match="made with '-i4096 -I 512'"):
        check_content({"mkfsOptions": "-i 4096"}, "ext4", special)
