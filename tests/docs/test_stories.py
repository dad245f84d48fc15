"""docs/stories.md, docs/seeds.md and docs/reports.md: each row names tests that exist, and no story's test is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "stories.md").read_text()
SHOWN, REST = PAGE.split("## Try them")
ROWS = [
    line for line in SHOWN.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| story", "| use"))
]
SEEDS = [
    line
    for line in (ROOT / "docs" / "seeds.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| claim", "| system"))
]
REPORTS = [
    line
    for line in (ROOT / "docs" / "reports.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| reported"))
]
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions(file: Path) -> set[str]:
    """The tests of a file."""
    found = ast.walk(ast.parse(file.read_text()))
    defined = (node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for name in defined if name.startswith("test_")}


@pytest.mark.parametrize("row", [*ROWS, *SEEDS, *REPORTS], ids=lambda row: row.split("|")[1].strip()[:40])
def test_a_row_names_tests_that_exist(row: str) -> None:
    named = _TEST.findall(row)
    assert named, row
    for file, test in named:
        assert (ROOT / file).is_file(), file
        assert test in functions(ROOT / file), f"{file}::{test}"


def test_every_story_has_a_row() -> None:
    files = [*(ROOT / "tests" / "stories").glob("test_*.py"), ROOT / "tests" / "e2e" / "test_stories.py"]
    there = {(str(file.relative_to(ROOT)), test) for file in files for test in functions(file)}
    assert there <= set(_TEST.findall(SHOWN))


def test_what_is_not_shown_has_a_reason() -> None:
    rows = [line.split(" | ") for line in REST.split("## What is not shown")[1].splitlines() if line.startswith("| ")]
    assert len(rows) > 5
    assert all(len(row) == 2 and len(row[1]) > 20 for row in rows if row[0] not in ("| claim", "| ---"))
