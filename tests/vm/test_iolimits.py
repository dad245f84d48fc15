"""Limits of IO by cgroup v2, which the machine itself may not have: the same tests inside user-mode Linux."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.uml, pytest.mark.real, pytest.mark.timeout(900)]
SUITES = ("tests/unit/csi/driver/test_io_limits_real.py", "tests/unit/host/test_iolimits.py")
CGROUP2 = "mount -t cgroup2 cgroup2 /sys/fs/cgroup"


def test_limits_by_cgroup_v2(guest_suite: Callable[..., Any]) -> None:
    ended = guest_suite("IO limits by cgroup v2", *SUITES, before=CGROUP2, seconds=300)
    output = f"{ended.out}\n{ended.err}"
    assert ended.code == 0, output
    assert ended.results, output
    assert set(ended.results.values()) == {"PASSED"}, output
