"""What all tests share: which real things this machine can do, and leaving nothing behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tonnage.host import loop, mount


def _missing(*programs: str) -> str:
    """Why real pools cannot be had here, "" when they can."""
    if os.geteuid() != 0:
        return "needs root: mounts and loop devices"
    if not os.access(loop.CONTROL, os.R_OK | os.W_OK):
        return f"needs {loop.CONTROL}"
    absent = [program for program in programs if shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin") is None]
    return f"needs {', '.join(absent)}" if absent else ""


def _sweep(folder: Path) -> None:
    """Take away every mount and loop device under folder, whatever the test left."""
    for entry in reversed(list(mount.mounts())):
        if entry.target.startswith(f"{folder}/"):
            mount.umount(entry.target, lazy=True)
    for index, path in loop.attached():
        if path.startswith(f"{folder}/"):
            loop.detach(index)


@pytest.fixture
def real_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for real mounts and loop devices, all taken away at the end; skips where they cannot be had."""
    if reason := _missing("mkfs.ext4"):
        pytest.skip(reason)
    try:
        yield tmp_path
    finally:
        _sweep(tmp_path)


@pytest.fixture
def need_program() -> Callable[[str], None]:
    """Skips the test when a program is not installed."""

    def need(program: str) -> None:
        if reason := _missing(program):
            pytest.skip(reason)

    return need
