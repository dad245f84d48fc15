"""A node's file changes while the node serves: what the kubelet's swap of a ConfigMap brings about."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.unit.node.served import GIB, ONE, TWO, ServedNode, make, published

from tonnage.kubernetes.api import names


async def test_a_pool_that_is_added_serves_without_a_restart(node: ServedNode) -> None:
    await published(node, {"one": 1, "two": 0})
    node.mounted.put(pools=[ONE, TWO])
    assert await node.told("pool two is added: fake,name=two,size=2Gi", reason="ConfigurationChanged") == "Normal"
    await published(node, {"one": 1, "two": 2})
    assert await make(node, "pvc-1", "two") == "two/pvc-1"
    async with node.csi() as csi:
        assert (await csi.plugin_info()).manifest[names.MANIFEST_POOLS] == "one=fake,two=fake"


async def test_bounds_change_and_volumes_stay(node: ServedNode) -> None:
    await published(node, {"one": 1, "two": 0})
    await make(node, "pvc-1", "one", GIB)
    node.mounted.put(pools=[ONE | {"size": "4Gi"}])
    await node.told("pool one has new limits: fake,name=one,size=4Gi", reason="ConfigurationChanged")
    await published(node, {"one": 3, "two": 0})
    node.mounted.put(pools=[ONE | {"size": "512Mi"}])
    await published(node, {"one": 0, "two": 0})
    async with node.csi() as csi:
        assert [v.size for v in await csi.list_volumes()] == [GIB]


async def test_what_needs_a_restart_is_rejected_and_the_rest_is_done(node: ServedNode) -> None:
    node.mounted.put(pools=[ONE | {"largest": "1Mi"}, TWO], bind="controller", topologyKey="example.com/node")
    await node.told("pool one is fake,name=one,size=1Gi and cannot become", reason="ConfigurationRefused")
    await node.told("bind changes from agent to controller, which is read at the start", reason="ConfigurationRefused")
    await node.told("topologyKey changes from", reason="ConfigurationRefused")
    await published(node, {"one": 1, "two": 2})


async def test_metrics_move(node: ServedNode) -> None:
    node.mounted.put(pools=[ONE], metrics="127.0.0.1:0", logLevel="error")
    await node.told("metrics and health are served at 127.0.0.1:0", reason="ConfigurationChanged")
    url = node.process.driver.metrics_url
    assert url.startswith("http://127.0.0.1:")
    assert logging.getLogger().level == logging.ERROR
    port = int(url.split(":")[2].split("/")[0])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    node.mounted.put(pools=[ONE])
    await node.told("served at no address any more", reason="ConfigurationChanged")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_metrics_that_cannot_be_served_stay_where_they_are(node: ServedNode) -> None:
    taken = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    number = taken.sockets[0].getsockname()[1]
    node.mounted.put(pools=[ONE], metrics="127.0.0.1:0")
    await node.told("served at 127.0.0.1:0", reason="ConfigurationChanged")
    node.mounted.put(pools=[ONE], metrics=f"127.0.0.1:{number}")
    await node.told("metrics stay where they are: cannot serve", reason="ConfigurationRefused")
    port = int(node.process.driver.metrics_url.split(":")[2].split("/")[0])
    assert port != number
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    taken.close()
