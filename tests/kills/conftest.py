"""What tests that kill need of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def traced() -> None:
    """Skips where processes cannot be stopped at their system calls; found out in a process of its own."""
    command = [sys.executable, "-m", "tests.kills.tracer"]
    if reason := subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def rooted() -> None:
    """Skips where there can be no mounts."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts and loop devices")
