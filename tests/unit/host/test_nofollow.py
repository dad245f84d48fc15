"""Paths without symlinks: by openat2 and step by step, also while somebody exchanges folders for symlinks."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.errors import PreconditionError
from tonnage.host import libc, nofollow


@pytest.fixture(params=["openat2", "old kernel"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with symlinks in it, on a kernel that has openat2 and on one that does not."""
    if request.param == "old kernel":

        def absent(number: int, *arguments: object) -> int:
            assert number == nofollow._OPENAT2
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(libc, "syscall", absent)
    root = Path(os.path.realpath(tmp_path))
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").write_text("content")
    (root / "link").symlink_to("a")
    (root / "a" / "up").symlink_to("..")
    (root / "a" / "end").symlink_to("file")
    return root


def test_opens_what_is_there(folder: Path) -> None:
    for path in (folder, folder / "a" / "b", Path("/"), folder / "a" / "file"):
        with nofollow.opened(path) as fd:
            assert os.fstat(fd).st_ino == os.stat(path).st_ino
            assert not os.get_inheritable(fd)
    with nofollow.opened(folder / "a" / "file", os.O_RDONLY) as fd:
        assert os.read(fd, 100) == b"content"
    with nofollow.parent(folder / "a" / "new") as (at, name):
        assert (os.fstat(at).st_ino, name) == (os.stat(folder / "a").st_ino, "new")
        assert os.listdir(nofollow.by_fd(at)) == os.listdir(folder / "a")


@pytest.mark.parametrize("path", ["link", "link/b", "a/up/a", "a/end", "link/absent"])
def test_symlinks_are_rejected_wherever_they_are(folder: Path, path: str) -> None:
    with pytest.raises(PreconditionError, match="symlink"):
        nofollow.open_path(folder / path)


def test_a_symlink_at_the_end_is_for_the_user_of_parent_to_see(folder: Path) -> None:
    with nofollow.parent(folder / "link") as (at, name):
        assert os.readlink(name, dir_fd=at) == "a"
    with pytest.raises(PreconditionError, match="symlink"), nofollow.parent(folder / "link" / "b"):
        raise AssertionError


def test_what_is_not_there(folder: Path) -> None:
    for path, kind in (
        ("absent", FileNotFoundError),
        ("a/absent/b", FileNotFoundError),
        ("a/file/b", NotADirectoryError),
    ):
        with pytest.raises(kind):
            nofollow.open_path(folder / path)
    with pytest.raises(OSError, match="too long"):
        nofollow.open_path(folder / ("x" * 300))


@pytest.fixture
def swapping(folder: Path) -> Iterator[None]:
    """Somebody exchanges a folder for a symlink to another one and back, as fast as they can."""
    (folder / "secret").mkdir()
    (folder / "place").mkdir()
    (folder / "trap").symlink_to("secret")
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            os.rename(folder / "place", folder / "aside")
            os.rename(folder / "trap", folder / "place")
            os.rename(folder / "place", folder / "trap")
            os.rename(folder / "aside", folder / "place")

    thread = threading.Thread(target=swap)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.usefixtures("swapping")
def test_a_folder_exchanged_meanwhile_is_never_entered(folder: Path) -> None:
    secret, seen = os.stat(folder / "secret").st_ino, set()
    for number in count():  # until it has met the folder itself: the other thread may let it see the symlink alone
        if number >= 3000 and "made" in seen:
            break
        try:
            with nofollow.parent(folder / "place" / f"{number}") as (at, name):
                assert os.fstat(at).st_ino != secret
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=at))
                seen.add("made")
        except PreconditionError:
            seen.add("rejected")
        except FileNotFoundError:
            seen.add("absent")
    assert os.listdir(folder / "secret") == []


@pytest.fixture
def tree_with_links(tmp_path: Path) -> Path:
    """A folder with symlinks out of it."""
    (tmp_path / "root/a/b").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    for name, target in {"up": "../../outside", "abs": str(tmp_path / "outside"), "in": "/a/b"}.items():
        (tmp_path / "root/a" / name).symlink_to(target)
    return tmp_path / "root"


@pytest.mark.parametrize("absent", [False, True])
def test_what_is_opened_beneath_has_no_symlink(
    tree_with_links: Path, monkeypatch: pytest.MonkeyPatch, absent: bool
) -> None:
    if absent:
        monkeypatch.setattr(nofollow, "_OPENAT2", 100_000)
    root = os.open(tree_with_links, os.O_RDONLY)
    fd = nofollow.open_beneath(root, b"a/b", os.O_RDONLY | os.O_DIRECTORY)
    assert os.path.samestat(os.fstat(fd), os.stat(tree_with_links / "a/b"))
    os.close(fd)
    (tree_with_links / "a/file").write_text("1")
    fd = nofollow.open_beneath(root, b"a/file", os.O_RDONLY)
    assert os.read(fd, 9) == b"1"
    os.close(fd)
    for path in (b"a/up", b"a/abs/x", b"a/in", b"../outside", b"a/../../outside", b"none", b"a\0b"):
        with pytest.raises((OSError, ValueError)):
            nofollow.open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    os.close(root)


def test_symlinks_stay_in_the_root(tree_with_links: Path) -> None:
    root = os.open(tree_with_links, os.O_RDONLY)
    fd = nofollow.open_in_root(root, "/a/in")
    assert os.path.samestat(os.fstat(fd), os.stat(tree_with_links / "a/b"))
    os.close(fd)
    for path in ("/a/up", "/a/abs", "../outside"):
        with pytest.raises(FileNotFoundError):
            nofollow.open_in_root(root, path)
    os.close(root)


def test_what_the_kernel_gives_up_is_tried_again(tree_with_links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EAGAIN of openat2(2): somebody renames or mounts while `..` is looked up."""
    call = libc.syscall
    rejected: list[int] = []

    def busy(number: int, *arguments: Any) -> int:
        if len(rejected) % 5 < 4:
            rejected.append(number)
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return call(number, *arguments)

    monkeypatch.setattr(libc, "syscall", busy)
    root = os.open(tree_with_links, os.O_RDONLY)
    fd = nofollow.open_in_root(root, "/a/in")
    assert os.path.samestat(os.fstat(fd), os.stat(tree_with_links / "a/b"))
    assert len(rejected) == 4
    os.close(fd)
    os.close(root)


def test_renames_elsewhere_stop_no_lookup(tree_with_links: Path) -> None:
    """They go on all the while; without another try about one lookup in a hundred fails."""
    other, done = tree_with_links / "other", threading.Event()
    other.mkdir()

    def rename() -> None:
        while not done.is_set():
            other.rename(tree_with_links / "moved")
            (tree_with_links / "moved").rename(other)

    thread = threading.Thread(target=rename)
    thread.start()
    root = os.open(tree_with_links, os.O_RDONLY)
    wanted = (tree_with_links / "a" / "b").stat().st_ino
    try:
        for _ in range(2000):
            for opens in (nofollow.open_in_root, nofollow.open_inside):
                found = opens(root, "a/../a/b/../../a/b")
                assert os.fstat(found).st_ino == wanted
                os.close(found)
    finally:
        done.set()
        thread.join()
        os.close(root)
