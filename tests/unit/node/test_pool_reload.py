"""Pools change while a driver serves them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.node.served import GIB, ONE, TWO, ServedNode, make, published

from tonnage.kubernetes.api import names


async def test_an_empty_pool_goes_and_comes_back(node: ServedNode) -> None:
    node.mounted.put(pools=[ONE, TWO])
    await published(node, {"one": 1, "two": 2})
    node.mounted.put(pools=[ONE])
    await node.told("pool two is no longer served", reason="ConfigurationChanged")
    await published(node, {"one": 1, "two": 0})
    node.mounted.put(pools=[ONE, TWO])
    await published(node, {"one": 1, "two": 2})


async def test_a_pool_with_volumes_stays_and_says_so(node: ServedNode) -> None:
    node.mounted.put(pools=[ONE, TWO])
    await published(node, {"one": 1, "two": 2})
    await make(node, "pvc-1", "two", GIB)
    node.mounted.put(pools=[ONE])
    said = await node.told(
        "pool two is not removed: it has 1 volumes (pvc-1); put it back", reason="ConfigurationRefused"
    )
    assert said == "Warning"
    async with node.csi() as csi:
        assert [v.id for v in await csi.list_volumes()] == ["two/pvc-1"]
        await csi.delete_volume("two/pvc-1")
    node.mounted.put(pools=[ONE], logLevel="warning")  # any change: it is tried again
    await node.told("pool two is no longer served", reason="ConfigurationChanged")


async def test_a_volume_on_its_way_into_a_pool_that_goes_is_not_lost(node: ServedNode) -> None:
    """The call that makes it was let in before the pool was taken away."""
    node.mounted.put(pools=[ONE, TWO])
    await node.told("pool two is added", reason="ConfigurationChanged")
    pool = next(p for p in node.process.driver.pools if p.name == "two")
    gate, inside = asyncio.Event(), asyncio.Event()
    create = pool.create

    async def slowly(request: object) -> object:
        inside.set()
        await gate.wait()
        return await create(request)  # type: ignore[arg-type]

    pool.create = slowly  # type: ignore[assignment,method-assign]
    async with asyncio.TaskGroup() as tasks:
        making = tasks.create_task(make(node, "pvc-1", "two"))
        await inside.wait()
        node.mounted.put(pools=[ONE])
        async with asyncio.timeout(60):
            while "two" in [p.name for p in node.process.driver.pools]:
                await asyncio.sleep(0.01)
        gate.set()
        assert await making == "two/pvc-1"
    await node.told("pool two is not removed: it has 1 volumes", reason="ConfigurationRefused")
    assert [p.name for p in node.process.driver.pools] == ["one", "two"]


async def test_a_pool_whose_disk_is_away_is_added_and_tried_again(node: ServedNode, tmp_path: Path) -> None:
    """On the node's own disk nothing is made meanwhile: the pool did not say rootfs."""
    away = tmp_path / "away"
    node.mounted.put(pools=[ONE, {"name": "away", "kind": "image", "path": str(away), "size": "1Gi"}])
    said = await node.told("pool away is added, but not open yet: ", reason="ConfigurationChanged")
    assert said == "Warning"
    assert not away.exists()
    node.mounted.put(pools=[ONE])
    await node.told("pool away is no longer served", reason="ConfigurationChanged")
    async with node.csi() as csi:
        assert await csi.list_volumes() == []


async def test_a_pool_that_cannot_be_is_not_added(node: ServedNode, tmp_path: Path) -> None:
    bad = {"name": "bad", "kind": "image", "path": str(tmp_path / "pool"), "rootfs": True, "overcommit": "yes"}
    node.mounted.put(pools=[ONE, bad])
    await node.told("pool bad is not added: ", reason="ConfigurationRefused")
    assert not (tmp_path / "pool").exists()
    async with node.csi() as csi:
        assert (await csi.plugin_info()).manifest[names.MANIFEST_POOLS] == "one=fake"
