"""The scale subresource, and the workloads' own ways through the API."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api

Obj = dict[str, Any]
PATH = "/apis/apps/v1/namespaces/default/deployments"
LABELS = {"app": "web"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
DEPLOYMENT: Obj = {
    "metadata": {"name": "web"},
    "spec": {"replicas": 3, "selector": {"matchLabels": LABELS}, "template": TEMPLATE},
}


@pytest.fixture
async def web(api: Api) -> Obj:
    made: Obj = await api.create(PATH, DEPLOYMENT)
    return made


async def test_scale_shows_the_number_and_the_selector(api: Api, web: Obj) -> None:
    found = await api.get(f"{PATH}/web/scale")

    assert (found["kind"], found["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert found["spec"] == {"replicas": 3}
    assert found["status"] == {"replicas": 0, "selector": "app=web"}
    assert found["metadata"]["resourceVersion"] == web["metadata"]["resourceVersion"]


@pytest.mark.parametrize("verb", ["put", "patch"])
async def test_a_new_scale_is_a_new_generation_of_the_thing(api: Api, web: Obj, verb: str) -> None:
    change: Obj = {"spec": {"replicas": 5}}
    answer = await getattr(api, verb)(f"{PATH}/web/scale", change)

    live = await api.get(f"{PATH}/web")
    assert answer["spec"] == {"replicas": 5}
    assert (live["spec"]["replicas"], live["metadata"]["generation"]) == (5, 2)
    assert answer["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]


async def test_to_none_and_never_below(api: Api, web: Obj) -> None:
    await api.patch(f"{PATH}/web/scale", {"spec": {"replicas": 0}})
    rejected = await api.patch(f"{PATH}/web/scale", {"spec": {"replicas": -1}}, want=422)

    assert (await api.get(f"{PATH}/web"))["spec"]["replicas"] == 0
    assert "must be greater than or equal to 0" in rejected["message"]


async def test_a_scale_of_another_version_is_a_conflict(api: Api, web: Obj) -> None:
    scale = await api.get(f"{PATH}/web/scale")
    await api.patch(f"{PATH}/web/scale", {"spec": {"replicas": 4}})

    await api.put(f"{PATH}/web/scale", scale, want=409)

    assert (await api.get(f"{PATH}/web"))["spec"]["replicas"] == 4


async def test_what_cannot_be_scaled(api: Api, web: Obj) -> None:
    await api.get("/apis/apps/v1/namespaces/default/daemonsets/x/scale", want=404)
    await api.get(f"{PATH}/nobody/scale", want=404)
    await api.delete(f"{PATH}/web/scale", want=405)
    names = [r["name"] for r in (await api.get("/apis/apps/v1"))["resources"]]
    assert {"deployments/scale", "replicasets/scale", "statefulsets/scale"} <= set(names)
    assert "daemonsets/scale" not in names


async def test_status_is_left_alone_by_everybody_but_status(api: Api) -> None:
    made = await api.create(PATH, DEPLOYMENT | {"status": {"replicas": 9}})
    assert made["status"] == {}
    await api.patch(f"{PATH}/web/status", {"status": {"replicas": 2}})
    changed = await api.patch(f"{PATH}/web", {"status": {"replicas": 7}, "spec": {"replicas": 1}})
    assert (changed["status"]["replicas"], changed["metadata"]["generation"]) == (2, 2)


async def test_a_job_selects_by_its_own_uid(api: Api) -> None:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]}
    body = {"metadata": {"name": "once"}, "spec": {"template": {"metadata": {"labels": LABELS}, "spec": pod}}}

    made = await api.create("/apis/batch/v1/namespaces/default/jobs", body)

    uid = made["metadata"]["uid"]
    assert made["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert labels["batch.kubernetes.io/controller-uid"] == labels["controller-uid"] == uid
    assert labels["job-name"] == labels["batch.kubernetes.io/job-name"] == "once"
    assert made["metadata"]["labels"] == LABELS
    assert (made["spec"]["completions"], made["spec"]["parallelism"], made["spec"]["backoffLimit"]) == (1, 1, 6)
