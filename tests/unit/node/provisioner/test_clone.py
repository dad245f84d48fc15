"""Copies of claims: made where the source is, sent back from elsewhere, awaited, rejected by name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.kubernetes.api import kinds, names
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time


def source(name: str) -> dict[str, Any]:
    return {"storageClassName": "late", "dataSource": {"kind": "PersistentVolumeClaim", "name": name}}


@pytest.fixture
async def node(make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually) -> Any:
    """A node with a bound claim "first" of 2Gi."""
    made = await make_node("10Gi")
    await make_claim("first", "2Gi", storageClassName="late")
    await made.select("first")
    await eventually(lambda: made.is_bound("first"))
    return made


def told(all_events: AllEvents, reason: str) -> Any:
    async def ask() -> list[str]:
        return [text for _, why, text in await all_events() if why == reason]

    return ask


async def test_a_copy_is_made_of_its_source(node: FakeNode, make_claim: MakeClaim, eventually: Eventually) -> None:
    await make_claim("second", "3Gi", **source("first"))
    await node.select("second")
    await eventually(lambda: node.is_bound("second"))
    first, second = [await node.claim(name) for name in ("first", "second")]
    copy = await node.pool.get(second.spec.volume_name)
    assert copy.source is not None
    assert copy.source.volume == first.spec.volume_name
    await eventually(lambda: node.publishes("5Gi", "5Gi"))


async def test_a_copy_that_was_sent_to_another_node_goes_back(
    node: FakeNode, make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    other = await make_node("10Gi", name="node-2")
    await make_claim("second", "3Gi", **source("first"))
    await other.select("second", node="node-2")
    (text,) = await eventually(told(all_events, "Rescheduled"))
    volume = (await node.claim("first")).spec.volume_name
    assert text == f"claim second clones claim first, whose volume {volume} is on another node"
    claim = await node.claim("second")
    assert names.SELECTED_NODE not in claim.metadata.annotations
    assert await other.volumes() == []
    await node.select("second")
    await eventually(lambda: node.is_bound("second"))


async def test_a_source_is_awaited(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("10Gi")
    await make_claim("second", "3Gi", **source("first"))
    await node.select("second")
    (text,) = await eventually(told(all_events, "ProvisioningFailed"))
    assert text.endswith("cannot clone: claim first does not exist")
    await eventually(lambda: node.publishes("10Gi", "10Gi"))  # it holds no room meanwhile
    await make_claim("first", "2Gi", storageClassName="late")

    async def is_told() -> bool:
        return any(t.endswith("claim first is not bound yet") for t in await told(all_events, "ProvisioningFailed")())

    await eventually(is_told)
    await node.select("first")
    await eventually(lambda: node.is_bound("second"))


@pytest.mark.parametrize(
    ("size", "spec", "why"),
    [
        ("1Gi", {}, "requested size 1Gi is smaller than the source volume pvc-"),
        ("2Gi", {"volumeMode": "Block"}, "requested volume mode Block differs from"),
    ],
)
async def test_what_no_copy_can_be_is_rejected(
    node: FakeNode,
    make_claim: MakeClaim,
    eventually: Eventually,
    all_events: AllEvents,
    size: str,
    spec: dict[str, Any],
    why: str,
) -> None:
    await make_claim("second", size, **source("first"), **spec)
    await node.select("second")
    (text,) = await eventually(told(all_events, "ProvisioningFailed"))
    assert why in text
    assert (await node.claim("second")).status.phase == "Pending"
    assert len((await node.client.list(kinds.VOLUMES)).items) == 1


@pytest.mark.parametrize("sent", [["copy", "plain"], ["plain"]])
async def test_claims_beside_a_copy_go_back_with_it(
    node: FakeNode, make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, sent: list[str]
) -> None:
    other = await make_node("10Gi", name="node-2")
    await make_claim("copy", "3Gi", annotations={names.CLAIM_GROUP: "plain"}, **source("first"))
    await make_claim("plain", "1Gi", annotations={names.CLAIM_GROUP: "copy"}, storageClassName="late")
    await other.select(*sent, node="node-2")

    async def back() -> bool:
        claims = [await node.claim(name) for name in sent]
        return all(names.SELECTED_NODE not in claim.metadata.annotations for claim in claims)

    await eventually(back)
    assert await other.volumes() == []
    await node.select("copy", "plain")
    await eventually(lambda: node.is_bound("copy"))
    await eventually(lambda: node.is_bound("plain"))
