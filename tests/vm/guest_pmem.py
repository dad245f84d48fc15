"""The pmem pool on emulated NVDIMMs. Run by test_qemu.py inside QEMU, on regions of 2Gi and 1Gi without labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.pools.base import VolumeRequest
from tonnage.pools.config import make, parse

MI = 1024**2


async def test_life(tmp_path: Path) -> None:
    pool = make(parse("pmem:region0,name=p"))
    await pool.open()
    await pool.create(VolumeRequest("a", 20 * MI))
    staging = tmp_path / "s"
    await pool.stage("a", staging)
    print(Path("/proc/self/mountinfo").read_text().splitlines()[-1])
    print(await pool.capacity(), await pool.stats("a", staging), await pool.condition("a", staging))
    with pytest.raises(Exception, match="in use"):
        await pool.delete("a")
    await pool.unstage("a", staging)
    await pool.close()
    await pool.open()
    print(await pool.list())
    await pool.delete("a")
    print(await pool.capacity())
    await pool.close()
