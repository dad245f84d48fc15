"""Building programs: resumed, one process at a time, and said whom a process waits for. `go` is a script here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cluster import gobuild
from cluster.gobuild import NO_BUILD, Missing, Program, build

GO = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
case $3 in
broken) echo "x.go:1: syntax error" >&2; exit 1;;
away) echo "dial tcp: lookup of a module failed" >&2; exit 1;;
slow) read line < "$GATE";;
esac
echo "$3" > "$2"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has `go` in its bin/."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "go").write_text(GO)
    (tmp_path / "bin" / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("GATE", f"{tmp_path}/gate")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(NO_BUILD)  # which tests/conftest.py sets
    return tmp_path


def program(folder: Path, name: str) -> Program:
    return Program(name, folder, name, folder / "out" / name)


def test_what_is_there_is_not_built_again(folder: Path) -> None:
    said: list[str] = []
    build([program(folder, "a"), program(folder, "b")], say=said.append)
    assert said == ["building a, 1 of 2, 0 min", "building b, 2 of 2, 0 min"]
    build([program(folder, "a"), program(folder, "c")], say=said.append)
    assert said[2:] == ["building c, 1 of 1, 0 min"]
    assert sorted(os.listdir(folder / "out")) == ["a", "b", "c"]


def test_no_test_builds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build([program(folder, "a")])
    monkeypatch.setenv(NO_BUILD, "yes")
    build([program(folder, "a")])
    with pytest.raises(Missing, match=r"not built: b \(make programs\)"):
        build([program(folder, "a"), program(folder, "b")])
    assert os.listdir(folder / "out") == ["a"]


def test_no_build_is_said_to_every_test() -> None:
    assert os.environ[NO_BUILD]


@pytest.mark.parametrize(("name", "error"), [("broken", RuntimeError), ("away", Missing)])
def test_what_fails_leaves_the_programs_before_it(folder: Path, name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=name if name == "broken" else "cannot be had"):
        build([program(folder, "a"), program(folder, name), program(folder, "b")])
    assert os.listdir(folder / "out") == ["a"]


def test_a_second_process_says_for_whom_it_waits_again_and_again_and_builds_nothing_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gobuild, "_PROGRESS_SECONDS", 0.0)  # of the second, which is a thread of this process
    os.mkfifo(folder / "gate")
    code = f"""
import sys
from pathlib import Path
from cluster.gobuild import Program, build
folder = Path({str(folder)!r})
build([Program("slow", folder, "slow", folder / "out" / "slow")])
"""
    first = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "building slow, 1 of 1, 0 min\n"
        said: list[str] = []
        waits = threading.Event()

        def say(text: str) -> None:
            said.append(text)
            if len(said) > 2:
                waits.set()

        second = threading.Thread(target=build, args=([program(folder, "slow")],), kwargs={"say": say}, daemon=True)
        second.start()
        assert waits.wait(60)
        (folder / "gate").write_text("go on\n")
        second.join(60)
        assert set(said) == {f"waiting for process {first.pid}, which builds slow, 1 of 1, 0 min"}
        assert (folder / "cache" / "tonnage" / "build.lock").read_text() == f"process {os.getpid()}"
        assert first.wait(60) == 0
    finally:
        first.kill()
        first.wait()
