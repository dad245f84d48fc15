"""Pod control: pods of an owner are created, deleted and reported; slow start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tonnage.base.errors import ApiError, InvalidError, TonnageError
from tonnage.kubernetes.api.core import ConfigMap
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, NAMESPACES, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.podcontrol.context import ControllerContext
from tonnage_box.controllers.podcontrol.pod_control import PodControl, in_dying_namespace, slow_start
from tonnage_box.controllers.podcontrol.pod_template import owner_reference, pod_of

Told = Callable[[], Awaitable[list[tuple[str, str, str, str]]]]
TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "i"}]}}


@pytest.fixture
async def owner(kube: Client) -> ConfigMap:
    return await kube.create(CONFIG_MAPS, {"metadata": {"name": "owner"}}, "default")


@pytest.fixture
async def control(kube: Client, informers: Informers, events: EventRecorder) -> PodControl:
    return PodControl(ControllerContext(kube, informers, events), CONFIG_MAPS)


def body(owner: ConfigMap, name: str = "") -> dict[str, Any]:
    return pod_of(TEMPLATE, owner_reference(CONFIG_MAPS, owner), name=name, prefix="p-")


async def test_pods_are_made_and_deleted_with_events(
    kube: Client, control: PodControl, owner: ConfigMap, told: Told
) -> None:
    assert await control.create_many(owner, [body(owner, "a"), body(owner, "b"), body(owner, "c")]) is None
    pods = control.owned(owner.metadata.uid)
    assert [pod.metadata.name for pod in pods] == ["a", "b", "c"]
    await control.delete_many(owner, pods[:1])
    await control.delete(owner, pods[0])  # gone already
    assert [pod.metadata.name for pod in (await kube.list(PODS)).items] == ["b", "c"]
    said = [(reason, message) for name, _, reason, message in await told() if name == "owner"]
    assert said == [*[("SuccessfulCreate", f"Created pod: {n}") for n in "abc"], ("SuccessfulDelete", "Deleted pod: a")]


async def test_a_rejected_pod_is_reported(kube: Client, control: PodControl, owner: ConfigMap, told: Told) -> None:
    bad = body(owner, "bad")
    bad["spec"] = {"containers": []}
    failure = await control.create_many(owner, [bad, body(owner, "never")])
    assert failure is not None
    assert (await kube.list(PODS)).items == []
    assert [(kind, reason) for _, kind, reason, _ in await told()] == [("Warning", "FailedCreate")]


async def test_a_namespace_that_is_being_deleted_needs_no_event(kube: Client, told: Told, control: PodControl) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": "old"}})
    owner = await kube.create(CONFIG_MAPS, {"metadata": {"name": "owner"}}, "old")
    await kube.delete(NAMESPACES, "old")
    with pytest.raises(ApiError) as raised:
        await control.create(owner, body(owner, "a"))
    assert in_dying_namespace(raised.value)
    assert not in_dying_namespace(InvalidError("else"))
    assert await told() == []


async def test_slow_start_stops_after_the_batch_that_failed() -> None:
    tried: list[int] = []

    async def create(one: dict[str, Any]) -> None:
        tried.append(one["n"])
        if one["n"] == 1:
            raise InvalidError("no")

    failure = await slow_start([{"n": n} for n in range(10)], create)
    assert isinstance(failure, TonnageError)
    assert tried == [0, 1, 2]
