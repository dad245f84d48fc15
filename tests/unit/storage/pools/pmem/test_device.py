"""The device of a namespace: how it is formatted and wiped; a loop device stands for it."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from tonnage.host import loop
from tonnage.host.ndctl import PmemNamespace
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.pmem.device import is_used, make_content, mkfs_options, wipe_ends

MI = 1024**2


def _namespace(mode: str, device: str = "/dev/pmem0") -> PmemNamespace:
    return PmemNamespace("namespace0.0", "region0", uuid4(), "v", 64 * MI, mode, device, 64 * MI)


def test_old_kernels_map_no_files_that_may_share_blocks() -> None:
    record = VolumeRecord("v", 300 * MI, uuid4(), length=600 * MI, fstype="xfs")
    assert mkfs_options(_namespace("fsdax"), record) == ("-m", "reflink=0")
    assert mkfs_options(_namespace("sector"), record) == ()
    chosen = VolumeRecord("v", 300 * MI, uuid4(), length=600 * MI, fstype="xfs", mkfs="-m reflink=1")
    assert mkfs_options(_namespace("fsdax"), chosen) == ()
    assert not is_used(_namespace("fsdax", ""))


@pytest.mark.real
def test_it_is_formatted_once_and_its_ends_are_wiped(real_folder: Path) -> None:
    image = real_folder / "disk"
    image.write_bytes(b"x" * 64 * MI)
    fd = os.open(image, os.O_RDWR)
    attached = loop.attach(fd, str(image), autoclear=False)
    os.close(fd)
    try:
        wipe_ends(attached.path)
        content = image.read_bytes()
        assert not any(content[:MI] + content[-MI:])
        assert content[MI:-MI] == b"x" * (62 * MI)
        namespace = _namespace("sector", attached.path)
        record = VolumeRecord("v", 32 * MI, uuid4(), length=64 * MI, fstype="ext4")
        make_content(namespace, record)
        first = image.read_bytes()
        assert record.uuid.bytes in first[:4096]
        assert not is_used(namespace)
        make_content(namespace, VolumeRecord("b", MI, uuid4(), length=MI, block=True))
        assert image.read_bytes() == first
    finally:
        attached.close()
        loop.detach(attached.index)
