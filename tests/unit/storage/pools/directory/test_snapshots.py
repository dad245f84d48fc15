"""Snapshots of a directory: records of their own, what a kill left is passed on, other content without one is left alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import UUID

import pytest

from tonnage.base.errors import HostError, NotFoundError
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.directory.snapshots import Snapshots

RECORD = VolumeRecord("s", 4096, UUID(int=1), block=True, from_volume="v")


def test_a_life(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, "image", ".img")
    snapshots.open()
    assert not snapshots.path.exists()
    snapshots.prepare()
    snapshots.content("s").touch()
    for name in ("half", "lost"):
        snapshots.content(name).touch()
    snapshots.directory.begin("half")
    snapshots.directory.begin("s")
    snapshots.add(RECORD, durable=True)
    assert (snapshots.find("s"), snapshots.find("t"), snapshots.used()) == (RECORD, None, 4096)
    snapshots.close()
    passed: list[Path] = []
    snapshots.open()
    snapshots.clean(passed.append)
    assert snapshots.all() == [RECORD]
    assert passed == [snapshots.content("half")]
    assert (snapshots.directory.is_begun("half"), snapshots.directory.is_begun("s")) == (True, False)
    with pytest.raises(HostError, match="there is none, only its content"):
        snapshots.find("lost")
    for _ in range(2):
        snapshots.forget("s", durable=True)
    with pytest.raises(NotFoundError):
        snapshots.record("s")
    snapshots.close()


def test_a_folder_that_cannot_be_seen_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = Snapshots(tmp_path, "image", ".img")
    snapshots.prepare()
    snapshots.add(RECORD, durable=True)
    snapshots.close()
    real = os.lstat

    def fails(path: str | Path, **more: int) -> os.stat_result:
        if str(path) == str(snapshots.path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", fails)
        with pytest.raises(OSError, match="Input/output"):
            snapshots.open()
    snapshots.open()
    assert snapshots.all() == [RECORD]
    snapshots.close()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, "image", ".img")
    snapshots.prepare()
    (snapshots.path / "s.json").write_text("{}")
    snapshots.close()
    snapshots.open()
    with pytest.raises(HostError, match=r"snapshot s: its record .*s\.json is damaged"):
        snapshots.find("s")
    snapshots.close()
