"""Images of a folder of layouts and archives, loaded into a store when a pod asks for one. Used by the driver `image`.

The folder is looked through at each request, so an archive that is put there is found at once. A file that cannot be
read, as one that is still copied, is tried again when it has changed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tonnage.base.errors import NotFoundError, TonnageError, UnavailableError, host_errors
from tonnage.storage.images import manifest, reference, source
from tonnage.storage.images.manifest import Platform
from tonnage.storage.images.reference import ImageReference
from tonnage.storage.images.store import ImageStore
from tonnage.storage.pools.base.threads import Threads
from tonnage.storage.registry.pull import trim
from tonnage.storage.registry.pulls import PATIENCE, PulledImage

log = logging.getLogger(__name__)
_Stamp = tuple[int, int, int]


@dataclass
class _Entry:
    """An archive or layout. images: name -> digest. is_loaded: whether all of them are in the store."""

    stamp: _Stamp
    images: dict[str, str]
    is_loaded: bool = False


@dataclass
class ImageFolder:
    """A folder: `*.tar` are archives, folders are layouts, and it may be a layout itself."""

    path: Path
    store: ImageStore
    patience: float = PATIENCE
    is_remote: bool = False
    _entries: dict[Path, _Entry] = field(default_factory=dict)
    _threads: Threads = field(default_factory=lambda: Threads("image folder", 1))
    _running: dict[str, asyncio.Task[PulledImage]] = field(default_factory=dict)

    def allows(self, image: ImageReference) -> bool:
        """Any."""
        return True

    async def pull(self, image: ImageReference, platform: Platform, secrets: Mapping[str, str]) -> PulledImage:
        """Load an image, if it is not in the store in this version; a load outlives the call.

        Raises: NotFoundError, UnavailableError (it goes on), and as ImageStore.load().
        """
        if platform != manifest.machine():
            raise NotFoundError(f"image {image}: {self.path} is searched for this machine's platform only")
        key = str(image)
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._threads.run(self._load, image), name=f"load {image}")
            task.add_done_callback(lambda ended: self._end(key, ended))
        await asyncio.wait([task], timeout=self.patience)
        if not task.done():
            raise UnavailableError(f"image {image}: it is being loaded from {self.path}; it is asked for again")
        return task.result()

    def _end(self, key: str, task: asyncio.Task[PulledImage]) -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # perhaps no call waits any more

    def _load(self, image: ImageReference) -> PulledImage:
        self._look()
        for path, entry in self._entries.items():
            name = _match(entry.images, image)
            if name is None:
                continue
            if entry.is_loaded and self.store.find(name) is not None:
                return PulledImage(name)
            trim(self.store)
            self.store.load(path, is_pulled=True)
            entry.is_loaded = True
            return PulledImage(name, f"image {name} loaded from {path}: {entry.images[name]}")
        raise NotFoundError(f"image {image}: it is not in {self.path}")

    def _look(self) -> None:
        """Read what is new or has changed."""
        found = dict(_stamps(self.path))
        for path in self._entries.keys() - found.keys():
            del self._entries[path]
        for path, stamp in found.items():
            known = self._entries.get(path)
            if known is None or known.stamp != stamp:
                self._entries[path] = _Entry(stamp, _images(path))

    async def close(self) -> None:
        """Wait for what is being loaded, and end the thread. Idempotent."""
        if self._running:
            await asyncio.wait(list(self._running.values()))
        self._threads.close()


def _match(images: Mapping[str, str], image: ImageReference) -> str | None:
    for name, digest in images.items():
        if image.digest:
            if digest == image.digest and reference.parse(name).repository == image.repository:
                return name
        elif name == str(image):
            return name
    return None


def _stamps(folder: Path) -> Iterator[tuple[Path, _Stamp]]:
    """Archives and layouts, and what changes with each of them. Raises: HostError."""
    with host_errors(f"image folder {folder} cannot be read"):
        paths = [folder, *sorted(folder.iterdir())]
    for path in paths:
        index = path / "index.json" if path.is_dir() else path
        if index.is_file() and (path.is_dir() or path.suffix == ".tar"):
            try:
                found = os.stat(index)
            except FileNotFoundError:
                continue
            yield path, (found.st_ino, found.st_size, found.st_mtime_ns)


def _images(path: Path) -> dict[str, str]:
    """Its images by name; none where it cannot be read."""
    try:
        with source.opened(path) as archive:
            return {name: image.digest for image in archive.images(manifest.machine()) for name in image.names}
    except (TonnageError, OSError) as failure:
        log.warning("image archive not used until it changes path=%s error=%s", path, failure)
        return {}
