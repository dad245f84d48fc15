"""An image pool beside one of the same path in another mount namespace: two nodes in containers on one machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tonnage.host import loop
from tonnage.storage.pools.base.contract import PoolLimits
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.image.backend import make_backend

pytestmark = pytest.mark.real
ANY = PoolLimits(size=1024**3, sparse=True, ratio=float("inf"))


@pytest.fixture
def their_device(real_folder: Path) -> Iterator[int]:
    """A loop device on a raw block image of a pool that has our pool's path, elsewhere."""
    pool = real_folder / "pool"
    pool.mkdir()
    script = (
        f"mount -t tmpfs none {pool} && truncate -s 4M {pool}/v.img && losetup --find --show {pool}/v.img && read _"
    )
    command = ["unshare", "--mount", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        if not (line := node.stdout.readline()):
            pytest.skip("needs mount namespaces")
        index = int(line.strip().removeprefix("/dev/loop"))
        yield index
        loop.detach(index)
        node.communicate("")


async def test_their_devices_are_not_ours_to_free(real_folder: Path, their_device: int) -> None:
    path = real_folder / "pool"
    assert loop.backing(their_device) == str(path / "v.img")  # as if it were ours
    pool = Pool("p", make_backend(path, ANY, disks=Disks()))
    await pool.open()
    assert loop.backing(their_device) == str(path / "v.img")
    await pool.close()


async def test_devices_of_images_that_were_removed_are_freed(real_folder: Path) -> None:
    pool = Pool("p", make_backend(real_folder / "pool", ANY, disks=Disks()))
    await pool.open()
    image = real_folder / "pool" / "gone.img"
    image.write_bytes(bytes(4096))
    fd = os.open(image, os.O_RDWR)
    attached = loop.attach(fd, str(image), autoclear=False)
    os.close(fd)
    attached.close()
    image.unlink()
    await pool.close()
    await pool.open()
    assert loop.backing(attached.index) != str(image)
    await pool.close()
