"""What tests that kill need of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.kills.machine import Machine

ROOT = Path(__file__).parents[3]
_ROOM = 12 * 1024**3  # bytes that two campaigns may take at the same time, with room to spare
_BASE, _SECONDS_A_KILL, _SECONDS_A_CUT, _SECONDS_A_REQUEST = 1200.0, 10.0, 2.0, 0.1
"""What ends a campaign that hangs: far above what it takes on a machine with other load."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the tests that take a number of kills, cuts or requests a limit that grows with it."""
    seconds = _BASE + _SECONDS_A_KILL * config.getoption("--kills") + _SECONDS_A_CUT * config.getoption("--cuts")
    seconds += _SECONDS_A_REQUEST * config.getoption("--fuzz")
    for item in items:
        if item.get_closest_marker("campaign"):
            item.add_marker(pytest.mark.timeout(seconds))


@pytest.fixture(scope="session")
def traced() -> None:
    """Skips where processes cannot be stopped at their system calls; found out in a process of its own."""
    command = [sys.executable, "-m", "tests.crash.kills.tracer"]
    if reason := subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def rooted() -> None:
    """Skips where there can be no mounts."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts and loop devices")


def _memory() -> str | None:
    """Where memory is the disk, if there is enough: neither kills nor cuts of a disk of their own need another."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return "/dev/shm" if found.f_bavail * found.f_frsize > _ROOM and os.access("/dev/shm", os.W_OK) else None


@pytest.fixture(scope="module")
def fast_folder() -> Iterator[Path]:
    """A folder on a quick disk; mounts and loop devices that are left in it are taken away."""
    with tempfile.TemporaryDirectory(prefix="tonnage-kills-", dir=_memory(), ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            Machine(Path(folder), Path(folder)).sweep()
