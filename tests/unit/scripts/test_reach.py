"""What CI chooses of guests, clusters and programs in Go: complete rows, what a change reaches, a budget, and a turn."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import reach
from scripts.run_tests import ALONE, REST

ROOT = Path(__file__).parents[3]
FILES = sorted({subject.file for subject in reach.SUBJECTS})
MARKS = re.compile(r"\b(pytest\.mark|markers?)\.(programs|campaign|uml|qemu|e2e|alone)\b")
NOT_IN_CI = {"tests/e2e/test_upgrade_from.py", "tests/e2e/test_velero.py"}


def subject(tests: str) -> reach.Subject:
    return next(each for each in reach.SUBJECTS if each.tests == tests)


def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_row_names_what_exists() -> None:
    for each in reach.SUBJECTS:
        name = each.tests.partition("::")[2].partition("[")[0]
        assert not name or name in functions(each.file), each.tests
        for about in each.about:
            assert any((ROOT / at / about).exists() for at in ("src/tonnage", "src", ".")), (each.tests, about)


def test_every_file_of_these_lanes_has_a_row() -> None:
    marked = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if MARKS.search(file.read_text()) and file != Path(__file__)
    }
    assert marked - set(FILES) - NOT_IN_CI == set()
    assert {each.lane for each in reach.SUBJECTS} == {*REST, *ALONE} - {"examples", "slowness"}, "CI takes few examples"


@pytest.mark.parametrize(
    "file", [file for file in FILES if any("::" in s.tests for s in reach.SUBJECTS if s.file == file)]
)
def test_a_file_with_rows_for_its_tests_has_one_for_each(file: str) -> None:
    named = {each.tests.partition("::")[2].partition("[")[0] for each in reach.SUBJECTS if each.file == file}
    text = (ROOT / file).read_text()
    if "pytestmark" in text and MARKS.search(text.partition("pytestmark")[2].partition("\n\n")[0]):
        assert {name for name in functions(file) if name.startswith("test_")} == named


def test_a_change_reaches_what_is_about_it() -> None:
    files = {"src/tonnage/storage/pools/lvm/thin.py"}
    assert (
        reach.reached(subject("tests/vm/test_uml.py::test_lvm[lvm]"), files) == "src/tonnage/storage/pools/lvm/thin.py"
    )
    assert reach.reached(subject("tests/e2e/test_scheduler.py"), files) == ""
    assert reach.reached(subject("tests/e2e/test_scheduler.py"), {"tests/e2e/test_scheduler.py"})
    assert reach.reached(subject("tests/e2e/test_scheduler.py"), {"tests/e2e/conftest.py"})
    assert reach.reached(subject("tests/e2e/test_scheduler.py"), {"tests/e2e/replicas.py"}), "a module that it imports"
    assert reach.reached(subject("tests/e2e/test_scheduler.py"), {"src/tonnage/schedulers.py"}) == ""


def test_what_is_reached_goes_before_what_has_its_turn() -> None:
    chosen = reach.choose({"src/tonnage/scheduler/core/cycle.py"}, 0).chosen
    assert chosen[subject("tests/e2e/test_scheduler.py")] == "src/tonnage/scheduler/core/cycle.py"
    assert "its turn" in chosen.values()


CHANGES = st.sets(st.sampled_from([*FILES, *(about for each in reach.SUBJECTS for about in reach._paths(each.about))]))


@given(changed=CHANGES, turn=st.integers(0, 2**32), budget=st.floats(0, 60))
def test_a_lane_keeps_to_its_budget_and_nothing_reached_is_lost(changed: set[str], turn: int, budget: float) -> None:
    choice = reach.choose(changed, turn, budget=budget)
    minutes: dict[str, float] = defaultdict(float)
    for each in choice.chosen:
        if not each.is_smoke:
            minutes[each.budget] += each.minutes
    assert max(minutes.values(), default=0) <= budget
    assert {each for each in reach.SUBJECTS if each.is_smoke} <= set(choice.chosen)
    wanted = {each for each in reach.SUBJECTS if reach.reached(each, changed)}
    assert wanted == {*choice.left_out} | (wanted & set(choice.chosen))


def test_every_test_has_its_turn() -> None:
    assert {each for turn in range(60) for each in reach.choose((), turn).chosen} == set(reach.SUBJECTS)


def test_a_change_begins_where_the_last_one_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str, at: int = 10**9) -> str:
        environment = {"GIT_AUTHOR_DATE": f"{at} +0000", "GIT_COMMITTER_DATE": f"{at} +0000", "HOME": str(tmp_path)}
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    git("init", "-q")
    hour, commits = 3600, []
    for number, at in enumerate([0, 20 * hour, 21 * hour, 22 * hour]):
        (tmp_path / f"{number}.txt").write_text("")
        git("add", f"{number}.txt")
        git("commit", "-q", "-m", str(number), at=10**9 + at)
        commits.append(git("rev-parse", "HEAD"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    assert reach.base(tmp_path) == commits[0], "of another day"
    git("checkout", "-q", commits[2])
    reach.note_passed(tmp_path)
    assert reach.base(tmp_path) == commits[0], "it is about what came before"
    git("checkout", "-q", commits[3])
    assert reach.base(tmp_path) == commits[2]
    assert reach.changed_since(commits[2], tmp_path) == ["3.txt"]
