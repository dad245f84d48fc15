"""Snapshots of a directory: records of their own, leftovers without one are passed on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import UUID

import pytest

from tonnage.errors import HostError, NotFoundError
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.directory.snapshots import Snapshots

RECORD = VolumeRecord("s", 4096, UUID(int=1), block=True, from_volume="v")


def test_a_life(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, "image", ".img")
    snapshots.open(lambda _: None)
    assert not snapshots.path.exists()
    snapshots.prepare()
    snapshots.content("s").touch()
    snapshots.content("leftover").touch()
    snapshots.add(RECORD, durable=True)
    assert (snapshots.find("s"), snapshots.find("t"), snapshots.used()) == (RECORD, None, 4096)
    snapshots.close()
    leftovers: list[Path] = []
    snapshots.open(leftovers.append)
    assert snapshots.all() == [RECORD]
    assert leftovers == [snapshots.content("leftover")]
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
            snapshots.open(lambda _: None)
    snapshots.open(lambda _: None)
    assert snapshots.all() == [RECORD]
    snapshots.close()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, "image", ".img")
    snapshots.prepare()
    (snapshots.path / "s.json").write_text("{}")
    snapshots.close()
    snapshots.open(lambda _: None)
    with pytest.raises(HostError, match=r"snapshot s: its record .*s\.json is damaged"):
        snapshots.find("s")
    snapshots.close()
