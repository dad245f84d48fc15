"""A discovery directory with disks, and its pool."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tonnage.host import loop, mount
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

MI = 1024**2


@dataclass
class Bench:
    """A discovery directory and its pool. images: of loop devices, by entry."""

    folder: Path
    loops: list[loop.LoopDevice] = field(default_factory=list)
    images: dict[str, Path] = field(default_factory=dict)
    pool: Pool | None = None

    @property
    def disks(self) -> Path:
        return self.folder / "disks"

    def tmpfs(self, entry: str, size: int) -> Path:
        """A mount of its own."""
        path = self.disks / entry
        path.mkdir()
        mount.mount("disk", path, "tmpfs", [f"size={size}"])
        return path

    def device(self, entry: str, size: int) -> Path:
        """A link to a loop device."""
        image = self.images[entry] = self.folder / f"{entry}.img"
        image.touch()
        os.truncate(image, size)
        fd = os.open(image, os.O_RDWR)
        try:
            made = loop.attach(fd, str(image), autoclear=False)
        finally:
            os.close(fd)
        self.loops.append(made)
        node = Path(loop.device(made.index))
        (self.disks / entry).symlink_to(node)
        return node

    def ext4(self, entry: str, size: int, label: str = "x") -> Path:
        """A link to a loop device with a file system."""
        node = self.device(entry, size)
        subprocess.run(["mkfs.ext4", "-q", "-L", label, str(node)], check=True)
        return node

    async def open(self, options: str = "") -> Pool:
        """The pool, as a new process sees it."""
        if self.pool is not None:
            await self.pool.close()
        made = make(parse(f"static:{self.disks},name=p{options}"))
        self.pool = made
        await made.open()
        return made


async def clean(pool: Pool) -> None:
    """Wait until nothing is being cleaned."""
    async with asyncio.timeout(60):
        while await pool.erasing():
            await asyncio.sleep(0.01)
