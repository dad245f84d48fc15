"""The pools' gauges: what is seen when somebody looks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tonnage.base.observe.metrics import REGISTRY
from tonnage.node.plain_driver import measure
from tonnage.storage.pools.base.contract import VolumeCondition, VolumeRequest
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

MI = 1 << 20


def _value(name: str, pool: Pool) -> float | None:
    return REGISTRY.get_sample_value(f"tonnage_pool_{name}", {"pool": pool.name, "kind": pool.kind})


async def test_promises_snapshots_erasing_and_abnormal_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ill(name: str, path: Path | None = None) -> VolumeCondition:
        return VolumeCondition(abnormal=name == "bad", message="its disk is gone")

    pool = make(parse("fake,name=measured,size=100Mi,eraserate=1"))
    await pool.open()
    for name in ("bad", "good", "gone"):
        await pool.create(VolumeRequest(name, 10 * MI, parameters={"erase": "zero"}))
    await pool.snapshots.create("s", "good")
    await pool.delete("gone")
    monkeypatch.setattr(pool, "condition", ill)

    await measure([pool])

    assert {name: _value(name, pool) for name in ("up", "volumes", "snapshots", "abnormal_volumes")} == {
        "up": 1, "volumes": 2, "snapshots": 1, "abnormal_volumes": 1,
    }  # fmt: skip
    sizes = ("size_bytes", "free_bytes", "largest_volume_bytes", "reserved_bytes", "erasing_bytes", "erasing_volumes")
    assert [_value(name, pool) for name in sizes] == [100 * MI, 60 * MI, 60 * MI, 30 * MI, 10 * MI, 1]


@pytest.mark.real
async def test_erased_bytes_are_counted(real_folder: Path) -> None:
    pool = make(parse(f"image:{real_folder}/pool,name=counted,size=100Mi,eraserate=0"))
    await pool.open()
    await pool.create(VolumeRequest("v", 10 * MI, block=True, parameters={"erase": "shred"}))
    (real_folder / "pool" / "v.img").write_bytes(b"secret!!" * (10 * MI // 8))
    await pool.delete("v")
    async with asyncio.timeout(120):
        while await pool.erasing():
            await asyncio.sleep(0.005)
    await measure([pool])
    await pool.close()
    await measure([pool])

    assert _value("erased_bytes_total", pool) == 40 * MI
    assert (_value("erasing_bytes", pool), _value("up", pool)) == (0, 0)
