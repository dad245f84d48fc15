"""docs/architecture.md: its three walks are those that the code takes, and each folder has its row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import gen_reference, walks
from tests.docs.pages import walks as shown

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
MOST = {"a claim": 12, "CreateVolume on an image pool": 18, "a pod through the scheduler": 12}
"""Files of each walk; none may grow. The measures print the goals."""


def test_the_walks_are_those() -> None:
    assert list(shown(PAGE)) == list(MOST) == list(walks.WALKS)


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[str]]:
    """The walks that the code takes."""
    return walks.recorded()


@pytest.mark.real
@pytest.mark.parametrize("name", MOST)
def test_a_walk_names_the_files_that_the_code_passes(name: str, recorded: dict[str, list[str]]) -> None:
    """In order. Where it differs, read the printed walk and describe the new files on the page."""
    assert shown(PAGE)[name] == recorded[name]
    assert len(recorded[name]) <= MOST[name]


def test_each_folder_has_a_row() -> None:
    """In the order of the layers."""
    assert rows(PAGE.read_text()) == rows(gen_reference.folders(PAGE.parents[1]))


def rows(text: str) -> list[str]:
    """The folders of the table."""
    return re.findall(r"^\| `([^`]+)` \|", text.split("## Folders")[1].split("\n## ")[0], re.MULTILINE)
