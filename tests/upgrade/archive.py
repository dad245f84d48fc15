"""The folders of tests/data, one for each commit whose code wrote it, unpacked."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from tonnage.storage.pools.base.record import FORMAT, checksum

DATA = Path(__file__).parents[1] / "data"
COMMITS = ("6cf5dba", "6914cf6a")
"""The names of the folders, the oldest first."""
NEWER = "it was made by a newer tonnage"
"""What is said of a record of a later format."""


def unpack(commit: str, archive: str, folder: Path) -> None:
    """Unpack an archive, holes as holes. Without a program: the machine may lack xz."""
    with tarfile.open(DATA / commit / f"{archive}.tar.xz") as file:
        file.extraction_filter = lambda member, path: member  # modes and links as they were
        file.extractall(folder)


def read(commit: str, name: str) -> Any:
    """A JSON file of a commit's folder."""
    return json.loads((DATA / commit / f"{name}.json").read_text())


def later(text: bytes) -> bytes:
    """A file with a record or job of the present format, in the one after it."""
    body = text[: text.rindex(b',"checksum":')].replace(b'"version":%d' % FORMAT, b'"version":%d' % (FORMAT + 1))
    return body + b',"checksum":"%s"}' % checksum(body + b"}").encode()
