"""PriorityClasses, and what admission makes of them in pods."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api

Obj = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def priority_class(name: str, value: int, **fields: Any) -> Obj:
    return {"metadata": {"name": name}, "value": value, **fields}


def pod(name: str = "p", **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


async def test_every_cluster_has_the_two_of_the_system(api: Api) -> None:
    found = {c["metadata"]["name"]: c["value"] for c in (await api.get(CLASSES))["items"]}
    assert found == {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}


async def test_a_pod_gets_number_and_policy_of_its_class(api: Api) -> None:
    await api.create(CLASSES, priority_class("high", 1000, preemptionPolicy="Never"))
    spec = (await api.create(PODS, pod(priorityClassName="high")))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")


async def test_a_pod_without_class_has_none(api: Api) -> None:
    spec = (await api.create(PODS, pod()))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert "priorityClassName" not in spec


async def test_the_default_class_is_for_pods_that_name_none(api: Api) -> None:
    await api.create(CLASSES, priority_class("usual", 10, globalDefault=True))
    await api.create(CLASSES, priority_class("high", 1000))
    usual = (await api.create(PODS, pod("a")))["spec"]
    assert (usual["priorityClassName"], usual["priority"]) == ("usual", 10)
    assert (await api.create(PODS, pod("b", priorityClassName="high")))["spec"]["priority"] == 1000


async def test_there_is_one_default_class(api: Api) -> None:
    await api.create(CLASSES, priority_class("usual", 10, globalDefault=True))
    told = (await api.create(CLASSES, priority_class("other", 20, globalDefault=True), want=403))["message"]
    assert told == (
        'priorityclasses.scheduling.k8s.io "other" is forbidden: '
        "PriorityClass usual is already marked as default. Only one default can exist"
    )
    await api.patch(f"{CLASSES}/usual", {"description": "for all"})
    await api.patch(f"{CLASSES}/usual", {"globalDefault": False})
    await api.create(CLASSES, priority_class("other", 20, globalDefault=True))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"priority": 5},
            "the integer value of priority (5) must not be provided in pod spec; priority admission controller "
            "computed 0 from the given PriorityClass name",
        ),
        (
            {"preemptionPolicy": "Never"},
            "the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission "
            "controller computed PreemptLowerPriority from the given PriorityClass name",
        ),
    ],
)
async def test_numbers_are_not_for_pods_to_choose(api: Api, given: Obj, told: str) -> None:
    assert (await api.create(PODS, pod(**given), want=403))["message"] == f'pods "p" is forbidden: {told}'


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("huge", 1000000001, "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"),
        ("system-mine", 1, "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for "
                           "system use only"),
    ],
)  # fmt: skip
async def test_classes_that_cannot_be(api: Api, name: str, value: int, told: str) -> None:
    status = await api.create(CLASSES, priority_class(name, value), want=422)
    assert status["message"] == f'PriorityClass.scheduling.k8s.io "{name}" is invalid: {told}'


async def test_a_class_keeps_its_number(api: Api) -> None:
    await api.create(CLASSES, priority_class("high", 1000))
    assert "may not be changed" in (await api.patch(f"{CLASSES}/high", {"value": 7}, want=422))["message"]
    status = await api.patch(f"{CLASSES}/high", {"preemptionPolicy": "Never"}, want=422)
    assert "field is immutable" in status["message"]


async def test_a_pod_keeps_its_priority_when_its_class_goes(api: Api) -> None:
    await api.create(CLASSES, priority_class("high", 1000))
    await api.create(PODS, pod(priorityClassName="high"))
    await api.delete(f"{CLASSES}/high")
    await api.patch(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}})
    assert (await api.get(f"{PODS}/p"))["spec"]["priority"] == 1000
