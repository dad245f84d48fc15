"""Copies of claims: made where the source is, sent back from elsewhere, awaited, refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.api import kinds, names

pytestmark = pytest.mark.virtual_time


def source(name: str) -> dict[str, Any]:
    return {"storageClassName": "late", "dataSource": {"kind": "PersistentVolumeClaim", "name": name}}


@pytest.fixture
async def node(make_node: Any, make_claim: Any, eventually: Any) -> Any:
    """A node with a bound claim "first" of 2Gi."""
    made = await make_node("10Gi")
    await make_claim("first", "2Gi", storageClassName="late")
    await made.send("first")
    await eventually(lambda: made.bound("first"))
    return made


def told(all_events: Any, reason: str) -> Any:
    async def ask() -> list[str]:
        return [text for _, why, text in await all_events() if why == reason]

    return ask


async def test_a_copy_is_made_of_its_source(node: Any, make_claim: Any, eventually: Any) -> None:
    await make_claim("second", "3Gi", **source("first"))
    await node.send("second")
    await eventually(lambda: node.bound("second"))
    first, second = [await node.claim(name) for name in ("first", "second")]
    copy = await node.pool.get(second.spec.volume_name)
    assert copy.source is not None
    assert copy.source.volume == first.spec.volume_name
    await eventually(lambda: node.shows("5Gi", "5Gi"))


async def test_a_copy_that_was_sent_to_another_node_goes_back(
    node: Any, make_node: Any, make_claim: Any, eventually: Any, all_events: Any
) -> None:
    other = await make_node("10Gi", name="node-2")
    await make_claim("second", "3Gi", **source("first"))
    await other.send("second", node="node-2")
    (text,) = await eventually(told(all_events, "Rescheduled"))
    volume = (await node.claim("first")).spec.volume_name
    assert text == f"claim second clones claim first, whose volume {volume} is on another node"
    claim = await node.claim("second")
    assert names.SELECTED_NODE not in claim.metadata.annotations
    assert await other.volumes() == []
    await node.send("second")
    await eventually(lambda: node.bound("second"))


async def test_a_source_is_awaited(make_node: Any, make_claim: Any, eventually: Any, all_events: Any) -> None:
    node = await make_node("10Gi")
    await make_claim("second", "3Gi", **source("first"))
    await node.send("second")
    (text,) = await eventually(told(all_events, "ProvisioningFailed"))
    assert text.endswith("cannot clone: claim first is not there")
    await eventually(lambda: node.shows("10Gi", "10Gi"))  # it holds no room meanwhile
    await make_claim("first", "2Gi", storageClassName="late")

    async def is_told() -> bool:
        return any(t.endswith("claim first is not bound yet") for t in await told(all_events, "ProvisioningFailed")())

    await eventually(is_told)
    await node.send("first")
    await eventually(lambda: node.bound("second"))


@pytest.mark.parametrize(
    ("size", "spec", "why"),
    [
        ("1Gi", {}, "requested size 1Gi is smaller than the source volume pvc-"),
        ("2Gi", {"volumeMode": "Block"}, "requested volume mode Block differs from"),
    ],
)
async def test_what_no_copy_can_be_is_refused(
    node: Any, make_claim: Any, eventually: Any, all_events: Any, size: str, spec: dict[str, Any], why: str
) -> None:
    await make_claim("second", size, **source("first"), **spec)
    await node.send("second")
    (text,) = await eventually(told(all_events, "ProvisioningFailed"))
    assert why in text
    assert (await node.claim("second")).status.phase == "Pending"
    assert len((await node.kube.list(kinds.VOLUMES)).items) == 1


@pytest.mark.parametrize("sent", [["copy", "plain"], ["plain"]])
async def test_claims_beside_a_copy_go_back_with_it(
    node: Any, make_node: Any, make_claim: Any, eventually: Any, sent: list[str]
) -> None:
    other = await make_node("10Gi", name="node-2")
    await make_claim("copy", "3Gi", annotations={names.CLAIM_GROUP: "plain"}, **source("first"))
    await make_claim("plain", "1Gi", annotations={names.CLAIM_GROUP: "copy"}, storageClassName="late")
    await other.send(*sent, node="node-2")

    async def back() -> bool:
        claims = [await node.claim(name) for name in sent]
        return all(names.SELECTED_NODE not in claim.metadata.annotations for claim in claims)

    await eventually(back)
    assert await other.volumes() == []
    await node.send("copy", "plain")
    await eventually(lambda: node.bound("copy"))
    await eventually(lambda: node.bound("plain"))
