"""What is started is in its cgroup before it does anything, and does nothing where it cannot be put there."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.signal_masks import without_threads

from tonnage_box.kubelet.containers.spawn import ContainerPrograms, spawn
from tonnage_box.kubelet.pod_cgroups import PodCgroup

STAND_IN = """#!/bin/sh
# Reads the two lists of options as bwrap does, then says what it got.
while [ "$1" != -- ]; do
    [ "$1" = --args ] && tr '\\0' ' ' <"/dev/fd/$2"
    shift
done
echo started; cat "$GROUP/cgroup.procs"
"""


def _spawn(folder: Path, group: PodCgroup | None, output: int) -> subprocess.Popen[bytes]:
    program = folder / "program"
    program.write_text(STAND_IN.replace("$GROUP", str(folder)))
    program.chmod(0o700)
    keep = os.open("/dev/null", os.O_RDONLY)
    try:
        return spawn(
            [str(program)],
            ["--a", "b"],
            ["x"],
            streams=(subprocess.DEVNULL, output, output),
            keep=[keep],
            programs=ContainerPrograms(b"\x7fELF"),
            group=group,
        )
    finally:
        os.close(keep)


def _said(folder: Path, group: PodCgroup | None) -> tuple[int, list[str]]:
    reader, writer = os.pipe()
    try:
        child = _spawn(folder, group, writer)
        code = child.wait(timeout=60)
    finally:
        os.close(writer)
    with os.fdopen(reader) as text:
        return child.pid if code == 0 else -1, text.read().split()


def test_options_come_whole_and_after_the_cgroup(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("")
    pid, said = _said(tmp_path, PodCgroup(tmp_path, v2=True))
    assert said == ["--a", "b", "started", str(pid)]


def test_without_a_group(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("")
    assert _said(tmp_path, None)[1] == ["--a", "b", "started"]


def test_what_cannot_be_put_into_its_group_never_starts(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with pytest.raises(FileNotFoundError):
        _spawn(tmp_path, PodCgroup(tmp_path / "gone", v2=True), writer)
    os.close(writer)
    with os.fdopen(reader) as text:
        assert "started" not in text.read()


def test_signals_that_the_kubelet_ignores_or_blocks_are_not_so_in_it(tmp_path: Path) -> None:
    """As in a box that a script has started with `&`, or nohup."""
    (tmp_path / "cgroup.procs").symlink_to("/proc/self/status")
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        _, said = _said(tmp_path, None)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        for number, handler in before.items():
            signal.signal(number, handler)
    found = dict(itertools.pairwise(said))
    assert [without_threads(found[name]) for name in ("SigIgn:", "SigBlk:")] == ["0" * 16, "0" * 16]
