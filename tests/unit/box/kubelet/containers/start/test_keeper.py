"""The keeper of a container's output: pipes keep what is in them until it ends, and it leaves nothing behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests import processes
from tests.unit.box.kubelet.containers.start.test_program import Arm64

from tonnage_box.kubelet.containers.start import keeper

pytestmark = pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="its program is for others")


@pytest.fixture
def pipes(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The container's ends, as the kubelet opens them."""
    made = []
    for name in ("out", "err"):
        os.mkfifo(tmp_path / name)
        made.append(os.open(tmp_path / name, os.O_RDWR | os.O_CLOEXEC))
    yield made[0], made[1]
    keeper.end(str(tmp_path))


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, 1 << 20)
    except BlockingIOError:
        return b""
    finally:
        os.close(fd)


def _files(process: int) -> list[str]:
    """What a process has open."""
    found = []
    for fd in os.listdir(f"/proc/{process}/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{process}/fd/{fd}"))
    return sorted(found)


def test_what_is_written_is_there_after_everybody_has_ended(tmp_path: Path, pipes: tuple[int, int]) -> None:
    child = keeper.start(str(tmp_path), *pipes)
    os.write(pipes[0], b"o" * 65536)
    os.write(pipes[1], b"why")
    for fd in pipes:
        os.close(fd)
    assert (_read(tmp_path / "out"), _read(tmp_path / "err")) == (b"o" * 65536, b"why")
    assert _read(tmp_path / "out") == b"", "once"
    late = time.monotonic() + 60
    while _files(child) != [str(tmp_path / name) for name in ("err", keeper.PIPE, "out")]:  # once it has begun
        assert time.monotonic() < late, _files(child)
        time.sleep(0.001)
    assert processes.with_argument(str(tmp_path)) == [child]
    assert os.readlink(f"/proc/{child}/cwd") == "/", "it keeps no other disk busy"
    keeper.await_end(str(tmp_path))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert processes.with_argument(str(tmp_path)) == []


def test_it_ends_though_it_is_asked_before_it_has_begun(tmp_path: Path, pipes: tuple[int, int]) -> None:
    child = keeper.start(str(tmp_path), *pipes)
    assert keeper.end(str(tmp_path))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not keeper.end(str(tmp_path)), "there is none any more"
    for fd in pipes:
        os.close(fd)


def test_where_there_is_none_nothing_is_to_be_done(tmp_path: Path) -> None:
    keeper.await_end(str(tmp_path))
    assert not keeper.end(str(tmp_path / "gone"))


@pytest.mark.parametrize("interrupted", [0, 1, 3])
def test_it_does_the_same_on_arm64(interrupted: int) -> None:
    reads = 0

    def result(name: str, _arguments: tuple[int, ...]) -> int:
        nonlocal reads
        reads += name == "read"
        return -4 if name == "read" and reads <= interrupted else 1  # EINTR

    calls = Arm64(keeper.program("aarch64"), result).run()
    assert [name for name, *_ in calls] == ["chdir", "close_range", *["read"] * (interrupted + 1), "exit_group"]
