"""Finalizers are added and removed in one write, of that object only."""

from __future__ import annotations

import pytest

from tonnage.api.core import ConfigMap
from tonnage.api.kinds import CONFIG_MAPS
from tonnage.errors import ApiConflictError, ApiNotFoundError
from tonnage.kube.client import Client
from tonnage.kube.finalizers import protect, release

OURS, OTHER = "tonnage.dev/ours", "example.com/other"


async def _made(client: Client, *finalizers: str) -> ConfigMap:
    return await client.create(CONFIG_MAPS, {"metadata": {"name": "a", "finalizers": list(finalizers)}}, "default")


async def _now(client: Client) -> list[str]:
    return (await client.get(CONFIG_MAPS, "a", "default")).metadata.finalizers


async def test_added_and_removed_each_twice(client: Client) -> None:
    made = await _made(client, OTHER)
    await protect(client, CONFIG_MAPS, made, OURS)
    assert await _now(client) == [OTHER, OURS]
    seen = await client.get(CONFIG_MAPS, "a", "default")
    await protect(client, CONFIG_MAPS, seen, OURS)
    await release(client, CONFIG_MAPS, seen, OURS)
    assert await _now(client) == [OTHER]
    await release(client, CONFIG_MAPS, seen, OURS)  # of an old version: it is gone already


async def test_an_object_that_has_changed_is_read_again(client: Client) -> None:
    made = await _made(client, OURS)
    await client.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, "default")
    with pytest.raises(ApiConflictError):
        await release(client, CONFIG_MAPS, made, OURS)
    with pytest.raises(ApiConflictError):
        await protect(client, CONFIG_MAPS, made, OTHER)
    assert await _now(client) == [OURS]


async def test_a_deleted_and_a_recreated_object_are_left_alone(client: Client) -> None:
    made = await _made(client, OURS)
    await release(client, CONFIG_MAPS, made, OURS)
    await client.delete(CONFIG_MAPS, "a", "default")
    for call in (protect, release):
        await call(client, CONFIG_MAPS, made, OTHER if call is protect else OURS)
    with pytest.raises(ApiNotFoundError):
        await client.get(CONFIG_MAPS, "a", "default")
    await _made(client, OURS)
    await release(client, CONFIG_MAPS, made, OURS)
    assert await _now(client) == [OURS]
