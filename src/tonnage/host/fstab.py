"""Mount points of /etc/fstab whose disk is not mounted: their directories look like empty ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tonnage.host import mount

FSTAB = Path("/etc/fstab")


def missing(path: Path, fstab: Path | None = None) -> str:
    """The unmounted mount point of fstab at or above a path, "" for none.

    fstab: replaces /etc/fstab. Raises: HostError when mounts cannot be read.
    """
    real = Path(os.path.realpath(path))
    for point in _points(fstab or FSTAB):
        if real.is_relative_to(os.path.realpath(point)) and not mount.is_mount(os.path.realpath(point)):
            return point
    return ""


def _points(fstab: Path) -> Iterator[str]:
    text = ""
    with suppress(OSError):  # none, as in most containers
        text = fstab.read_text(errors="surrogateescape")
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > 2 and not fields[0].startswith("#") and fields[1].startswith("/") and fields[1] != "/":
            yield re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
