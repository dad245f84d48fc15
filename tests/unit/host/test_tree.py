"""Trees that a pod has made: deep, wide, with symlinks and mounts in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.host.page_cache import TRIES, is_cached

from tonnage.host import mount, tree
from tonnage.host.run import CommandError, run

DEEP = 3000


def _chain(top: Path, depth: int) -> None:
    """Folders in folders, each with a file, deeper than a path may be long."""
    at = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
def test_a_deep_tree_is_walked_from_below_with_few_open_files(tmp_path: Path) -> None:
    _chain(tmp_path, DEEP)
    before, most, names = _open_files(), 0, []
    for name, _ in tree.below(tmp_path):
        names.append(name)
        most = max(most, _open_files())
    assert names == ["f"] * DEEP + ["d"] * DEEP
    assert most <= before + 3
    assert _open_files() == before
    tree.remove(tmp_path)
    assert not tmp_path.exists()
    assert _open_files() == before


def test_names_come_with_their_folder_and_symlinks_are_names_only(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("kept")
    (root / "a" / "link").symlink_to(outside)
    (root / "b").symlink_to(outside)
    seen = [(name, os.readlink(f"/proc/self/fd/{at}")) for name, at in tree.below(root)]
    assert sorted(seen) == [("a", str(root)), ("b", str(root)), ("link", str(root / "a"))]

    tree.remove(root)
    assert (outside / "file").read_text() == "kept"


def test_a_symlink_is_no_tree_and_nothing_is_fine(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError):
        tree.remove(tmp_path / "link")
    tree.remove(tmp_path / "none")
    assert [entry.name for entry in tmp_path.iterdir()] == ["link"]


def test_a_folder_moved_away_meanwhile_ends_the_walk(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "f").write_text("")
    walk = tree.below(root)
    assert next(walk)[0] == "f"
    (root / "a" / "b").rename(tmp_path / "b")
    with pytest.raises(OSError, match="moved while"):
        next(walk)


def test_names_of_lifted_folders_may_be_taken(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "t" / f".deep-{number}").mkdir(parents=True)
        (tmp_path / "t" / f".deep-{number}" / "full").write_text("")
    _chain(tmp_path / "t", 300)
    tree.remove(tmp_path / "t")
    assert not (tmp_path / "t").exists()


@pytest.mark.real
def test_a_mount_in_the_tree_is_not_entered(real_folder: Path) -> None:
    inside, outside = real_folder / "t" / "a" / "mount", real_folder / "outside"
    inside.mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("kept")
    (real_folder / "t" / "marker").write_text("still ours")
    mount.bind(outside, inside)
    with pytest.raises(OSError, match="mount is a mount"):
        tree.remove(real_folder / "t", keep="marker")
    assert (outside / "file").read_text() == "kept"
    assert (real_folder / "t" / "marker").exists()
    mount.umount(inside)
    tree.remove(real_folder / "t", keep="marker")
    assert not (real_folder / "t").exists()


@pytest.mark.real
@pytest.mark.parametrize("flag", ["+i", "+a"])
def test_files_that_were_made_hard_to_remove_go_all_the_same(real_folder: Path, flag: str) -> None:
    top = real_folder / "t"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "f").write_text("")
    os.mkfifo(top / "a" / "fifo")
    _chain(top / "a", 100)
    deep = top / "a" / "/".join("d" * 66)
    for path in (top / "a" / "f", top / "a" / "b", deep / "d", deep, top / "a"):
        try:
            run(["chattr", flag, str(path)])
        except CommandError as failure:
            pytest.skip(f"no such flags here: {failure}")
    tree.remove(top)
    assert not top.exists()


def test_cached_pages_of_a_file_and_of_the_files_of_a_directory_are_dropped(tmp_path: Path) -> None:
    alone, outside, inside = tmp_path / "alone", tmp_path / "outside", tmp_path / "folder" / "deep" / "inside"
    inside.parent.mkdir(parents=True)
    files = alone, outside, inside
    for file in files:
        with file.open("wb") as data:
            data.write(b"x" * 100_000)
            os.fsync(data.fileno())
    (inside.parent / "link").symlink_to(outside)
    os.mkfifo(inside.parent / "fifo")  # opening one would wait for a writer
    tree.drop_cache(tmp_path / "missing")
    for _ in range(TRIES):
        for file in files:
            file.read_bytes()
        before = [is_cached(file) for file in files]
        tree.drop_cache(tmp_path / "folder")
        tree.drop_cache(alone)
        after = [is_cached(file) for file in files]
        if (before, after) == ([True, True, True], [False, True, False]):
            return
    pytest.fail(f"cached before: {before}, after: {after}")
