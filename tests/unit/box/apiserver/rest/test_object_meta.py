"""Identity, times and finalizers of an object through its life."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.bodies import config, pod

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


async def test_create_gives_identity(api: Api) -> None:
    made = await api.create(MAPS, config("x", a="1"))
    meta = made["metadata"]
    assert meta["namespace"] == "default"
    assert uuid.UUID(meta["uid"]).version == 4
    assert meta["creationTimestamp"] == "2027-01-15T08:00:00Z"
    assert await api.get(f"{MAPS}/x") == made
    assert (await api.create(MAPS, config("x"), want=409))["reason"] == "AlreadyExists"


async def test_generated_names(api: Api) -> None:
    names = {(await api.create(MAPS, {"metadata": {"generateName": "x-"}}))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(n.startswith("x-") and len(n) == 7 for n in names)
    answer = await api.create(MAPS, {"metadata": {}}, want=422)
    assert answer["details"]["causes"][0]["field"] == "metadata.name"


async def test_spec_and_status_are_written_apart(api: Api) -> None:
    made = await api.create(PODS, pod())
    assert made["metadata"]["generation"] == 1
    changed = made | {"status": {"phase": "Running"}}
    changed["metadata"] = made["metadata"] | {"labels": {"a": "b"}}
    main = await api.put(f"{PODS}/p", changed)
    assert main["status"]["phase"] == "Pending"
    assert main["metadata"]["labels"] == {"a": "b"}
    status = await api.patch(f"{PODS}/p/status", {"spec": {"nodeName": "n"}, "status": {"phase": "Running"}})
    assert status["status"]["phase"] == "Running"
    assert "nodeName" not in status["spec"]
    assert status["metadata"]["generation"] == 1
    assert (await api.get(f"{PODS}/p/status"))["status"]["phase"] == "Running"


async def test_generation_counts_changes_of_spec(api: Api) -> None:
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    made = await api.create(budgets, {"metadata": {"name": "n"}, "spec": {"minAvailable": 1}})
    assert made["metadata"]["generation"] == 1
    labelled = await api.patch(f"{budgets}/n", {"metadata": {"labels": {"a": "b"}, "generation": 7}})
    assert labelled["metadata"]["generation"] == 1
    changed = await api.patch(f"{budgets}/n", {"spec": {"minAvailable": 2}})
    assert changed["metadata"]["generation"] == 2


async def test_changes_are_counted_of_the_kinds_of_which_kubernetes_counts_them(api: Api) -> None:
    nodes, drivers = "/api/v1/nodes", "/apis/storage.k8s.io/v1/csidrivers"
    made = await api.create(nodes, {"metadata": {"name": "n", "generation": 7}, "spec": {"unschedulable": True}})
    changed = await api.patch(f"{nodes}/n", {"spec": {"unschedulable": None}})
    assert [obj["metadata"]["generation"] for obj in (made, changed)] == [7, 7], "what a client sent, as it is"
    driver = await api.create(drivers, {"metadata": {"name": "d"}, "spec": {}})
    assert "generation" not in driver["metadata"]
    changed = await api.patch(f"{drivers}/d", {"spec": {"requiresRepublish": True}})
    assert changed["metadata"]["generation"] == 1
    contents = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses"
    custom = {"metadata": {"name": "c"}, "driver": "x.io", "deletionPolicy": "Delete"}
    assert (await api.create(contents, custom))["metadata"]["generation"] == 1


async def test_the_answer_to_a_deletion_is_the_object_or_a_status(api: Api) -> None:
    classes = "/apis/storage.k8s.io/v1/storageclasses"
    await api.create(classes, {"metadata": {"name": "c"}, "provisioner": "x.io/y"})
    await api.create(MAPS, config())
    gone, told = await api.delete(f"{classes}/c"), await api.delete(f"{MAPS}/x")
    assert (gone["kind"], "deletionTimestamp" in gone["metadata"]) == ("StorageClass", False)
    assert (told["kind"], told["status"]) == ("Status", "Success")


async def test_finalizers_hold_an_object(api: Api) -> None:
    body = config()
    body["metadata"]["finalizers"] = ["a.b/c"]
    await api.create(MAPS, body)
    held = await api.delete(f"{MAPS}/x")
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    assert await api.delete(f"{MAPS}/x") == held
    rejected = await api.patch(f"{MAPS}/x", {"metadata": {"finalizers": ["a.b/c", "a.b/new"]}}, want=422)
    assert "no new finalizers" in rejected["message"]
    kept = await api.patch(f"{MAPS}/x", {"metadata": {"deletionTimestamp": None}})
    assert kept["metadata"]["deletionTimestamp"] == held["metadata"]["deletionTimestamp"]
    await api.patch(f"{MAPS}/x", {"metadata": {"finalizers": None}})
    await api.get(f"{MAPS}/x", want=404)


@pytest.mark.parametrize(
    ("options", "finalizers"),
    [
        ({"propagationPolicy": "Foreground"}, ["foregroundDeletion"]),
        ({"propagationPolicy": "Orphan"}, ["orphan"]),
        ({"orphanDependents": True}, ["orphan"]),
    ],
)
async def test_propagation_becomes_a_finalizer(api: Api, options: dict[str, Any], finalizers: list[str]) -> None:
    await api.create(MAPS, config())
    marked = await api.delete(f"{MAPS}/x", options)
    assert marked["metadata"]["finalizers"] == finalizers
    await api.delete(f"{MAPS}/x", {"propagationPolicy": "Background"})
    await api.get(f"{MAPS}/x", want=404)


async def test_pod_without_node_goes_at_once(api: Api) -> None:
    await api.create(PODS, pod())
    assert (await api.delete(f"{PODS}/p"))["kind"] == "Pod"
    await api.get(f"{PODS}/p", want=404)


async def test_pod_on_a_node_is_ended_gracefully(api: Api) -> None:
    await api.create(PODS, pod(nodeName="n", terminationGracePeriodSeconds=60))
    marked = (await api.delete(f"{PODS}/p"))["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 60
    assert marked["deletionTimestamp"] == "2027-01-15T08:01:00Z"
    assert (await api.delete(f"{PODS}/p"))["metadata"] == marked
    shorter = (await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 5}))["metadata"]
    assert (shorter["deletionGracePeriodSeconds"], shorter["deletionTimestamp"]) == (5, "2027-01-15T08:00:05Z")
    longer = (await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 50}))["metadata"]
    assert longer["deletionGracePeriodSeconds"] == 5
    await api.delete(f"{PODS}/p", query={"gracePeriodSeconds": "0"})
    await api.get(f"{PODS}/p", want=404)
