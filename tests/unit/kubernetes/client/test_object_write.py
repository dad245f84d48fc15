"""Writes to one object: guarded by uid and resourceVersion, and left out where nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.kubernetes.api.core import ConfigMap
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, REPLICA_SETS
from tonnage.kubernetes.api.policy import PodDisruptionBudgetStatus
from tonnage.kubernetes.api.workloads import DeploymentStatus
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.object_write import (
    delete_object,
    has_fields,
    patch_object,
    protect,
    release,
    write_status,
)


async def test_an_object_that_changed_is_patched_only_unguarded(kube: Client) -> None:
    first = await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"k": "1"}}, "default")
    second = await patch_object(kube, CONFIG_MAPS, first, {"data": {"k": "2"}})
    assert second.data == {"k": "2"}
    with pytest.raises(ApiConflictError):
        await patch_object(kube, CONFIG_MAPS, first, {"data": {"k": "3"}})
    assert (await patch_object(kube, CONFIG_MAPS, first, {"data": {"k": "3"}}, guarded=False)).data == {"k": "3"}


async def test_a_later_object_of_the_name_is_left_alone(kube: Client) -> None:
    first = await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, "default")
    await delete_object(kube, CONFIG_MAPS, first)
    await delete_object(kube, CONFIG_MAPS, first)
    with pytest.raises(ApiNotFoundError):
        await patch_object(kube, CONFIG_MAPS, first, {"data": {"k": "1"}})
    await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, "default")
    with pytest.raises(ApiConflictError):
        await delete_object(kube, CONFIG_MAPS, first)
    with pytest.raises(ApiConflictError):
        await patch_object(kube, CONFIG_MAPS, first, {"data": {"k": "1"}}, guarded=False)


async def test_a_delete_may_be_guarded_by_the_version(kube: Client) -> None:
    first = await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, "default")
    await patch_object(kube, CONFIG_MAPS, first, {"data": {"k": "1"}})
    with pytest.raises(ApiConflictError):
        await delete_object(kube, CONFIG_MAPS, first, guarded=True)
    await delete_object(kube, CONFIG_MAPS, first)
    assert (await kube.list(CONFIG_MAPS, "default", fields="metadata.name=a")).items == []


async def test_a_status_is_written_once(kube: Client) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    made = await kube.create(REPLICA_SETS, {"metadata": {"name": "a"}, "spec": spec}, "default")
    wanted: dict[str, Any] = {"replicas": 2, "readyReplicas": 1, "conditions": [{"type": "X", "status": "True"}]}
    written = await write_status(kube, REPLICA_SETS, made, wanted)
    assert written is not None
    assert (written.status.replicas, written.status.ready_replicas) == (2, 1)
    assert await write_status(kube, REPLICA_SETS, written, wanted) is written
    await delete_object(kube, REPLICA_SETS, made)
    assert await write_status(kube, REPLICA_SETS, written, {"replicas": 3}) is None


def test_only_the_fields_that_are_asked_for_are_compared() -> None:
    status = DeploymentStatus(replicas=2, collision_count=1)
    assert has_fields(status, {"replicas": 2, "readyReplicas": 0})
    assert not has_fields(status, {"replicas": 3})
    assert not has_fields(status, {"collisionCount": None})
    assert has_fields(status, {"aFieldThatWeDoNotKnow": 1})
    assert not has_fields(PodDisruptionBudgetStatus(), {"disruptedPods": {"gone": None}})


OURS, OTHER = "tonnage.dev/ours", "example.com/other"


async def _made(client: Client, *finalizers: str) -> ConfigMap:
    return await client.create(CONFIG_MAPS, {"metadata": {"name": "a", "finalizers": list(finalizers)}}, "default")


async def _now(client: Client) -> list[str]:
    return (await client.get(CONFIG_MAPS, "a", "default")).metadata.finalizers


async def test_finalizers_are_added_and_removed_each_twice(client: Client) -> None:
    made = await _made(client, OTHER)
    await protect(client, CONFIG_MAPS, made, OURS)
    assert await _now(client) == [OTHER, OURS]
    seen = await client.get(CONFIG_MAPS, "a", "default")
    await protect(client, CONFIG_MAPS, seen, OURS)
    await release(client, CONFIG_MAPS, seen, OURS)
    assert await _now(client) == [OTHER]
    await release(client, CONFIG_MAPS, seen, OURS)  # of an old version: it is gone already


async def test_finalizers_that_are_as_they_should_be_cost_no_write(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await _made(client, OTHER)

    async def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a write")

    monkeypatch.setattr(client, "patch", never)
    await release(client, CONFIG_MAPS, made, OURS)
    await protect(client, CONFIG_MAPS, made, OTHER)


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
