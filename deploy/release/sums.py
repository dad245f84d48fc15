"""SHA256SUMS of a folder, in the format of sha256sum(1): each file of the folder has a line, and no other has one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

SUMS = "SHA256SUMS"
SIGNATURE = f"{SUMS}.sig"


def digest(file: Path) -> str:
    """SHA-256 in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Each file of a folder but the sums and their signature, sorted: its SHA-256."""
    files = sorted(file for file in folder.iterdir() if file.name not in (SUMS, SIGNATURE))
    return {file.name: digest(file) for file in files}


def write(folder: Path) -> Path:
    """Write the sums of a folder."""
    file = folder / SUMS
    file.write_text("".join(f"{value}  {name}\n" for name, value in digests(folder).items()))
    return file


def read(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of the folder's sums."""
    lines = (line.partition("  ") for line in (folder / SUMS).read_text().splitlines())
    return {name: value for value, _, name in lines}


def faults(folder: Path) -> Iterator[str]:
    """What differs from the sums, a sentence for each file."""
    wanted, found = read(folder), digests(folder)
    for name in sorted(wanted.keys() | found):
        if name not in found:
            yield f"{name}: missing; download it again"
        elif name not in wanted:
            yield f"{name}: not a file of this release; remove it"
        elif found[name] != wanted[name]:
            yield f"{name}: changed: its SHA-256 is {found[name]}, {SUMS} has {wanted[name]}; download it again"
