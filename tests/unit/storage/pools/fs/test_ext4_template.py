"""Copies of new ext4 file systems are as good as what mkfs makes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.programs import need, needs

from tonnage.host import device
from tonnage.storage.pools.fs import ext4_template
from tonnage.storage.pools.fs.ext4_template import Templates, crc32c
from tonnage.storage.pools.fs.formats import EXT4, GI, MI


def test_crc32c_of_the_known_text() -> None:
    assert crc32c(b"123456789") ^ 0xFFFFFFFF == 0xE3069283


@given(st.binary(min_size=40, max_size=200), st.binary(min_size=16, max_size=16))
def test_a_change_moves_the_checksum_by_the_same_bits(data: bytes, other: bytes) -> None:
    changed = data[:8] + other + data[24:]
    delta = bytes(old ^ new for old, new in zip(data[8:24], other, strict=True))
    assert crc32c(changed) == crc32c(data) ^ crc32c(delta + bytes(len(data) - 24), begin=0)


@pytest.fixture
def small() -> Iterator[int]:
    """A descriptor of the smallest file system that has a template."""
    need("mkfs.ext4")
    fd = os.memfd_create("made")
    os.ftruncate(fd, EXT4.length(MI))
    command = EXT4.mkfs(f"/dev/fd/{fd}", EXT4.length(MI), uuid4())
    subprocess.run(command, check=True, capture_output=True, pass_fds=(fd,))
    yield fd
    os.close(fd)


@pytest.mark.real
def test_a_template_is_kept_from_the_second_time_on(small: int) -> None:
    kept = Templates()
    assert kept.find(1, "") is None
    kept.learn(1, "", small)
    assert kept.find(1, "") is None
    kept.learn(1, "", small)
    template = kept.find(1, "")
    assert template == ext4_template.read(small)
    kept.learn(1, "", small)
    assert kept.find(1, "") is template
    assert kept.find(2, "") is None
    assert kept.find(1, "-I 1024") is None, "options have templates of their own"


@pytest.mark.real
def test_the_least_used_is_forgotten(small: int) -> None:
    kept = Templates(most=2, worth=1)
    for length in (1, 2):
        kept.learn(length, "", small)
    assert kept.find(1, "") is not None
    kept.learn(3, "", small)
    assert [kept.find(length, "") is not None for length in (1, 2, 3)] == [True, False, True]


def test_what_is_not_understood_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, looked, path = Templates(worth=1), list[int](), tmp_path / "image"
    path.write_bytes(b"something" * 1000)
    fd = os.open(path, os.O_RDWR)
    monkeypatch.setattr(ext4_template, "read", looked.append)
    for _ in range(3):
        kept.learn(1, "", fd)
    assert (kept.find(1, ""), looked) == (None, [fd])
    os.close(fd)


@pytest.mark.real
def test_a_copy_is_the_same_and_has_the_same_holes(small: int) -> None:
    target = os.memfd_create("copy")
    os.ftruncate(target, os.fstat(small).st_size)
    ext4_template.copy(small, target)
    read = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in (small, target)]
    assert read[0] == read[1]
    assert 0 < os.fstat(target).st_blocks <= os.fstat(small).st_blocks
    os.close(target)


def test_nothing_is_taken_for_ext4_that_is_not(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.touch()
    os.truncate(path, MI)
    fd = os.open(path, os.O_RDWR)
    assert ext4_template.read(fd) is None
    os.pwrite(fd, b"something" * 1000, 0)
    assert ext4_template.read(fd) is None
    os.close(fd)


@pytest.mark.real
@needs("mkfs.ext4")
class TestReal:
    @pytest.fixture(params=[MI, 20 * MI, GI, 29 * GI], ids=["1Mi", "20Mi", "1Gi", "29Gi"])
    def made(self, request: pytest.FixtureRequest, real_folder: Path) -> Iterator[tuple[int, Path, int]]:
        """A descriptor of an image on which mkfs ran, a path for a copy, and their length."""
        length, path = EXT4.length(request.param), real_folder / "made"
        path.touch()
        os.truncate(path, length)
        subprocess.run(EXT4.mkfs(str(path), length, uuid4()), check=True, capture_output=True)
        fd = os.open(path, os.O_RDWR)
        yield fd, real_folder / "copy", length
        os.close(fd)

    def test_copy_is_clean_and_has_its_own_uuid(self, made: tuple[int, Path, int]) -> None:
        source, path, length = made
        template, uuid = ext4_template.read(source), UUID("12345678-1234-5678-1234-567812345678")
        assert template is not None
        copy = os.open(path, os.O_CREAT | os.O_RDWR)
        os.ftruncate(copy, length)
        template.apply(copy, uuid)
        assert device.probe(copy) == device.Signature("ext4", uuid)
        os.close(copy)
        checked = subprocess.run(["e2fsck", "-fn", str(path)], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout
        if length > 32768 * 4096:  # the first copy of the superblock, its checksum included
            command = ["dumpe2fs", "-h", "-o", "superblock=32768", "-o", "blocksize=4096", str(path)]
            assert str(uuid) in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert path.stat().st_blocks <= os.fstat(source).st_blocks

    def test_a_checksum_that_is_not_understood(self, made: tuple[int, Path, int]) -> None:
        source, _, _ = made
        os.pwrite(source, b"\x00\x00\x00\x00", 1024 + 0x3FC)
        assert ext4_template.read(source) is None

    @pytest.mark.parametrize("place", [0x5A, 0x80, 0x3FC], ids=["group", "other", "checksum"])
    def test_a_copy_of_the_superblock_that_is_not_understood(self, place: int, real_folder: Path) -> None:
        path, first_copy = real_folder / "image", 32768 * 4096
        path.touch()
        os.truncate(path, EXT4.length(GI))
        subprocess.run(EXT4.mkfs(str(path), EXT4.length(GI), uuid4()), check=True, capture_output=True)
        fd = os.open(path, os.O_RDWR)
        assert ext4_template.read(fd) is not None
        (byte,) = os.pread(fd, 1, first_copy + place)
        os.pwrite(fd, bytes([byte ^ 1]), first_copy + place)
        assert ext4_template.read(fd) is None
        os.close(fd)

    def test_an_ext4_without_seed_is_not_copied(self, real_folder: Path) -> None:
        path = real_folder / "plain"
        path.touch()
        os.truncate(path, 20 * MI)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^metadata_csum", str(path)], check=True, capture_output=True)
        fd = os.open(path, os.O_RDWR)
        assert ext4_template.read(fd) is None
        os.close(fd)
