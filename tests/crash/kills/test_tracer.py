"""The tracer itself: it stops at what changes something, in all threads and programs, and kills whom it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.crash.kills.tracer import Step, Tracer, in_fork

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("traced")]
_TOOL = "import os,sys; [os.mkdir(f'{sys.argv[1]}/tool{n}') for n in range(3)]"


def _body(folder: Path, *, tool: bool) -> None:
    (folder / "first").mkdir()
    thread = threading.Thread(target=(folder / "thread").mkdir)
    thread.start()
    thread.join()
    if tool:
        subprocess.run([sys.executable, "-I", "-S", "-c", _TOOL, str(folder)], check=False)
    (folder / "last").mkdir()
    os._exit(0)


def _made(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_each_change_is_a_step_and_reading_is_none(tmp_path: Path) -> None:
    def test() -> None:
        steps: list[Step] = []

        def remember(step: Step) -> bool:
            steps.append(step)
            return False

        ended = Tracer().run(lambda: _body(tmp_path, tool=True), traced=True, at_step=remember)
        made = [step for step in steps if " mkdir " in step.what]
        assert ended.steps == len(steps)
        names = [Path(step.what.split()[-1]).name for step in made]
        assert names == ["first", "thread", "tool0", "tool1", "tool2", "last"]
        assert [step.tool for step in made] == [False, False, True, True, True, False]

    in_fork(test)
    assert _made(tmp_path) == ["first", "last", "thread", "tool0", "tool1", "tool2"]


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ("first", []),
        ("thread", ["first"]),
        ("tool1", ["first", "thread", "tool0"]),
        ("last", ["first", "thread", "tool0", "tool1", "tool2"]),
    ],
)
def test_what_is_killed_before_a_step_has_not_made_it(tmp_path: Path, at: str, left: list[str]) -> None:
    def test() -> None:
        following = Tracer()

        def kill(step: Step) -> bool:
            if not step.what.endswith(at):
                return False
            following.kill_all()
            return True

        ended = following.run(lambda: _body(tmp_path, tool=True), traced=True, at_step=kill)
        assert os.WTERMSIG(ended.status) == signal.SIGKILL
        following.outlast()

    in_fork(test)
    assert _made(tmp_path) == left


@pytest.mark.parametrize("held", [False, True])
def test_a_tool_outlives_its_driver(tmp_path: Path, held: bool) -> None:
    def test() -> None:
        following = Tracer()
        done: list[Step] = []

        def kill(step: Step) -> bool:
            if not done and step.what.endswith("tool1"):
                done.append(step)
                following.held = held
                os.kill(following.driver, signal.SIGKILL)
            return bool(done) and (held or step is not done[0])  # the tool cannot end before the driver's end is seen

        ended = following.run(lambda: _body(tmp_path / "one", tool=True), traced=True, at_step=kill)
        assert os.WTERMSIG(ended.status) == signal.SIGKILL
        assert following.left
        following.run(lambda: _body(tmp_path / "two", tool=False), traced=False)  # meanwhile
        if held:
            assert _made(tmp_path / "one") == ["first", "thread", "tool0"]
        following.outlast()
        assert not following.left

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    in_fork(test)
    assert _made(tmp_path / "one") == ["first", "thread", "tool0", "tool1", "tool2"]
    assert _made(tmp_path / "two") == ["first", "last", "thread"]
