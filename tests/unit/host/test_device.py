"""What is found at the start of a device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tonnage.host import device

UUID_ = UUID("12345678-1234-5678-1234-567812345678")


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("device")
    os.ftruncate(made, 4 * 1024**2)
    yield made
    os.close(made)


@pytest.mark.parametrize(
    ("writes", "found"),
    [
        pytest.param([], None, id="zeros"),
        pytest.param([(1080, b"\x53\xef"), (1128, UUID_.bytes)], device.Signature("ext4", UUID_), id="ext4"),
        pytest.param([(0, b"XFSB"), (32, UUID_.bytes)], device.Signature("xfs", UUID_), id="xfs"),
        pytest.param([(65600, b"_BHRfS_M"), (65568, UUID_.bytes)], device.Signature("btrfs", UUID_), id="btrfs"),
        pytest.param([(0, b"LUKS\xba\xbe")], device.Signature("LUKS"), id="LUKS"),
        pytest.param([(536, b"LVM2 001")], device.Signature("LVM"), id="LVM"),
        pytest.param([(512, b"EFI PART"), (510, b"\x55\xaa")], device.Signature("GPT"), id="GPT"),
        pytest.param([(510, b"\x55\xaa")], device.Signature("partition table"), id="MBR"),
        pytest.param([(4086, b"SWAPSPACE2")], device.Signature("swap"), id="swap"),
    ],
)
def test_probe(fd: int, writes: list[tuple[int, bytes]], found: device.Signature | None) -> None:
    for offset, data in writes:
        os.pwrite(fd, data, offset)
    assert device.probe(fd) == found


def test_probe_of_something_short() -> None:
    fd = os.memfd_create("short")
    os.write(fd, b"XF")
    assert device.probe(fd) is None
    os.close(fd)


def test_a_device_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    device.wait_for(tmp_path / "none")


def test_pristine_until_written(fd: int) -> None:
    assert device.is_pristine(fd)
    os.pwrite(fd, b"x", 2 * 1024**2)
    assert not device.is_pristine(fd)


def test_size_of_a_file(fd: int) -> None:
    assert device.size(fd) == 4 * 1024**2
