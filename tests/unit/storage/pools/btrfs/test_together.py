"""Snapshots of several subvolumes in one transaction."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import HostError
from tonnage.host import btrfs, tree
from tonnage.host.descriptor import opened
from tonnage.host.run import run
from tonnage.storage.pools.btrfs import together

pytestmark = pytest.mark.real
FLAGS = os.O_RDONLY | os.O_DIRECTORY


def remove(path: Path) -> None:
    with opened(path.parent, FLAGS) as at:
        try:
            tree.remove_subvolume(at, path.name)
        except FileNotFoundError:
            return


def made_in(path: Path) -> int:
    with opened(path, FLAGS) as fd:
        return btrfs.made_in(fd)


@pytest.fixture
def disk(real_folder: Path) -> Iterator[Path]:
    """A btrfs with three subvolumes and a folder for snapshots."""
    need("mkfs.btrfs")
    image, path = real_folder / "disk.img", real_folder / "disk"
    with image.open("wb") as file:
        file.truncate(1 << 30)
    run(["mkfs.btrfs", "-q", str(image)])
    path.mkdir()
    run(["mount", "-o", "loop", str(image), str(path)])
    (path / "snapshots").mkdir()
    with opened(path, FLAGS) as at:
        for name in "abc":
            btrfs.create(at, name, 1 << 30)
    yield path
    run(["umount", "--lazy", str(path)])


def write(path: Path, stop: threading.Event) -> None:
    """Append to a file in each subvolume and sync it, again and again."""
    while not stop.is_set():
        for name in "abc":
            with (path / name / "file").open("ab", buffering=0) as file:
                file.write(b"x" * 100)
                os.fsync(file.fileno())


def test_they_are_of_one_transaction(disk: Path) -> None:
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(disk, stop))
    writer.start()
    try:
        for number in range(10):
            copies = [(disk / name, disk / "snapshots" / f"{name}{number}") for name in "abc"]
            together.snapshot(disk / "snapshots", copies, lambda: False, remove)
    finally:
        stop.set()
        writer.join()
    assert len(os.listdir(disk / "snapshots")) == 30, "nothing else is left"
    for number in range(10):
        made = [disk / "snapshots" / f"{name}{number}" for name in "abc"]
        assert len({made_in(path) for path in made}) == 1
        lengths = [(path / "file").stat().st_size if (path / "file").exists() else 0 for path in made]
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[0] - lengths[2] <= 100
        with pytest.raises(OSError, match="Read-only"):
            (made[0] / "new").write_text("")


def test_it_gives_up_when_it_is_late(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(100))
    monkeypatch.setattr(btrfs, "made_in", lambda _: next(numbers))
    late = iter([False, True])
    copies = [(disk / name, disk / "snapshots" / name) for name in "ab"]
    with pytest.raises(HostError, match=r"a and 1 more: .* in 2 attempts"):
        together.snapshot(disk / "snapshots", copies, lambda: next(late), remove)
    assert os.listdir(disk / "snapshots") == []


def test_one_that_cannot_be_made_leaves_none(disk: Path) -> None:
    copies = [(disk / "a", disk / "snapshots" / "a"), (disk / "none", disk / "snapshots" / "none")]
    with pytest.raises(HostError, match="cannot make snapshots of several subvolumes"):
        together.snapshot(disk / "snapshots", copies, lambda: False, remove)
    (disk / "snapshots" / "file").write_text("no subvolume")
    copies[1] = (disk / "snapshots", disk / "snapshots" / "b")
    with pytest.raises(HostError, match="cannot make snapshots of several subvolumes"):
        together.snapshot(disk / "snapshots", copies, lambda: False, remove)
    assert os.listdir(disk / "snapshots") == ["file"]


def test_what_a_kill_left_is_removed(disk: Path) -> None:
    folder = disk / "snapshots"
    (folder / ".together-0").mkdir()
    (folder / ".together-1").mkdir()
    (folder / ".together-1" / "dirty").write_text("")
    with opened(folder / ".together-0", FLAGS) as at, opened(disk / "a", FLAGS) as source:
        btrfs.snapshot(at, "snapshot", source, readonly=False)
    together.clean(folder, remove)
    assert os.listdir(folder) == []
    together.clean(disk / "nowhere", remove)
