"""A copy of a claim in the box: made on the node of its source, with the scheduler and without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, VOLUMES
from tonnage_box.api.wait import until
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    """Three nodes with 10Gi each."""
    data = DataFolder(tmp_path / "d")
    made = Box(data, plan(data, Settings(nodes=3, pools=["fake,size=10Gi"], runtime="none")))
    await made.start()
    yield made
    await made.stop()


def claim(name: str, *, source: str = "", storage_class: str = names.SCRATCH_CLASS) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": [names.READ_WRITE_ONCE],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if source:
        spec["dataSource"] = {"kind": "PersistentVolumeClaim", "name": source}
    return {"metadata": {"name": name}, "spec": spec}


def pod(name: str, *claims: str) -> dict[str, Any]:
    volumes = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "x"}], "volumes": volumes}}


async def bound_on(box: Box, name: str) -> str:
    """The node where a claim is bound."""
    found = await until(box.client, CLAIMS, name, lambda c: c.status.phase == "Bound", namespace="default")
    return (await box.client.get(VOLUMES, found.spec.volume_name)).metadata.labels[names.NODE_LABEL]


async def test_copies_are_made_where_their_source_is(box: Box) -> None:
    for name in ("a", "other"):
        await box.client.create(CLAIMS, claim(name), "default")
    await box.client.create(PODS, pod("first", "a"), "default")
    node = await bound_on(box, "a")

    for n in range(3):
        await box.client.create(CLAIMS, claim(f"copy-{n}", source="a"), "default")
        await box.client.create(CLAIMS, claim(f"plain-{n}"), "default")
        await box.client.create(PODS, pod(f"p-{n}", f"plain-{n}", f"copy-{n}"), "default")
    for n in range(3):
        found = await until(
            box.client, PODS, f"p-{n}", lambda p: p.status.phase == "Running", namespace="default", seconds=120
        )
        assert found.spec.node_name == node
        assert [await bound_on(box, f"{kind}-{n}") for kind in ("copy", "plain")] == [node, node]

    await box.client.create(CLAIMS, claim("now", source="a", storage_class=names.IMMEDIATE_CLASS), "default")
    assert await bound_on(box, "now") == node
