"""Waiting for a state of objects."""

from __future__ import annotations

import asyncio

import pytest

from tonnage.kubernetes.api.kinds import CONFIG_MAPS
from tonnage.kubernetes.client.client import Client
from tonnage_box.api.wait import until, until_gone


async def test_an_object_that_comes_and_changes_while_waiting(kube: Client) -> None:
    waiting = asyncio.create_task(
        until(kube, CONFIG_MAPS, "a", lambda found: found.data.get("x") == "2", namespace="default")
    )
    await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "1"}}, "default")
    assert not waiting.done()
    await kube.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}}, "default")
    assert (await waiting).data == {"x": "2"}
    assert (await until(kube, CONFIG_MAPS, "a", lambda _: True, namespace="default")).data == {"x": "2"}


async def test_a_state_that_does_not_come(kube: Client) -> None:
    with pytest.raises(TimeoutError, match="ConfigMap a was not there as wanted"):
        await until(kube, CONFIG_MAPS, "a", lambda _: True, namespace="default", seconds=0.05)


async def test_all_objects_are_awaited_to_go(kube: Client) -> None:
    for name in ("a", "b"):
        await kube.create(CONFIG_MAPS, {"metadata": {"name": name}}, "default")
    with pytest.raises(TimeoutError, match="still there after"):
        await until_gone(kube, CONFIG_MAPS, namespace="default", seconds=0.05)
    waiting = asyncio.create_task(until_gone(kube, CONFIG_MAPS, namespace="default"))
    for name in ("a", "b"):
        await kube.delete(CONFIG_MAPS, name, "default")
    await waiting
    await until_gone(kube, CONFIG_MAPS, namespace="default")
