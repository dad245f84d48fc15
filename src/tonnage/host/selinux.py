"""SELinux contexts of file systems: the mount option `context=`, and what mountinfo shows of it.

A context labels all files of a file system, on each of its mounts (mount(8)). A bind mount has none of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_OPTION = re.compile(r'context=(?:"([^"]*)"|([^",]*))')
_SHOWN = re.compile(rf"(?:^|,){_OPTION.pattern}")
_CATEGORIES = re.compile(r"c(\d{1,4})(?:\.c(\d{1,4}))?")


def is_enabled() -> bool:
    """Whether the running kernel has SELinux switched on. Blocking."""
    return "\tselinuxfs\n" in Path("/proc/filesystems").read_text()


def context_of(options: Iterable[str]) -> str:
    """The context in mount options, one each, "" for none."""
    return next((found[1] or found[2] for option in options if (found := _OPTION.fullmatch(option))), "")


def shown_context(options: str) -> str:
    """The context in a file system's options as the kernel shows them, "" where each file has its own label."""
    found = _SHOWN.search(options)
    return (found[1] or found[2]) if found else ""


def option_of(context: str) -> str:
    """The mount option. In quotes, as the kubelet writes it: a level has commas."""
    return f'context="{context}"'


def is_same(one: str, other: str) -> bool:
    """Whether two contexts are the same to the kernel, which shows categories in its own order, neighbors joined."""
    return one == other or _parsed(one) == _parsed(other)


def _parsed(context: str) -> tuple[str, ...]:
    *names, level = context.split(":", 3)
    ends = [_level(end) for end in level.split("-")]
    return (*names, *(ends[:1] if ends[0] == ends[-1] else ends))


def _level(text: str) -> str:
    """A level with each of its categories, in order."""
    sensitivity, _, rest = text.partition(":")
    found = [_CATEGORIES.fullmatch(part) for part in rest.split(",")] if rest else []
    numbers = {number for each in found if each for number in range(int(each[1]), int(each[2] or each[1]) + 1)}
    return f"{sensitivity}:{sorted(numbers)}" if all(found) else text
