"""`make demo`'s main job, as a new user runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def test_the_story_holds_on_real_volumes(make_cluster: Callable[..., Any]) -> None:
    """make_cluster is asked for as it skips where real clusters cannot be had."""
    ended = subprocess.run(
        [sys.executable, "-m", "tonnage", "demo"], capture_output=True, text=True, timeout=300, check=False
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "FAILED" not in ended.stdout
    assert "No space left on device" in ended.stdout
    assert ended.stderr == ""
