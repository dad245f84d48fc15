"""Trees of inline volumes: folders on top of each other, with a writable layer in a volume of a pool.

Used by the inline driver. Upper and work folder are in one volume of a pool, whose size is the limit of what a pod
writes.
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from tonnage.base.errors import InvalidError, UnsupportedError, host_errors
from tonnage.csi.inline.base import InlinePod, Tree, WritableLayer
from tonnage.csi.inline.memory import folder_name
from tonnage.host import mount, nofollow
from tonnage.storage.images.shared_overlay import SharedOverlays


class TreePools(Protocol):
    """Makes writable layers."""

    def accepts(self, key: str) -> bool:
        """Whether a key of volumeAttributes is a parameter of a pool."""

    async def make(self, name: str, layer: WritableLayer, staging: Path, pod: InlinePod) -> None:
        """Make a pod's volume of that name and mount it at staging, an empty folder. Idempotent.

        Raises: as a pool's methods.
        """

    async def remove(self, name: str, staging: Path) -> None:
        """Unmount and delete the volume, in whichever pool it is. Idempotent."""


class NoPools:
    """For drivers without writable layers."""

    def accepts(self, key: str) -> bool:
        """Accept none."""
        return False

    async def make(self, name: str, layer: WritableLayer, staging: Path, pod: InlinePod) -> None:
        """Raise UnsupportedError."""
        raise UnsupportedError(f"inline volume {name}: there is no pool for a writable copy; set readOnly: true")

    async def remove(self, name: str, staging: Path) -> None:
        """Do nothing: there is none."""


class Trees:
    """The trees below a folder: `<volume>/layer` is the pool's volume, `<volume>/merged` the overlay.

    Read-only volumes of the same layers share one overlay.
    """

    def __init__(self, folder: Path, pools: TreePools) -> None:
        self._folder, self._pools = folder, pools
        self._shared = SharedOverlays()

    def shown(self, handle: str, tree: Tree) -> Path:
        """Return the folder that a volume shows."""
        base = tree.layers[0] if _is_plain(tree) else self._of(handle) / "merged"
        return base / tree.path if tree.path else base

    async def make(self, handle: str, tree: Tree, pod: InlinePod) -> Path:
        """Mount a tree and return the folder to show. Idempotent. Raises: InvalidError, HostError, as TreePools."""
        if not tree.layers:
            raise InvalidError(f"inline volume {handle}: a tree has no layer")
        folder = self._of(handle)
        if not _is_plain(tree):
            await asyncio.to_thread(_folders, folder)
            if tree.writable is not None:
                await self._pools.make(folder.name, tree.writable, folder / "layer", pod)
            await asyncio.to_thread(self._merge, folder, tree)
        shown = self.shown(handle, tree)
        await asyncio.to_thread(_check_inside, shown, tree)
        return shown

    async def remove(self, handle: str) -> None:
        """Unmount a tree and delete what the pod wrote. Idempotent. Raises: HostError, as TreePools."""
        folder = self._of(handle)
        if not await asyncio.to_thread(folder.is_dir):
            return
        await asyncio.to_thread(self._shared.unmount, str(folder / "merged"))
        await self._pools.remove(folder.name, folder / "layer")
        await asyncio.to_thread(_remove_folders, folder)

    def _merge(self, folder: Path, tree: Tree) -> None:
        if mount.is_mount(folder / "merged"):
            return
        if tree.writable is None:
            self._shared.mount(str(folder / "merged"), tree.layers)
        else:
            _merge_writable(folder, tree)

    def adopt(self, handle: str, tree: Tree) -> None:
        """Share with others what an earlier process has mounted."""
        if tree.writable is None and not _is_plain(tree):
            self._shared.note(str(self._of(handle) / "merged"), tree.layers)

    def unmount(self, handle: str) -> None:
        """Unmount a read-only tree. Idempotent. Blocking. Raises: HostError."""
        folder = self._of(handle)
        self._shared.unmount(str(folder / "merged"))
        _remove_folders(folder)

    def _of(self, handle: str) -> Path:
        return self._folder / folder_name(handle)


def _is_plain(tree: Tree) -> bool:
    """Return whether no overlay is needed: the kernel makes none of one folder."""
    return len(tree.layers) == 1 and tree.writable is None


def _folders(folder: Path) -> None:
    with host_errors(f"cannot make {folder}"):
        for part in ("layer", "merged"):
            (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)


def _remove_folders(folder: Path) -> None:
    for part in (folder / "layer", folder / "merged", folder):
        with host_errors(f"cannot remove {part}"), suppress(FileNotFoundError):
            os.rmdir(part)


def _merge_writable(folder: Path, tree: Tree) -> None:
    with ExitStack() as stack, host_errors(f"cannot open the layers of {folder.name}"):
        flags = os.O_PATH | os.O_DIRECTORY
        lowers = [stack.enter_context(nofollow.opened(layer, flags)) for layer in tree.layers]
        _prepare(folder / "layer", lowers[0])
        upper, work = (
            stack.enter_context(nofollow.opened(folder / "layer" / part, flags)) for part in ("upper", "work")
        )
        mount.overlay(folder / "merged", lowers, upper=upper, work=work, options=("nodev", "nosuid"))


def _prepare(layer: Path, top: int) -> None:
    """Make upper and work folder. The root has owner and mode of the topmost layer, until a pod changes it."""
    upper, work = layer / "upper", layer / "work"
    if work.is_dir():  # made last: upper is complete, and is the pod's
        return
    upper.mkdir(mode=0o700, exist_ok=True)
    found = os.fstat(top)
    os.chown(upper, found.st_uid, found.st_gid)
    os.chmod(upper, stat.S_IMODE(found.st_mode))
    work.mkdir(mode=0o700)


def _check_inside(shown: Path, tree: Tree) -> None:
    """Reject a path that leads out of the tree by a symlink. Raises: InvalidError."""
    base = str(shown)[: -len(tree.path)].rstrip("/") if tree.path else str(shown)
    real = os.path.realpath(shown)
    if real != base and not real.startswith(f"{os.path.realpath(base)}/"):
        raise InvalidError(f"path {tree.path[:80]!r}: it leads out of the content")
    if not os.path.isdir(real):
        raise InvalidError(f"path {tree.path[:80]!r}: there is no such folder in the content")
