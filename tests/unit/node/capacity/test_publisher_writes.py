"""The node's own capacity objects: written, and put right when somebody else changed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.node.capacity.publisher import DECREASE_EVERY, INCREASE_EVERY, Batch, Pace, WorkItem
from tonnage_box.testing.wait import Eventually


async def test_an_object_is_the_nodes_and_is_put_right(
    kube: Client, make_node: Callable[..., Any], eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("4Gi")
    assert await eventually(lambda: node.publishes("4Gi", "4Gi"))
    (obj,) = (await kube.list(kinds.CAPACITIES, names.SYSTEM_NAMESPACE)).items
    (owner,) = obj.metadata.owner_references
    assert (owner.kind, owner.name, obj.metadata.labels[names.NODE_LABEL]) == ("Node", node.name, node.name)
    (agent,) = node.agents

    await kube.patch(kinds.CAPACITIES, obj.metadata.name, {"capacity": "9Gi"}, names.SYSTEM_NAMESPACE)

    async def told() -> bool:
        return any(reason == "CapacityTampered" for _, reason, _ in await all_events())

    assert await eventually(told)
    assert await eventually(lambda: node.publishes("4Gi", "4Gi"))
    assert agent.capacity.is_published


def item(name: str, *, urgent: bool = False, higher: bool = False) -> WorkItem:
    """An item of that object; of its numbers nothing is read."""
    desired: Any = name
    return WorkItem(desired, urgent, higher)


def written(batch: Batch) -> list[Any]:
    """The objects that a batch writes, in their order."""
    return [one.desired for one in batch.items]


def test_urgent_items_come_first_and_what_is_as_it_should_be_is_not_written() -> None:
    items = [item("equal"), item("higher", higher=True), item("urgent", urgent=True)]
    batch = Pace().batch(items, 10.0)
    assert (written(batch), batch.may_rise, batch.is_held, batch.pause) == (["urgent", "higher"], True, False, None)


def test_an_urgent_item_is_written_although_numbers_just_rose_but_may_not_rise() -> None:
    pace = Pace()
    pace.batch([item("a", higher=True)], 10.0)
    batch = pace.batch([item("a", urgent=True, higher=True), item("b", higher=True)], 10.0)
    assert (written(batch), batch.may_rise, batch.is_held) == (["a"], False, False)
    assert batch.pause == pytest.approx(INCREASE_EVERY)
    batch = pace.batch([item("a", higher=True), item("b", higher=True)], 10.0 + INCREASE_EVERY)
    assert (written(batch), batch.pause) == (["a", "b"], None)


def test_urgent_items_of_one_tenth_of_a_second_wait_for_the_next_and_are_one_write_then() -> None:
    pace = Pace()
    pace.batch([item("a", urgent=True)], 10.0)
    batch = pace.batch([item("a", urgent=True), item("b", higher=True)], 10.0)
    assert (written(batch), batch.is_held) == (["b"], True)
    assert batch.pause == pytest.approx(DECREASE_EVERY)
    assert written(pace.batch([item("a", urgent=True)], 10.0 + DECREASE_EVERY)) == ["a"]
