"""The files of tests/data/6cf5dba, unpacked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1] / "data" / "6cf5dba"


def unpack(archive: str, folder: Path) -> None:
    """Unpack an archive, holes as holes."""
    subprocess.run(["tar", "-xSf", str(HERE / f"{archive}.tar.xz"), "-C", str(folder)], check=True)


def read(name: str) -> Any:
    """A JSON file of the folder."""
    return json.loads((HERE / f"{name}.json").read_text())
