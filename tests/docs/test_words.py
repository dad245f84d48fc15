"""Pages use the terms of the glossary, and the example for people who test their own operators runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import gen_reference
from scripts.measure import WORDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXEMPT = {"glossary.md", *gen_reference.GENERATED}
"""The glossary explains words; generated pages have the words of the code."""
PAGES = sorted(
    [p for p in DOCS.rglob("*.md") if p.name not in EXEMPT]
    + [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
)
NO_PROSE = re.compile(
    r"^```.*?^```|^ {3,}```.*?^ {3,}```|^ {4}\S[^\n]*$|<!-- figures .*?<!-- figures: end -->|`[^`]*`|\]\([^)]*\)",
    re.MULTILINE | re.DOTALL,
)
"""Code blocks, tables of saved figures, code, and targets of links."""
FOLDERS = re.compile(r"^## Folders$.*?(?=^## )", re.MULTILINE | re.DOTALL)
"""In docs/architecture.md: the docstrings of packages."""
AVOIDED = re.compile(r"\b(?:" + "|".join(word.replace(" ", r"\s+") for word in WORDS) + r")\b", re.IGNORECASE)


def avoided(text: str) -> list[str]:
    """Words to avoid in the prose of a page."""
    return AVOIDED.findall(NO_PROSE.sub(" ", FOLDERS.sub(" ", text)))


def test_words_are_found_in_prose_and_in_headings() -> None:
    assert avoided("# Room\n\nIt is kept\nbeside `room` and ```x``` of [it](room.md#room).\n") == [
        "Room",
        "kept",
        "beside",
    ]
    assert avoided("the claim goes\nback") == ["goes\nback"]


def test_words_in_code_are_not_prose() -> None:
    assert (
        avoided(
            "a\n\n```console\n$ room\n```\n\n    kubectl get room\n\n<!-- figures x -->\nroom\n<!-- figures: end -->"
        )
        == []
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_has_no_word_to_avoid(page: Path) -> None:
    assert avoided(page.read_text()) == []


def test_the_example_for_operators_runs(tmp_path: Path) -> None:
    """As a reader would run it: in a file of its own, by this environment's Python."""
    page = (DOCS / "tasks" / "test-operators.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (printed,) = re.findall(r"^It prints:\n\n```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "example.py"
    file.write_text(example)
    ended = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == printed
