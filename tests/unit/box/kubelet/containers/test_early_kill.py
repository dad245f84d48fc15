"""A container that is killed before bwrap has written which process is the first of its namespace."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.unit.box.kubelet.conftest import Eventually

from tonnage.base.aio.clock import RealClock
from tonnage_box.kubelet.containers.process import ROOT, ContainerProcess, ProcessState, boot_id, running_in

_FORKS = "import os, time; os.fork(); time.sleep(1000)"
"""As bwrap between its clone and its status: two processes, and the second has no parent when the first is killed."""


@pytest.mark.parametrize("adopted", [False, True], ids=["its own", "adopted"])
async def test_nothing_of_it_stays(tmp_path: Path, eventually: Eventually, *, adopted: bool) -> None:
    root = f"{tmp_path}/{ROOT}"
    child = _started(root)
    ended: list[int] = []
    try:
        await eventually(lambda: len(running_in(root)) == 2)
        state = ProcessState("c", child.pid, 0, boot_id(), time.time(), "")
        found = ContainerProcess(
            state, str(tmp_path), RealClock(), lambda: ended.append(1), child=None if adopted else child
        )
        found.watch(os.pidfd_open(child.pid))
        found.stop(0)
        await eventually(lambda: found.ended is not None)
        assert running_in(root) == []
        assert (ended, found.ended is not None and found.ended.code) == ([1], 137)
    finally:
        for pid in running_in(root):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        child.wait()


def _started(root: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _FORKS, root])
