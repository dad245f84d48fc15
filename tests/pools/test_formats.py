"""Image lengths: a size asked is a size usable, and what is left over is little."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.host import device, loop, mount
from tonnage.pools.formats import BLOCK, BTRFS, EXT4, FORMATS, GI, MI, XFS, Format

SIZES = st.integers(1, 4 * 1024 * GI)


@given(st.sampled_from(sorted(FORMATS)), SIZES)
def test_image_is_longer_than_what_is_asked(name: str, size: int) -> None:
    form = FORMATS[name]
    length = form.length(size)
    assert length % BLOCK == 0
    assert length >= size


@given(st.sampled_from(sorted(FORMATS)), SIZES)
def test_usable_never_promises_too_much(name: str, room: int) -> None:
    form = FORMATS[name]
    usable = form.usable(room)
    assert usable == 0 or form.length(usable) <= room


@given(SIZES)
def test_ext4_overhead_is_bounded(size: int) -> None:
    assert EXT4.length(size) - size <= 16 * MI + size // 4 + 4 * MI


@pytest.mark.real
@pytest.mark.parametrize(
    ("form", "sizes", "slack"),
    [
        pytest.param(EXT4, (MI, 5 * MI, 64 * MI, 500 * MI, GI, 4 * GI, 29 * GI, 200 * GI), 0.02, id="ext4"),
        pytest.param(XFS, (300 * MI, 4 * GI, 200 * GI), 0.1, id="xfs"),
        pytest.param(BTRFS, (16 * MI, 4 * GI, 200 * GI), 8.0, id="btrfs"),
    ],
)
def test_what_is_asked_can_be_used(
    form: Format, sizes: tuple[int, ...], slack: float, real_folder: Path, need_program: Callable[[str], None]
) -> None:
    need_program(form.command)
    target = real_folder / "mnt"
    target.mkdir()
    for size in sizes:
        available, uuid = _available(form, size, real_folder / "image", target)
        assert size <= available <= size * (1 + slack) + 8 * MI, f"{form.name} of {size // MI}Mi"
        assert uuid


def _available(form: Format, size: int, image: Path, target: Path) -> tuple[int, bool]:
    image.touch()
    os.truncate(image, form.length(size))
    uuid = uuid4()
    subprocess.run(form.mkfs(str(image), form.length(size), uuid), check=True, capture_output=True)
    fd = os.open(image, os.O_RDWR)
    found = device.probe(fd)
    attached = loop.attach(fd, str(image))
    os.close(fd)
    mount.mount(attached.path, target, form.name)
    attached.close()
    stat = os.statvfs(target)
    mount.umount(target)
    image.unlink()
    return stat.f_bavail * stat.f_frsize, found == device.Signature(form.name, uuid)
