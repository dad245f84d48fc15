"""Room that is kept for inline volumes: claims see less, inline volumes of the budget change nothing for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30


def _pool(inline: int, size: int = 30 * GIB) -> FakePool:
    pool = FakePool("scratch", size)
    pool.backend.inline = inline
    return pool


async def _publish(node: FakeNode, number: int, size: str) -> Path:
    target: Path = node.folder / "kubelet" / f"pod-{number}" / "mount"
    target.parent.mkdir(parents=True, exist_ok=True)
    async with CsiClient(node.driver.endpoints[0]) as client:
        context = {names.CSI_EPHEMERAL: "true", "size": size}
        await client.publish(names.inline_handle(f"uid-{number}", "v"), target, VolumeCapability(), context=context)
    return target


async def _unpublish(node: FakeNode, number: int, target: Path) -> None:
    async with CsiClient(node.driver.endpoints[0]) as client:
        await client.unpublish(names.inline_handle(f"uid-{number}", "v"), target)


async def _object(node: FakeNode) -> Any:
    found = (await node.client.list(kinds.CAPACITIES, names.SYSTEM_NAMESPACE)).items
    return found[0] if found else None


def _says(node: FakeNode, capacity: str, inline: str | None) -> Any:
    async def says() -> bool:
        obj = await _object(node)
        return obj is not None and (obj.capacity, obj.metadata.annotations.get(names.INLINE_CAPACITY)) == (
            capacity,
            inline,
        )

    return says


async def test_what_is_kept_is_published_as_lower_capacity(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node(pool=_pool(10 * GIB))
    node.driver.hooks.to = node.agents[0]
    await eventually(_says(node, "20Gi", "30Gi"))
    target = await _publish(node, 1, "4Gi")
    await eventually(_says(node, "20Gi", "26Gi"))
    await _publish(node, 2, "8Gi")  # beyond the budget
    await eventually(_says(node, "18Gi", "18Gi"))
    await make_claim("c", size="18Gi")
    await node.select("c")
    await eventually(lambda: node.is_bound("c"))
    await eventually(_says(node, "0", "0"))
    await _unpublish(node, 1, target)
    await eventually(_says(node, "2Gi", "4Gi"))  # of which 2Gi are kept again


async def test_a_claim_that_would_need_what_is_kept_is_sent_back(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node(pool=_pool(10 * GIB))
    await eventually(_says(node, "20Gi", "30Gi"))
    await make_claim("c", size="21Gi")
    await node.select("c")

    async def sent_back() -> bool:
        return names.SELECTED_NODE not in (await node.claim("c")).metadata.annotations

    await eventually(sent_back)
    assert await node.volumes() == []


async def test_without_a_budget_nothing_is_said(make_node: MakeNode, eventually: Eventually) -> None:
    node = await make_node(pool=_pool(0))
    await eventually(_says(node, "30Gi", None))


async def test_somebody_who_changes_the_number_is_put_right(make_node: MakeNode, eventually: Eventually) -> None:
    node = await make_node(pool=_pool(10 * GIB))
    await eventually(_says(node, "20Gi", "30Gi"))
    for wrong in ("90Gi", "1Gi", "much", None):
        name = (await _object(node)).metadata.name
        patch = {"metadata": {"annotations": {names.INLINE_CAPACITY: wrong}}}
        await node.client.patch(kinds.CAPACITIES, name, patch, names.SYSTEM_NAMESPACE)
        await eventually(_says(node, "20Gi", "30Gi"))
