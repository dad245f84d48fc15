"""Image lengths: a size asked is a size usable, and what is left over is little."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.programs import need

from tonnage.host import device, loop, mount
from tonnage.storage.pools.fs.formats import BLOCK, BTRFS, EXT4, FORMATS, GI, MI, XFS, Format, form_of

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
def test_what_is_asked_can_be_used(form: Format, sizes: tuple[int, ...], slack: float, real_folder: Path) -> None:
    need(form.command)
    target = real_folder / "mnt"
    target.mkdir()
    for size in sizes:
        available, uuid = _available(form, size, real_folder / "image", target)
        assert size <= available <= size * (1 + slack) + 8 * MI, f"{form.name} of {size // MI}Mi"
        assert uuid


DEBIAN_13 = """[defaults]
base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
[fs_types]
ext4 = {
    features = has_journal,extent,huge_file,flex_bg,metadata_csum,metadata_csum_seed,64bit,dir_nlink,extra_isize,orphan_file
}
"""
"""Its mke2fs.conf: orphan_file, which Debian 12 does not have, takes blocks."""


@pytest.mark.real
def test_the_machines_mke2fs_conf_takes_no_block_of_an_ext4_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("mkfs.ext4")
    config = tmp_path / "mke2fs.conf"
    config.write_text(DEBIAN_13)
    length, headers = EXT4.length(4 * GI), []
    for name in ("theirs", "the machine's"):
        if name == "theirs":
            monkeypatch.setenv("MKE2FS_CONFIG", str(config))
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(length)
        subprocess.run(EXT4.mkfs(str(path), length, UUID(int=1)), check=True)
        header = subprocess.run(["dumpe2fs", "-h", path], check=True, capture_output=True, text=True).stdout
        headers.append(
            [line for line in header.splitlines() if line.startswith(("Filesystem features", "Free blocks"))]
        )
        monkeypatch.delenv("MKE2FS_CONFIG", raising=False)
    assert len(headers[0]) == 2
    assert headers[0] == headers[1]


@pytest.mark.real
@pytest.mark.parametrize(
    ("fstype", "options", "sizes"),
    [
        pytest.param("ext4", "-i 4096", (MI, 300 * MI, 5 * GI, 29 * GI), id="many inodes"),
        pytest.param("ext4", "-i 1048576", (MI, 300 * MI, 5 * GI, 29 * GI), id="few inodes"),
        pytest.param("ext4", "-I 1024 -i4096", (MI, 300 * MI, 5 * GI, 29 * GI), id="large inodes"),
        pytest.param("ext4", "-N 5000 -I 512", (20 * MI, 300 * MI, 5 * GI), id="a number of inodes"),
        pytest.param("ext4", "-N 200000", (800 * MI, 5 * GI), id="a large number of inodes"),
        pytest.param(
            "ext4", "-O ^has_journal -E lazy_itable_init=0,stride=16", (MI, 300 * MI, 5 * GI), id="no journal"
        ),
        pytest.param("ext4", "-O large_dir,ea_inode,inline_data,verity,encrypt", (MI, 300 * MI), id="features"),
        pytest.param("xfs", "-m reflink=0,bigtime=0,crc=1 -i size=1024,maxpct=50", (300 * MI, 4 * GI), id="xfs inodes"),
        pytest.param("xfs", "-n size=16384 -m finobt=0,inobtcount=0", (300 * MI, 4 * GI), id="xfs directories"),
        pytest.param("btrfs", "--nodesize=32k --csum sha256", (256 * MI, 4 * GI), id="btrfs nodes"),
        pytest.param("btrfs", "-n 4k -O ^no-holes,extref", (16 * MI, 4 * GI), id="btrfs features"),
    ],
)
def test_a_class_chooses_how_it_is_made(fstype: str, options: str, sizes: tuple[int, ...], real_folder: Path) -> None:
    form = form_of(fstype, options)
    need(form.command)
    target = real_folder / "mnt"
    target.mkdir()
    for size in sizes:
        assert size >= form.least
        available, uuid = _available(form, size, real_folder / "image", target)
        assert available >= size, f"{fstype} {options} of {size // MI}Mi"
        assert uuid


@pytest.mark.real
def test_inodes_are_as_many_as_the_class_says(real_folder: Path) -> None:
    target = real_folder / "mnt"
    target.mkdir()
    found = []
    for options in ("-N 5000", "-i 4096", "-i 65536"):
        form = form_of("ext4", options)
        with _mounted(form, GI, real_folder / "image", target):
            found.append(os.statvfs(target).f_files)
    assert 5000 <= found[0] < 6000
    assert found[1] >= GI // 4096
    assert GI // 65536 <= found[2] < GI // 32768


@pytest.mark.parametrize(("options", "size"), [("", 1236 * MI), ("-n 4096", 4 * GI)])
def test_a_small_btrfs_has_no_room_for_metadata_apart(options: str, size: int) -> None:
    """The files of a pod would be rejected at 94 % of 1236Mi, with room for data left and none for metadata."""
    form = form_of("btrfs", options)
    assert "--mixed" in form.mkfs("image", form.length(size), uuid4())
    large = form_of("btrfs", "-n 32k")
    assert "--mixed" not in large.mkfs("image", large.length(size), uuid4()), "which mixed ones cannot have"
    assert "--mixed" not in form.mkfs("image", form.length(8 * GI), uuid4())


def _available(form: Format, size: int, image: Path, target: Path) -> tuple[int, bool]:
    with _mounted(form, size, image, target) as same:
        stat = os.statvfs(target)
    return stat.f_bavail * stat.f_frsize, same


@contextmanager
def _mounted(form: Format, size: int, image: Path, target: Path) -> Iterator[bool]:
    """A new file system of that size at target; whether it has the UUID it was given."""
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
    yield found == device.Signature(form.name, uuid)
    mount.umount(target)
    image.unlink()
