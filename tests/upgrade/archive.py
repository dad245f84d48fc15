"""The files of tests/data/6cf5dba, unpacked."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1] / "data" / "6cf5dba"


def unpack(archive: str, folder: Path) -> None:
    """Unpack an archive, holes as holes. Without a program: the machine may lack xz."""
    with tarfile.open(HERE / f"{archive}.tar.xz") as file:
        file.extraction_filter = lambda member, path: member  # modes and links as they were
        file.extractall(folder)


def read(name: str) -> Any:
    """A JSON file of the folder."""
    return json.loads((HERE / f"{name}.json").read_text())
