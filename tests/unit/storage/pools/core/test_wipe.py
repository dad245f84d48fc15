"""Erasing files, step by step: what is on the disk afterwards, and what was never touched."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import HostError, UnsupportedError
from tonnage.host import libc, loop
from tonnage.storage.pools.core import wipe
from tonnage.storage.pools.core.wipe import CHUNK, SHRED_PASSES, EraseJob, Medium, Wiper, check_overwrites, medium_of

MI = 1024**2


def _job(path: Path, method: str, **more: int) -> EraseJob:
    return EraseJob("k", "v", method, path.stat().st_size, **more)


def _run(job: EraseJob, path: Path) -> tuple[EraseJob, int]:
    wiper, written = Wiper(job, path), 0
    try:
        while not wiper.job.is_done:
            before = wiper.job
            written += wiper.step()
            assert wiper.job != before, "every step brings it on"
        wiper.sync()
    finally:
        wiper.close()
    return wiper.job, written


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A file of random bytes whose length no disk likes."""
    path = tmp_path / "full"
    path.write_bytes(os.urandom(CHUNK + 4096 + 123))
    return path


def test_zero_leaves_only_zeros(full: Path) -> None:
    length = full.stat().st_size
    job, written = _run(_job(full, "zero"), full)
    assert full.read_bytes() == bytes(length)
    assert (job.done, job.total, written) == (length, length, length)


@pytest.mark.slow
def test_shred_writes_random_bytes_before_the_zeros(full: Path) -> None:
    length = full.stat().st_size
    seen = set()
    wiper = Wiper(_job(full, "shred"), full, random=random.Random(7).randbytes)
    old = full.read_bytes()
    while not wiper.job.is_done:
        wiper.step()
        if wiper.job.done % length == 0:
            seen.add(full.read_bytes())
    wiper.close()
    assert len(seen) == SHRED_PASSES + 1, "each pass is another one"
    assert old not in seen
    assert full.read_bytes() == bytes(length)
    assert wiper.job.total == (SHRED_PASSES + 1) * length
    assert all(sum(map(int.__eq__, old, content)) < length // 10 for content in seen), "no old byte stays but by chance"


def test_discard_of_a_file_hands_its_blocks_back(full: Path) -> None:
    length = full.stat().st_size
    job, written = _run(_job(full, "discard"), full)
    assert (job.method, written) == ("discard", 0)
    assert (full.stat().st_size, full.read_bytes()) == (length, bytes(length))
    assert full.stat().st_blocks * 512 < CHUNK


def test_what_cannot_be_discarded_is_overwritten(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(libc, "fallocate", reject)
    job, written = _run(_job(full, "discard"), full)
    assert (job.method, written) == ("zero", full.stat().st_size)
    assert not any(full.read_bytes())


@pytest.mark.parametrize("method", ["zero", "shred", "discard"])
def test_erasing_a_sparse_file_allocates_nothing(tmp_path: Path, method: str) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1024 * MI)
        file.seek(600 * MI)
        file.write(os.urandom(MI))
        os.fsync(file.fileno())
    before = path.stat().st_blocks
    job, written = _run(_job(path, method), path)
    assert job.is_done
    assert path.stat().st_blocks <= before
    assert written == {"zero": MI, "shred": MI * (SHRED_PASSES + 1), "discard": 0}[method]
    with path.open("rb") as file:
        file.seek(600 * MI)
        assert not any(file.read(MI))


def test_it_goes_on_where_it_was(full: Path) -> None:
    old = full.read_bytes()
    _run(_job(full, "zero", done=CHUNK), full)
    assert full.read_bytes() == old[:CHUNK] + bytes(len(old) - CHUNK)


@given(
    pieces=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=6),
    odd=st.integers(0, 4095),
    stop=st.integers(0, 30),
    method=st.sampled_from(["zero", "shred", "discard"]),
)
def test_any_file_killed_anywhere(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, int]], odd: int, stop: int, method: str
) -> None:
    """Whatever is written where, and however many steps were made and not written down: no old byte is left."""
    path = tmp_path_factory.mktemp("any") / "file"
    length = 48 * 65536 + odd
    with path.open("wb") as file:
        file.truncate(length)
        for at, count in pieces:
            file.seek(at * 65536)
            file.write(b"secret" * (count * 65536 // 6))
    job = EraseJob("k", "v", method, length)
    killed = Wiper(job, path)
    for _ in range(stop):
        killed.step()
    killed.close()
    noted = msgspec.structs.replace(job, done=killed.job.done // 2)
    end, _ = _run(msgspec.json.decode(msgspec.json.encode(noted), type=EraseJob), path)
    assert end.done == end.total
    assert path.read_bytes() == bytes(length)


def test_a_content_that_is_shorter_than_its_job_is_no_endless_task(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"x" * 8192)
    for method in ("zero", "shred", "discard"):
        job, _ = _run(EraseJob("k", "v", method, 40 * MI), path)
        assert job.is_done
        assert path.stat().st_size == 8192
        assert not any(path.read_bytes())
    assert EraseJob("k", "v", "shred", 0).is_done


def test_no_symlink_is_followed_and_no_directory_erased(tmp_path: Path) -> None:
    (precious := tmp_path / "precious").write_bytes(b"kept")
    (link := tmp_path / "link").symlink_to(precious)
    for path in (link, tmp_path, tmp_path / "missing"):
        with pytest.raises(HostError, match="cannot erase"):
            Wiper(EraseJob("k", "v", "zero", 4), path).step()
    assert precious.read_bytes() == b"kept"


def test_copy_on_write_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "fstatfs_type", lambda _: 0xEF53)
    check_overwrites(tmp_path, medium := medium_of(tmp_path))
    assert (medium.kind, medium.shares) == ("ext4", False)
    monkeypatch.setattr(libc, "fstatfs_type", lambda _: 0x9123683E)
    with pytest.raises(UnsupportedError, match="is on btrfs"):
        check_overwrites(tmp_path, medium_of(tmp_path))
    monkeypatch.setattr(libc, "fstatfs_type", lambda _: 0x4711)
    assert medium_of(tmp_path) == Medium("", overwrites=True, shares=True), "what is not known may do anything"
    with pytest.raises(HostError, match="cannot look at"):
        medium_of(tmp_path / "missing")


@pytest.mark.real
@pytest.mark.parametrize("method", ["zero", "shred", "discard"])
def test_block_device(real_folder: Path, method: str) -> None:
    image = real_folder / "disk.img"
    image.write_bytes(os.urandom(9 * MI))
    fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    attached = loop.attach(fd, str(image), autoclear=False)
    os.close(fd)
    try:
        job, written = _run(EraseJob("k", "v", method, 9 * MI), Path(attached.path))
        assert job.is_done
        assert written == {"zero": 9 * MI, "shred": 9 * MI * (wipe.SHRED_PASSES + 1), "discard": 0}[method]
        with open(attached.path, "rb") as device:
            assert device.read() == bytes(9 * MI)
    finally:
        attached.close()
        loop.detach(attached.index)
