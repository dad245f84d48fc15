"""Atomic update of files of a ConfigMap, Secret or the downward API (Kubernetes' atomic writer).

The directory holds `..<stamp>/` with the files, a symlink `..data` to it, and for each file a symlink through `..data`.
A reader sees the old files or the new ones, never a mixture.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tonnage.base.errors import InvalidError, host_errors
from tonnage.host.encoding import encode

DATA = "..data"


@dataclass(frozen=True)
class Content:
    """One file: its bytes, permissions and owner (-1: as of this process). repr() never shows the bytes."""

    data: bytes
    mode: int = 0o644
    uid: int = -1

    def __repr__(self) -> str:
        """Size only."""
        return f"Content({len(self.data)} bytes, {self.mode:o})"


def check_path(path: str) -> str:
    """A relative path that stays below its folder. Raises: InvalidError."""
    parts = path.split("/")
    encode(path, "path of a volume's file")
    if not path or path.startswith("/") or ".." in parts or "" in parts or parts[0].startswith(".."):
        raise InvalidError(f"path {path[:80]!r} of a volume's file: want a relative path without '..'")
    return path


def write(folder: str, files: Mapping[str, Content], *, gid: int = -1) -> None:
    """Make path show exactly these files; it exists. gid: their group. Idempotent. Raises: InvalidError, HostError."""
    with host_errors(f"cannot write the files of {folder}"):
        if not _same(folder, files):
            stamp = tempfile.mkdtemp(prefix="..", dir=folder)
            os.chmod(stamp, 0o755)
            for path, content in files.items():
                _put(f"{stamp}/{check_path(path)}", content, gid)
            _point(folder, os.path.basename(stamp))
        # Also where the content was there: a former writer may have been killed before it linked it.
        _link(folder, {path.split("/")[0] for path in files})
        _sweep(folder, keep=os.readlink(f"{folder}/{DATA}"))


def read(folder: str) -> dict[str, Content]:
    """Return the files that are shown. Raises: HostError."""
    there = {}
    base = f"{folder}/{DATA}/"
    with host_errors(f"cannot read the files of {folder}"):
        for at, _, names in os.walk(base):
            for name in names:
                with open(f"{at}/{name}", "rb") as file:
                    mode = os.fstat(file.fileno()).st_mode & 0o7777
                    there[os.path.join(at, name)[len(base) :].lstrip("/")] = Content(file.read(), mode)
    return there


def _same(folder: str, files: Mapping[str, Content]) -> bool:
    there = {path: content.data for path, content in read(folder).items()}
    return os.path.isdir(f"{folder}/{DATA}") and there == {path: content.data for path, content in files.items()}


def _put(path: str, content: Content, gid: int) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content.data)
        os.fchown(fd, content.uid, gid)
        os.fchmod(fd, content.mode)


def _point(folder: str, stamp: str) -> None:
    fresh = f"{folder}/..data_tmp"
    with suppress(FileNotFoundError):
        os.unlink(fresh)
    os.symlink(stamp, fresh)
    os.rename(fresh, f"{folder}/{DATA}")


def _link(folder: str, tops: set[str]) -> None:
    there = {name for name in os.listdir(folder) if not name.startswith("..")}
    for name in there - tops:
        if os.path.islink(f"{folder}/{name}"):  # else it is where another volume is mounted
            os.unlink(f"{folder}/{name}")
    for name in tops - there:
        os.symlink(f"{DATA}/{name}", f"{folder}/{name}")


def _sweep(folder: str, *, keep: str) -> None:
    for name in os.listdir(folder):
        if name.startswith("..") and name not in (keep, DATA):
            shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
