"""What all pools ask of a request: the room that a class sees, and what it may say of content."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.errors import Exhausted, Invalid, OutOfRange
from tonnage.pools import request as requests
from tonnage.pools.base import Capacity, Volume
from tonnage.pools.directory import Record
from tonnage.pools.memory import MemoryPool

GI = 1024**3
POOL = MemoryPool("p", 10 * GI)
BYTES = st.integers(0, 2**62)


@given(BYTES, BYTES, BYTES, st.sampled_from([1, 4096, 4 * 1024**2]))
def test_a_reserve_never_leaves_more(total: int, used: int, reserve: int, step: int) -> None:
    free = max(0, total - used)
    room = Capacity(total, free, free // step * step, step, used)
    left = requests.left(room, reserve, step=step)
    assert left.free == max(0, free - reserve)
    assert left.largest <= min(room.largest, left.free)
    assert left.largest % step == 0
    assert (left.smallest, left.used) == (room.smallest, room.used)
    assert reserve or left == room


def test_what_is_largest_for_other_reasons_stays_so() -> None:
    room = Capacity(total=10 * GI, free=8 * GI, largest=2 * GI, smallest=1, used=2 * GI)
    assert requests.left(room, GI).largest == 2 * GI
    assert requests.left(room, 7 * GI).largest == GI


def test_nothing_fits_that_would_be_too_small() -> None:
    room = Capacity(total=GI, free=GI, largest=GI, smallest=300 << 20, used=0)
    assert requests.left(room, 800 << 20).largest == 0


def test_messages_tell_of_the_reserve() -> None:
    room = requests.left(Capacity(10 * GI, 8 * GI, 8 * GI, 1, 2 * GI), 6 * GI)
    with pytest.raises(Exhausted, match=r"room for 2Gi in one volume, beside the 6Gi .* \(2Gi of 10Gi promised\)"):
        requests.check_room(POOL, "v", 3 * GI, room, reserve=6 * GI)
    with pytest.raises(OutOfRange, match="holds 4Gi at most, beside the 6Gi that the class leaves to others"):
        requests.check_room(POOL, "v", 5 * GI, room, reserve=6 * GI)
    with pytest.raises(Exhausted, match=r"has 2Gi free, beside the 6Gi .* \(2Gi of 10Gi promised\)"):
        requests.check_more(POOL, Volume("v", GI), 4 * GI, room, reserve=6 * GI)
    with pytest.raises(OutOfRange, match="holds 4Gi at most, beside the 6Gi"):
        requests.check_more(POOL, Volume("v", GI), 5 * GI, room, reserve=6 * GI)


def test_raw_block_volumes_have_no_file_system_to_speak_of() -> None:
    requests.check_content({"mkfsOptions": "", "erase": "zero"}, "")
    for key, value in (("mkfsOptions", "-i 4096"), ("source", "dir:///a")):
        with pytest.raises(Invalid, match=f"parameter {key}: a raw block volume has no file system"):
            requests.check_content({key: value}, "")


def test_a_copy_is_made_as_what_it_is_filled_from() -> None:
    plain = Record("o", GI, uuid4(), fstype="ext4")
    special = Record("o", GI, uuid4(), fstype="ext4", mkfs="-i4096 -I 512")
    requests.check_content({"mkfsOptions": "-i 4096 -I 512"}, "ext4", special)
    requests.check_content({}, "ext4", special)
    with pytest.raises(Invalid, match="made with 'none' and is copied as it is"):
        requests.check_content({"mkfsOptions": "-i 4096"}, "ext4", plain)
    with pytest.raises(Invalid, match="made with '-i4096 -I 512'"):
        requests.check_content({"mkfsOptions": "-i 4096"}, "ext4", special)
