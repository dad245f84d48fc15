"""Containers whose bwrap or kubelet is killed between two steps: nothing of them runs on."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from tests.unit.box.kubelet.machine import Eventually

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import HostError
from tonnage_box.kubelet.containers import bubblewrap
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.containers.process import (
    ROOT,
    STATE,
    STATUS,
    ContainerProcess,
    ProcessState,
    boot_id,
    running_in,
)

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


@pytest.mark.parametrize("status", [{"child-pid": 0}, {"child-pid": 0, "exit-code": 3}], ids=["bwrap killed", "ended"])
async def test_what_the_command_left_running_ends_though_its_kubelet_was_killed(
    tmp_path: Path, eventually: Eventually, status: dict[str, int]
) -> None:
    """Killed after bwrap had ended, and before it ended the rest: the exit code is only that of the command."""
    runtime = BubblewrapRuntime(tmp_path, RealClock())
    folder = Path(runtime.paths.containers("uid")) / "main" / "0"
    folder.mkdir(parents=True)
    root = f"{folder}/{ROOT}"
    gone, rest = _gone(), _started(root, "import time; time.sleep(1000)")
    ended: list[int] = []
    try:
        (folder / STATUS).write_bytes(msgspec.json.encode(status | {"child-pid": rest.pid}))
        state = ProcessState("c", gone, 0, boot_id(), time.time(), "")
        (folder / STATE).write_bytes(msgspec.json.encode(state))
        await eventually(lambda: running_in(root) == [rest.pid])  # its exec may have no command line yet
        (found,) = await runtime.adopt("uid", None, lambda: ended.append(1))
        await eventually(lambda: found.process.ended is not None)
        assert rest.wait(60) == -signal.SIGKILL
        assert ended == [1]
        assert found.process.ended is not None
        assert found.process.ended.code == status.get("exit-code", 137)
    finally:
        rest.kill()
        rest.wait()
        await runtime.close()


_WAITS = "import os, sys; os.read(0, 1); os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(1000)', {root!r}])"
"""As a child of the kubelet before its exec: nothing in its command line shows what it will be."""


async def test_a_process_without_its_command_line_yet_is_awaited_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forked by a kubelet that was killed then; its exec comes after somebody has looked for it."""
    runtime = BubblewrapRuntime(tmp_path, RealClock())
    folder = Path(runtime.paths.containers("uid")) / "main" / "0"
    folder.mkdir(parents=True)
    root = f"{folder}/{ROOT}"
    with _locked(folder) as status:
        child = _forked(root, status)
    looks = list[list[int]]()

    def looked(place: str) -> list[int]:
        looks.append(running_in(place))
        if len(looks) == 1 and child.stdin is not None:
            child.stdin.close()
        return looks[-1]

    monkeypatch.setattr(bubblewrap, "running_in", looked)
    try:
        assert await runtime.adopt("uid", None, lambda: None) == []
        assert looks[0] == []
        assert child.wait(60) == -signal.SIGKILL
        assert not folder.exists()
    finally:
        child.kill()
        child.wait()
        await runtime.close()


def test_a_process_that_does_not_end_is_not_awaited_for_ever(tmp_path: Path) -> None:
    with _locked(tmp_path), pytest.raises(HostError, match="does not end when killed"):
        bubblewrap._kill_unknown(str(tmp_path), patience=0.1)


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """The status file, as a kubelet opens it for bwrap."""
    with open(folder / STATUS, "ab") as status:
        fcntl.flock(status, fcntl.LOCK_EX)
        yield status.fileno()


def _forked(root: str, status: int) -> subprocess.Popen[bytes]:
    """A process that waits for the end of its input before it gets its command line."""
    command = [sys.executable, "-c", _WAITS.format(root=root)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[status])


def _started(root: str, program: str = _FORKS) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, root])


def _gone() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid
