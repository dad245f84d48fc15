"""What a tree takes of its disk, however hostile it is."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from tonnage.host import mount, tree
from tonnage_box.kubelet.pods.usage import disk_usage

MIB = 1 << 20


def _write(path: Path, size: int) -> None:
    path.write_bytes(b"x" * size)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _used(root: Path, limit: int = 1 << 60) -> int:
    return disk_usage(str(root), limit=limit)


def _empty(folder: Path) -> int:
    folder.mkdir()
    return _used(folder)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert _used(tmp_path / "none") == 0


def test_blocks_are_counted_and_not_sizes(tmp_path: Path) -> None:
    before = _empty(tmp_path / "t")
    with (tmp_path / "t" / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert _used(tmp_path / "t") == before
    _write(tmp_path / "t" / "full", MIB)
    assert MIB <= _used(tmp_path / "t") - before <= MIB + 65536


def test_symlinks_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    _write(tmp_path / "out" / "big", MIB)
    before = _empty(tmp_path / "t")
    os.symlink(tmp_path / "out", tmp_path / "t" / "a")
    os.symlink(tmp_path / "out" / "big", tmp_path / "t" / "b")
    os.symlink(".", tmp_path / "t" / "c")
    assert _used(tmp_path / "t") - before < 65536
    os.symlink(tmp_path / "out", tmp_path / "top")
    with pytest.raises(NotADirectoryError):
        _used(tmp_path / "top")


def test_a_file_of_many_names_counts_once(tmp_path: Path) -> None:
    before = _empty(tmp_path / "t")
    _write(tmp_path / "t" / "f", MIB)
    for number in range(99):
        os.link(tmp_path / "t" / "f", tmp_path / "t" / str(number))
    assert MIB <= _used(tmp_path / "t") - before <= MIB + 65536


@pytest.mark.slow
def test_a_tree_deeper_than_open_files_allow(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    at = os.open(tmp_path / "t", os.O_RDONLY)
    for level in range(3000):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
        if level in (63, 64, 65, 2999):
            with os.fdopen(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=at), "wb") as file:
                file.write(b"x" * MIB)
                file.flush()
                os.fsync(file.fileno())
    os.close(at)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 200, hard))
    try:
        assert _used(tmp_path / "t") >= 4 * MIB
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        tree.remove(tmp_path / "t")  # pytest cannot
    assert len(os.listdir("/proc/self/fd")) == held


def test_it_ends_once_the_limit_is_passed(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for number in range(64):
        _write(tmp_path / "t" / str(number), 65536)
    assert 65536 < _used(tmp_path / "t", limit=65536) <= 4 * 65536
    everything = _used(tmp_path / "t")
    assert disk_usage(str(tmp_path / "t"), limit=1 << 60, cancelled=lambda: True) < everything


@pytest.mark.slow
def test_moving_folders_meanwhile_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for name in "abcdefgh":
        (tmp_path / "t" / name / "flip" / "x").mkdir(parents=True)
        _write(tmp_path / "t" / name / "file", 65536)
    ended = threading.Event()

    def flip() -> None:
        while not ended.is_set():
            for name in "abcdefgh":
                os.rename(tmp_path / "t" / name / "flip", tmp_path / "t" / f"moved-{name}")
                os.rename(tmp_path / "t" / f"moved-{name}", tmp_path / "t" / name / "flip")

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        assert all(_used(tmp_path / "t") >= 8 * 65536 for _ in range(200))
    finally:
        ended.set()
        thread.join()


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_other_file_systems_are_not_entered(tmp_path: Path) -> None:
    (tmp_path / "t" / "m").mkdir(parents=True)
    before = _used(tmp_path / "t")
    mount.mount("tmpfs", tmp_path / "t" / "m", "tmpfs", ["size=4m"])
    try:
        _write(tmp_path / "t" / "m" / "f", 2 * MIB)
        assert _used(tmp_path / "t") - before < 65536
        assert _used(tmp_path / "t" / "m") >= 2 * MIB
    finally:
        mount.umount(tmp_path / "t" / "m")
