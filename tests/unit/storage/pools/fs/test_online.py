"""Mounted file systems: what is wrong with them, and who can grow."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import uuid4

import pytest

from tonnage.base.errors import ExhaustedError, HostError, NotFoundError, PreconditionError
from tonnage.host import filesystem, mount
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs import online

RECORD = VolumeRecord("v", 4096, uuid4(), length=8192, fstype="xfs")


def test_faults(tmp_path: Path) -> None:
    assert online.mount_fault(tmp_path) == f"it is not mounted at {tmp_path}"
    assert online.mount_fault(tmp_path / "none") == f"it is not mounted at {tmp_path / 'none'}"


@pytest.mark.real
def test_a_healthy_mount_has_none(real_folder: Path) -> None:
    (real_folder / "m").mkdir()
    mount.mount("none", real_folder / "m", "tmpfs", ["size=1m", "ro"])
    assert online.mount_fault(real_folder / "m") == "", "it is meant to be read-only"


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [
        (errno.EROFS, PreconditionError, "mounted read-only"),
        (errno.ENOSPC, ExhaustedError, "to grow its file system"),
        (errno.EIO, HostError, "cannot grow"),
    ],
)
def test_why_it_does_not_grow(
    number: int, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filesystem, "grow", fail)
    root = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(error, match=words):
        online.grow(RECORD, [root])
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(root)


def test_nothing_to_grow() -> None:
    with pytest.raises(NotFoundError, match="not mounted where this process can see it"):
        online.grow(RECORD, [])
