"""The data folder: only ours is used, by one process, and nothing else is touched."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.errors import BusyError, InvalidError
from tonnage.host import tree
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage_box.data_dir import DataFolder, Settings


def test_open_keeps_settings_and_close_lets_the_next_in(tmp_path: Path) -> None:
    first = DataFolder(tmp_path / "d")
    first.open(Settings(nodes=3))

    assert DataFolder(tmp_path / "d").running() == os.getpid()
    with pytest.raises(BusyError, match=f"in use by process {os.getpid()}"):
        DataFolder(tmp_path / "d").open(Settings())
    first.close()
    second = DataFolder(tmp_path / "d")
    assert second.running() is None
    assert second.settings() == Settings(nodes=3)
    second.open(Settings(nodes=4))
    assert second.settings() == Settings(nodes=3)  # until the cluster has started with them
    second.keep(Settings(nodes=4), "uid-1")
    assert second.settings() == Settings(nodes=4)
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    second.close()


def test_the_scoring_is_kept_and_only_one_that_exists_is_taken(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "d")
    data.open(Settings(scoring=ScoringStrategy.TIGHTEST_FIT))
    data.close()
    assert data.settings() == Settings(scoring=ScoringStrategy.TIGHTEST_FIT)

    marker = data.path / "tonnage.json"
    marker.write_text(marker.read_text().replace("tightest-fit", "widest-fit"))
    with pytest.raises(InvalidError, match="widest-fit"):
        data.settings()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")

    with pytest.raises(InvalidError, match="not tonnage's"):
        DataFolder(tmp_path).open(Settings())
    with pytest.raises(InvalidError, match="not tonnage's"):
        DataFolder(tmp_path).purge()
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_unknown_format_and_broken_marker_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "tonnage.json").write_text('{"format": 99, "settings": {}}')
    with pytest.raises(InvalidError, match="format 99"):
        DataFolder(tmp_path).settings()
    (tmp_path / "tonnage.json").write_text("{")
    with pytest.raises(InvalidError, match="cannot be read"):
        DataFolder(tmp_path).settings()


def test_a_file_or_link_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)

    for name in ("file", "link"):
        with pytest.raises(InvalidError, match="not a folder"):
            DataFolder(tmp_path / name).open(Settings())


def test_read_only_parent_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="cannot be used"):
        DataFolder(Path("/proc/tonnage")).open(Settings())


def test_what_another_process_left_before_the_lock_was_taken_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was empty when it was looked at first."""
    data, take = DataFolder(tmp_path / "d"), DataFolder._take

    def late(self: DataFolder, *, running: bool = True) -> None:
        (self.path / "nodes" / "n1" / "pools").mkdir(parents=True)
        take(self, running=running)

    monkeypatch.setattr(DataFolder, "_take", late)
    with pytest.raises(InvalidError, match="not tonnage's"):
        data.open(Settings())
    data.undo()
    assert (data.path / "nodes" / "n1" / "pools").is_dir()
    assert data.running() is None


def test_undo_that_is_killed_leaves_a_folder_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never one that seems to have lost its database."""
    left = 0

    def killing(work: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: Any, **options: Any) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            work(*arguments, **options)

        return step

    monkeypatch.setattr(tree, "remove", killing(tree.remove))
    monkeypatch.setattr(Path, "unlink", killing(Path.unlink))
    for steps in range(30):
        data, left = DataFolder(tmp_path / str(steps)), -1
        data.open(Settings())
        for name in ("state.db", "state.db-wal", "kubeconfig", "tonnage.log"):
            (data.path / name).touch()
        (data.node("n1") / "kubelet").mkdir(parents=True)
        left = steps
        try:
            data.undo()
        except KeyboardInterrupt:
            assert data.exists() or not data.had_cluster()
            assert data.state.exists() or not data.had_cluster()
        else:
            break
    assert not data.path.exists()


def test_purge_removes_all_of_it_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("stays")
    data = DataFolder(tmp_path / "d")
    data.open(Settings())
    (data.node("n1") / "pools").mkdir(parents=True)
    (data.node("n1") / "link").symlink_to(tmp_path / "outside")
    data.close()

    data.purge()
    data.purge()

    assert not data.path.exists()
    assert (tmp_path / "outside").read_text() == "stays"


def test_long_paths_get_short_sockets(tmp_path: Path) -> None:
    short, long = DataFolder(Path("/srv/t")), DataFolder(tmp_path / ("x" * 120))

    assert short.sockets() == Path("/srv/t/run")
    assert len(str(long.sockets())) < 62
    assert long.sockets() != DataFolder(tmp_path / ("y" * 120)).sockets()


def test_the_folder_of_short_sockets_goes_with_its_process_and_returns(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / ("x" * 120))
    for _ in range(2):
        data.open(Settings())
        (data.sockets() / "n1" / "registry").mkdir(parents=True)
        data.close()
        assert not data.sockets().exists()
    data.open(Settings())
    other = data.sockets() / "n1" / "registry" / "driver.sock"
    other.parent.mkdir(parents=True)
    (data.sockets() / "n2").mkdir()
    other.touch()
    data.close()
    assert [entry.name for entry in data.sockets().iterdir()] == ["n1"]
    assert other.exists(), "a driver that runs on is found again by the next cluster"
    data.purge()
    assert not data.sockets().exists()


@pytest.mark.parametrize("kind", ["link", "writable"])
def test_a_folder_of_short_sockets_that_others_can_change_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    data, theirs = DataFolder(tmp_path / ("x" * 120)), tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "n1").touch()
    chosen = tmp_path / "link" if kind == "link" else theirs
    if kind == "link":
        chosen.symlink_to(theirs)
    else:
        theirs.chmod(0o777)
    monkeypatch.setattr(DataFolder, "sockets", lambda _self: chosen)
    with pytest.raises(InvalidError, match=f"{chosen}, is a link, or others can write"):
        data.open(Settings())
    assert (theirs / "n1").exists()


@pytest.mark.parametrize("takes", ["held", "open"])
def test_a_child_of_a_killed_process_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: str) -> None:
    """It has been forked and has the lock until its exec: nothing else shows that it is there."""
    data = DataFolder(tmp_path / "d")
    data.open(Settings())
    data.close()
    lock = os.open(data.path / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    gone = subprocess.Popen(["true"])
    os.pwrite(lock, f"{gone.pid}\n".encode(), 0)
    pauses = list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            os.close(lock)

    monkeypatch.setattr(time, "sleep", pause)
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)  # a zombie, as where its parent does not wait for it
    if takes == "held":
        with data.held():
            assert len(pauses) == 2
    else:
        data.open(Settings())
        assert len(pauses) == 2
        data.close()
    gone.wait()


def test_a_lock_of_a_process_that_runs_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, other = DataFolder(tmp_path / "d"), DataFolder(tmp_path / "d")
    data.open(Settings())
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(BusyError, match=f"in use by process {os.getpid()}"):
        other.open(Settings())
    data.close()
    with data.held(), pytest.raises(BusyError, match="being cleaned or opened"):
        other.open(Settings())
