"""Volumes that begin with content, on LVM, on project quotas and on persistent memory.

Run by test_uml.py inside user-mode Linux, which has the group vg0 and an xfs with project quotas at /run/disk, and by
test_qemu.py over the pool of TONNAGE_TEST_POOL.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.crash.filling.child import SIZE, driver_of, fill, make
from tests.crash.filling.test_fill_kills import BODY, DIGEST, check, mounts_below, read
from tests.forked import forked
from tests.unit.storage.content.server import Files, served

from tonnage.csi.client.local import local_client
from tonnage.csi.errors import CsiError
from tonnage_box.testing.image_archive import LayerTar

_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
POOLS = {
    "thick": "lvm:vg0,name=p",
    "thin": "lvm:vg0,name=p,thin=pool,thinsize=256Mi",
    "quota": "quota:/run/disk/pool,name=p",
}
if ELSEWHERE := os.environ.get("TONNAGE_TEST_POOL", ""):
    POOLS = {"elsewhere": f"{ELSEWHERE},name=p"}
FEW = {name: pool for name, pool in POOLS.items() if name != "thin"}


@pytest.fixture(autouse=True, scope="module")
def _loopback() -> None:
    """A guest begins without."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, _GET_FLAGS, asked), 16)
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


@pytest.fixture
def files() -> Iterator[Files]:
    with served(Files({"/x.tar": BODY})) as found:
        yield found


@pytest.mark.parametrize("described", POOLS.values(), ids=POOLS)
def test_a_volume_is_whole_or_unfinished_after_a_kill(described: str, tmp_path: Path, files: Files) -> None:
    code, steps = forked(partial(fill, described, tmp_path, files.port, DIGEST, 0))
    assert code == 0
    assert forked(partial(check, described, tmp_path, files.port)) == (0, True)
    unfinished = 0
    for at in (steps // 3, steps * 2 // 3):
        code, _ = forked(partial(fill, described, tmp_path, files.port, DIGEST, at))
        assert code in (0, -signal.SIGKILL)  # steps of threads come in another order at times
        code, was_whole = forked(partial(check, described, tmp_path, files.port, finishes=at > steps // 2))
        assert code == 0
        unfinished += not was_whole
        assert not mounts_below(tmp_path)
    assert unfinished


@pytest.mark.parametrize("described", FEW.values(), ids=FEW)
async def test_a_filled_volume_stays_as_it_is(described: str, tmp_path: Path, files: Files) -> None:
    """Also where the call is repeated by another process, after the server has changed."""
    pool, driver = driver_of(described, tmp_path, files.port)
    await pool.open()
    await make(driver, files.port, DIGEST)
    await pool.close()
    files.files.clear()
    pool, driver = driver_of(described, tmp_path, files.port)
    await pool.open()
    await make(driver, files.port, DIGEST)
    await read(local_client(driver), tmp_path)
    await local_client(driver).delete_volume("p/v")
    await pool.close()


@pytest.mark.parametrize("described", FEW.values(), ids=FEW)
async def test_what_cannot_be_filled_leaves_no_volume(described: str, tmp_path: Path, files: Files) -> None:
    pool, driver = driver_of(described, tmp_path, files.port)
    await pool.open()
    with pytest.raises(CsiError, match="sha256"):
        await make(driver, files.port, "0" * 64)
    assert await pool.list() == []
    files.files["/x.tar"] = LayerTar().add("large", bytes(2 * SIZE)).data()
    files.says_size = False
    with pytest.raises(CsiError, match=f"larger than {SIZE} bytes"):
        await make(driver, files.port, DIGEST)
    assert await pool.list() == []
    assert not mounts_below(tmp_path)
    await pool.close()
