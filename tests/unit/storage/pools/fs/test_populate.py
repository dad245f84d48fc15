"""A new volume begins with a folder's content: what is copied as it is, what is rejected, and what fits."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tonnage.base.errors import ExhaustedError, HostError, InvalidError, OutOfRangeError, PreconditionError
from tonnage.host import mount
from tonnage.host.run import CommandError
from tonnage.storage.pools.fs import populate

MI = 1024**2
Fill = Callable[..., Path]


@contextmanager
def _open(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder to copy."""
    path = tmp_path / "source"
    path.mkdir()
    return path


@pytest.fixture
def filled(tmp_path: Path, source: Path) -> Fill:
    """Copies the source into a new folder, which it returns."""

    def run(size: int = 10 * MI) -> Path:
        target = tmp_path / "target"
        target.mkdir(exist_ok=True)
        with _open(target) as at:
            populate.fill(source, at, size)
        return target

    return run


def test_what_is_kept(source: Path, filled: Fill) -> None:
    (source / "folder").mkdir()
    (source / "folder").chmod(0o2750)
    file = source / "folder" / "file"
    file.write_text("content")
    file.chmod(0o4711)
    os.utime(file, ns=(1_600_000_000_123_456_789, 1_500_000_000_987_654_321))
    os.link(file, source / "same")
    (source / "away").symlink_to("/etc/passwd")
    (source / "nowhere").symlink_to("missing")
    os.mkfifo(source / "pipe")
    source.chmod(0o1777)
    os.utime(source / "folder", (1_400_000_000, 1_400_000_000))

    target = filled()

    copied = target / "folder" / "file"
    found = copied.stat()
    assert copied.read_text() == "content"
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns, found.st_nlink) == (0o4711, 1_500_000_000_987_654_321, 2)
    assert os.path.samefile(copied, target / "same")
    assert not os.path.samefile(copied, file)
    assert [os.readlink(target / name) for name in ("away", "nowhere")] == ["/etc/passwd", "missing"]
    assert stat.S_ISFIFO((target / "pipe").stat().st_mode)
    assert stat.S_IMODE((target / "folder").stat().st_mode) == 0o2750
    assert (target / "folder").stat().st_mtime == 1_400_000_000
    assert stat.S_IMODE(target.stat().st_mode) == 0o1777, "the volume's root is as the folder"


def test_owners_and_attributes(source: Path, filled: Fill) -> None:
    file = source / "file"
    file.touch()
    try:
        os.chown(source, 1234, 4321)
        os.chown(file, 1234, 4321)
        os.setxattr(file, "user.colour", b"red")
    except OSError as failure:
        pytest.skip(f"needs root and extended attributes: {failure.strerror}")
    target = filled()
    assert [(found.st_uid, found.st_gid) for found in (target.stat(), (target / "file").stat())] == [(1234, 4321)] * 2
    assert os.getxattr(target / "file", "user.colour") == b"red"


def test_holes_stay_holes_and_take_no_room(source: Path, filled: Fill) -> None:
    with open(source / "sparse", "wb") as file:
        file.truncate(1024 * MI)
        file.seek(512 * MI)
        file.write(b"x" * MI)
    found = (filled(size=2 * MI) / "sparse").stat()
    assert found.st_size == 1024 * MI
    assert found.st_blocks * 512 <= 2 * MI


def test_hard_links_are_counted_once(source: Path, filled: Fill) -> None:
    (source / "0").write_bytes(b"x" * MI)
    for number in range(1, 8):
        os.link(source / "0", source / str(number))
    assert (filled(size=2 * MI) / "7").stat().st_nlink == 8


def test_again_is_the_same(source: Path, filled: Fill) -> None:
    (source / "file").write_text("content")
    assert filled() == filled()
    assert (filled() / "file").read_text() == "content"


def test_what_does_not_fit(source: Path, filled: Fill) -> None:
    for number in range(3):
        (source / str(number)).write_bytes(b"x" * MI)
    with pytest.raises(OutOfRangeError, match=r"holds 3\.?[0-9]*.*, the volume is to have 3Mi: ask for more"):
        populate.check(source, 3 * MI)
    with pytest.raises(OutOfRangeError):
        filled(size=3 * MI)
    populate.check(source, 4 * MI)


@pytest.mark.real
def test_what_does_not_fit_after_all(source: Path, real_folder: Path) -> None:
    for number in range(64):
        (source / str(number)).touch()
    target = real_folder / "small"
    target.mkdir()
    mount.mount("none", target, "tmpfs", ["size=1m", "nr_inodes=10"])
    with _open(target) as at, pytest.raises(ExhaustedError, match="No space left on device"):
        populate.fill(source, at, 10 * MI)


@pytest.mark.real
def test_a_target_that_cannot_be_written(source: Path, real_folder: Path) -> None:
    (source / "file").touch()
    target = real_folder / "readonly"
    target.mkdir()
    mount.mount("none", target, "tmpfs", ["ro"])
    with _open(target) as at, pytest.raises(CommandError, match="Read-only file system"):
        populate.fill(source, at, 10 * MI)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("missing", "No such file", id="nothing"),
        pytest.param("file", "Not a directory", id="a file"),
        pytest.param("link", "is a symlink", id="a symlink"),
        pytest.param("link/inner", "is a symlink or is behind one", id="behind a symlink"),
    ],
)
def test_no_folder(name: str, words: str, tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(source)
    (source / "inner").mkdir()
    with pytest.raises(PreconditionError, match=words) as rejected:
        populate.check(tmp_path / name, MI)
    assert f"source {tmp_path / name}" in str(rejected.value)


def test_no_device_nodes(source: Path) -> None:
    (source / "deep").mkdir()
    try:
        os.mknod(source / "deep" / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("needs root: device nodes")
    with pytest.raises(InvalidError, match="device node 'null'"):
        populate.check(source, MI)


@pytest.mark.real
def test_nothing_that_is_mounted_inside(source: Path, real_folder: Path) -> None:
    inner = source / "inner"
    inner.mkdir()
    mount.bind(real_folder, inner)
    try:
        with pytest.raises(InvalidError, match="something is mounted in source"):
            populate.check(source, MI)
    finally:
        mount.umount(inner)
    populate.check(source, MI)


def test_sockets_do_not_stop_it(source: Path, filled: Fill) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
        assert (filled() / "socket").is_socket()


def test_a_deep_tree(source: Path, filled: Fill) -> None:
    deep = source
    for _ in range(200):
        deep = deep / "d"
    subprocess.run(["mkdir", "-p", deep], check=True)
    (deep / "file").write_text("content")
    target = filled()
    assert sum(len(files) for _, _, files in os.walk(target)) == 1


def test_a_target_that_is_gone(source: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    (source / "file").touch()
    with _open(gone) as at:
        gone.rmdir()
        with pytest.raises(HostError):
            populate.fill(source, at, MI)
