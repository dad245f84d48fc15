"""docs/architecture.md has three walks, short enough to follow, in the folders that each names."""

from __future__ import annotations

from pathlib import Path

import pytest
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
