"""The folders that hold staging and target paths: they are the caller's to make, and must be what they seem."""

from __future__ import annotations

import os
from pathlib import Path

from tonnage.errors import Invalid, Precondition

_LONGEST_NAME = 255


def check_parent(target: Path) -> None:
    """Raises Precondition when the folder that shall hold target is missing, making it is the caller's part, or is a
    symlink: what it leads to may have been chosen by a pod. Invalid when no file can have that name."""
    if len(os.fsencode(target.name)) > _LONGEST_NAME:
        raise Invalid(f"{target.name[:40]!r}...: a file's name has at most {_LONGEST_NAME} bytes")
    refuse_link(target.parent)
    if not os.path.isdir(target.parent):
        raise Precondition(f"{target.parent} is not there: the caller makes the folder that holds the target path")


def refuse_link(*paths: Path) -> None:
    """Raises Precondition when one of the paths is a symlink itself."""
    for path in paths:
        if os.path.islink(path):
            raise Precondition(f"{path} is a symlink: nothing is mounted or removed through it")
