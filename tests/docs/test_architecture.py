"""docs/architecture.md has three walks, short enough to follow, in the folders that each names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import gen_reference
from tests.docs.pages import walks

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
FOLDERS = {
    "a claim": (12, ("node/", "claims/", "capacity/")),
    "CreateVolume on an image pool": (15, ("csi/driver/", "pools/", "host/")),
    "a pod through the scheduler": (12, ("scheduler/",)),
}


def test_the_walks_are_those() -> None:
    assert list(walks(PAGE)) == list(FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_walk_is_short_and_stays_in_its_folders(name: str) -> None:
    files, (limit, folders) = walks(PAGE)[name], FOLDERS[name]
    assert 5 <= len(files) == len(set(files)) <= limit
    assert all(file.startswith(tuple(f"src/tonnage/{folder}" for folder in folders)) for file in files)


@pytest.mark.parametrize("name", FOLDERS)
def test_each_file_of_a_walk_exists(name: str) -> None:
    assert [file for file in walks(PAGE)[name] if not (gen_reference.ROOT / file).is_file()] == []


def test_each_folder_has_a_row() -> None:
    """In the order of the layers."""
    assert rows(PAGE.read_text()) == rows(gen_reference.folders(PAGE.parents[1]))


def rows(text: str) -> list[str]:
    """The folders of the table."""
    return re.findall(r"^\| `([^`]+)` \|", text.split("## Folders")[1].split("\n## ")[0], re.MULTILINE)
