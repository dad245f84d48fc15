"""Writable layers: volumes of the driver's pools, once each, and removed with what they hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.csi.driver.heard import Heard

from tonnage.base.errors import ExhaustedError, InvalidError, OutOfRangeError
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.inline_layers import PoolLayers
from tonnage.csi.inline.base import InlinePod, WritableLayer
from tonnage.storage.pools.base.contract import is_inline
from tonnage.storage.pools.fake.backend import FakePool

POD = InlinePod("default", "web", "uid-1")
NAME = f"csi-{'a' * 64}"


@pytest.mark.asyncio
async def test_a_layer_is_made_once_and_removed(driver: Driver, pool: FakePool, fast: FakePool, tmp_path: Path) -> None:
    layers, staging = PoolLayers(driver), tmp_path / "staging"
    staging.mkdir()
    for _ in range(2):
        await layers.make(NAME, WritableLayer(64 << 20, "fast", {"fsType": "ext4"}), staging, POD)
    (volume,) = await fast.list()
    assert (volume.name, volume.size, is_inline(volume.owner)) == (NAME, 64 << 20, True)
    assert await pool.list() == []
    for _ in range(2):
        await layers.remove(NAME, staging)
    assert await fast.list() == []


@pytest.mark.asyncio
async def test_the_default_pool(driver: Driver, pool: FakePool, tmp_path: Path) -> None:
    await PoolLayers(driver).make(NAME, WritableLayer(4 << 20), tmp_path, POD)
    assert [volume.name for volume in await pool.list()] == [NAME]


@pytest.mark.asyncio
async def test_rejections(driver: Driver, tmp_path: Path) -> None:
    heard = Heard()
    layers = PoolLayers(replace(driver, hooks=heard))
    with pytest.raises(InvalidError, match="there is no pool 'none'"):
        await layers.make(NAME, WritableLayer(1 << 20, "none"), tmp_path, POD)
    with pytest.raises(InvalidError, match="unknown parameter 'color'"):
        await layers.make(NAME, WritableLayer(1 << 20, "", {"color": "red"}), tmp_path, POD)
    with pytest.raises((ExhaustedError, OutOfRangeError)):
        await layers.make(NAME, WritableLayer(1 << 50), tmp_path, POD)
    ((about, why),) = heard.told  # the controller may evict the pod
    assert (about["csi.storage.k8s.io/pod.name"], about["csi.storage.k8s.io/pod.uid"]) == ("web", "uid-1")
    assert why
    assert layers.accepts("fsType")
    assert not layers.accepts("color")
    assert not layers.accepts("iops")
