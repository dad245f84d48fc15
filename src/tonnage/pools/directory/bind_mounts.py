"""Bind mounts of volumes that are directories, those of earlier runs included. Blocking."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tonnage.errors import AlreadyExists, HostError, Precondition, Unsupported
from tonnage.host import mount
from tonnage.pools.fs import mounts


class Binds:
    """The bind mounts of a pool's volumes. kind: of the pool, for messages. content: returns a volume's directory."""

    def __init__(self, kind: str, suffix: str, content: Callable[[str], Path]) -> None:
        self._kind = kind
        self._suffix = suffix
        self._content = content
        self._shown: dict[str, set[Path]] = {}

    def find(self, fstype: str) -> None:
        """Find the mounts of volumes since an earlier run, on a file system of that type."""
        self._shown = {}
        for entry in mount.mounts():
            name = os.path.basename(entry.root)
            if entry.fstype == fstype and name.endswith(self._suffix):
                self._shown.setdefault(name.removesuffix(self._suffix), set()).add(Path(entry.target))

    def uses(self, name: str) -> list[Path]:
        """The paths where a volume is mounted."""
        paths = [path for path in self._shown.get(name, ()) if self.shows(name, path)]
        self._shown.pop(name, None)
        if paths:
            self._shown[name] = set(paths)
        return sorted(paths)

    def check_unused(self, name: str) -> None:
        """Raises Precondition while a volume is mounted."""
        if using := self.uses(name):
            raise Precondition(f"volume {name} is in use at {using[0]}: unpublish and unstage it first")

    def shows(self, name: str, path: Path) -> bool:
        """Whether the mount at path is of that volume. Raises HostError when that cannot be read: it may be."""
        if not mount.is_mount(path):
            return False
        try:
            wanted, shown = os.stat(self._content(name)), os.stat(path)
        except FileNotFoundError:
            return False
        except OSError as failure:
            raise HostError(f"cannot see what {path} shows: {failure.strerror}") from failure
        return (wanted.st_dev, wanted.st_ino) == (shown.st_dev, shown.st_ino)

    def stage(self, name: str, path: Path, options: Sequence[str]) -> None:
        """A bind of the folder."""
        if strange := [option for option in options if option not in mount.BIND_OPTIONS and option != "rw"]:
            raise Unsupported(f"a {self._kind} volume cannot have the mount option {strange[0][:40]!r} of its own")
        if mount.is_mount(path):
            if not self.shows(name, path):
                raise AlreadyExists(f"{path} is a mount of something else: unmount it first")
        else:
            mounts.make_directory(path)
            mount.bind(self._content(name), path, options=("nodev", *options))
        self._shown.setdefault(name, set()).add(path)

    def unstage(self, name: str, path: Path) -> None:
        mounts.unstage(path)
        self.uses(name)

    def publish(self, name: str, staging: Path, target: Path, *, readonly: bool) -> None:
        if not self.shows(name, staging):
            raise Precondition(f"volume {name} is not staged at {staging}: stage it first")
        mounts.publish(staging, target, block=False, readonly=readonly)
        self._shown.setdefault(name, set()).add(target)

    def unpublish(self, name: str, target: Path) -> None:
        mounts.unpublish(target)
        self.uses(name)
