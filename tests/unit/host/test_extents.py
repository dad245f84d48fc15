"""Extents of files: which ranges two files do not share, and sharing just these."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.programs import need

from tonnage.host import extents, loop, mount
from tonnage.host.descriptor import closing, opened
from tonnage.host.extents import Extent
from tonnage.host.run import run

MI = 1024**2
BLOCK = 4096
BLOCKS = st.lists(st.sampled_from([None, -1, 7, 8, 50]), max_size=12)
"""For each block of a file: its address, -1 in a hole, None where the address says nothing."""


def _extents(blocks: list[int | None]) -> list[Extent]:
    """Extents of one block each, without the holes."""
    return [Extent(at, at + 1, address) for at, address in enumerate(blocks) if address != -1]


def _joined(found: list[Extent]) -> list[Extent]:
    """The same, with neighbors joined, as file systems show them."""
    joined: list[Extent] = []
    for extent in found:
        last = joined[-1] if joined else None
        if (
            last
            and last.end == extent.start
            and last.address
            and extent.address == last.address + last.end - last.start
        ):
            joined[-1] = Extent(last.start, extent.end, last.address)
        else:
            joined.append(extent)
    return joined


@given(BLOCKS, BLOCKS)
def test_each_block_that_may_differ_is_in_a_range_and_no_other(left: list[int | None], right: list[int | None]) -> None:
    size = max(len(left), len(right))
    ours, theirs = (blocks + [-1] * (size - len(blocks)) for blocks in (left, right))
    wanted = {at for at in range(size) if ours[at] != theirs[at] or ours[at] is None}
    ranges = list(extents.differences(_joined(_extents(left)), _extents(right)))
    assert {at for start, end in ranges for at in range(start, end)} == wanted
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


@pytest.fixture(params=["xfs", "btrfs"])
def disk(request: pytest.FixtureRequest, real_folder: Path) -> Iterator[Path]:
    fstype = request.param
    need(f"mkfs.{fstype}")
    image, path = real_folder / "disk", real_folder / "mounted"
    path.mkdir()
    with opened(image, os.O_RDWR | os.O_CREAT) as fd:
        os.ftruncate(fd, 400 * MI)
        run([f"mkfs.{fstype}", "-q", *(("-s", "size=4096") if fstype == "xfs" else ()), str(image)])
        device = loop.attach(fd, str(image))
    mount.mount(device.path, path, fstype)
    device.close()
    yield path
    mount.umount(path)


@pytest.mark.real
def test_what_changed_since_is_shared_and_nothing_else_is_needed(disk: Path) -> None:
    """Random writes, holes and allocations after the first sharing: the copy is equal after the second."""
    chance = random.Random(7)
    source, target = disk / "source", disk / "target"
    source.write_bytes(chance.randbytes(4 * MI))
    with opened(source, os.O_RDWR) as fd, closing(os.open(target, os.O_RDWR | os.O_CREAT)) as copy:
        os.posix_fallocate(fd, 4 * MI, 2 * MI)
        for _ in range(5):
            extents.share(copy, fd)
            early = extents.extents(copy)
            for _ in range(30):
                os.pwrite(fd, chance.randbytes(chance.randrange(1, 9000)), chance.randrange(6 * MI - 9000))
            hole = str(BLOCK * chance.randrange(1000))
            run(["fallocate", "--punch-hole", "-o", hole, "-l", str(8 * BLOCK), str(source)])
            ranges = list(extents.differences(extents.extents(fd), early))
            assert 0 < sum(end - start for start, end in ranges) < 3 * MI
            for start, end in ranges:
                extents.share_range(copy, fd, start, end)
            assert source.read_bytes() == target.read_bytes()
