"""Two builds of one tag that differ in folder, time, user and umask, compared byte for byte: `make release-verify`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.release import clone
from deploy.release.sums import digests
from deploy.release.tag import Tag

_LATER = 400 * 86400
_USER = 1234


@dataclass(frozen=True)
class Row:
    """A file of both builds; sha256 is "" where a build did not make it."""

    name: str
    size: int
    sha256: tuple[str, str]

    @property
    def is_same(self) -> bool:
        """Whether both made the same bytes."""
        return self.sha256[0] == self.sha256[1]


def compare(root: Path, tag: Tag, into: Path, architectures: Sequence[str], tell: Callable[[str], None]) -> list[Row]:
    """Build twice below `into`, where both builds stay; a row for each file. Blocking. Raises Rejected."""
    first, second = into / "first", into / "second-with-a-longer-name"
    for folder in (first, second):
        folder.mkdir(parents=True)
    tell("first: umask 022, UTC")
    clone.build(root, tag, first, architectures, environ={"TZ": "UTC", "LC_ALL": "C"})
    build_elsewhere(root, tag, second, architectures, tell)
    return list(rows(first, second))


def build_elsewhere(
    root: Path, tag: Tag, into: Path, architectures: Sequence[str], tell: Callable[[str], None]
) -> None:
    """Build as on a machine that is unlike this one, and tell in what. Blocking. Raises Rejected."""
    start, said = _another_machine()
    tell(f"second: umask 077, TZ Pacific/Auckland, files of 2001, {said}")
    clone.build(
        root, tag, into, architectures,
        before=_older, start=start, umask=0o077,
        environ={"TZ": "Pacific/Auckland", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "7"},
    )  # fmt: skip


def rows(first: Path, second: Path) -> Iterator[Row]:
    """The files of two builds, but for sums and signature."""
    one, other = digests(first), digests(second)
    for name in sorted(one.keys() | other):
        file = (first if name in one else second) / name
        yield Row(name, file.stat().st_size, (one.get(name, ""), other.get(name, "")))


def _another_machine() -> tuple[list[str], str]:
    """Words that start a program as another user, and on another day; and what they do here."""
    words, said = [], []
    user = ["unshare", "--user", f"--map-user={_USER}", f"--map-group={_USER}", "--"]
    if shutil.which("unshare") and not subprocess.run([*user, "true"], capture_output=True, check=False).returncode:
        words += user
        said.append(f"user {_USER}")
    else:
        said.append("the same user, as unshare --user does not work here")
    if shutil.which("faketime"):
        words += ["faketime", "-f", f"+{_LATER}s"]
        said.append(f"{_LATER // 86400} days later")
    else:
        said.append("the same day, as faketime is not installed")
    return words, ", ".join(said)


def _older(tree: Path) -> None:
    """Files have another time than those of a fresh clone."""
    for file in tree.rglob("*"):
        if ".git" not in file.parts:
            os.utime(file, (1_000_000_000, 1_000_000_000), follow_symlinks=False)
