"""The node for tests: what a test of a storage operator does with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage_box.testing.node import fake_node
from tonnage_box.testing.objects import Objects
from tonnage_box.testing.wait import eventually


async def test_a_claim_is_provisioned_and_its_volume_removed(
    kube: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    objects = Objects(kube)
    await objects.storage_class("late")
    folder: Path = tmp_path_factory.mktemp("n")
    async with fake_node(kube, folder, "10Gi") as node:
        await eventually(lambda: node.publishes("10Gi", "10Gi"))
        await objects.claim("data", "4Gi", storageClassName="late")
        await node.select("data")
        await eventually(lambda: node.is_bound("data"))
        assert len(await node.volumes()) == 1
        await node.release("data")
        await eventually(lambda: node.publishes("10Gi", "10Gi"))
        assert await node.volumes() == []
    assert all(task.done() for task in node.tasks)
