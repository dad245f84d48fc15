"""A node that serves FlexVolumes from a pool that mounts nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.node.flexvolume.flex_node import GIB, FlexNode

from tonnage.csi.client.local import local_client
from tonnage.csi.driver.driver import Driver
from tonnage.kubernetes.api.kinds import NAMESPACES
from tonnage.kubernetes.client.client import Client
from tonnage.node.flexvolume.mounts import FlexMounts
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[FlexNode]:
    server = ApiServer(Store(extractor()))
    await server.start()
    client = Client(server.transport())
    if not any(one.metadata.name == "kube-system" for one in (await client.list(NAMESPACES)).items):
        await client.create(NAMESPACES, {"metadata": {"name": "kube-system"}})
    pool = FakePool("default", 100 * GIB)
    driver = Driver("node-1", {"default": pool}, tmp_path / "state")
    calls, changes = local_client(driver), list[int]()
    mounts = FlexMounts(
        calls, client, "node-1", kubelet=tmp_path, state=tmp_path / "state", changed=lambda: changes.append(1)
    )
    made = FlexNode(tmp_path, client, pool, calls, mounts, changes)
    yield made
    await server.stop()
