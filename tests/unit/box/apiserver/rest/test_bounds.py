"""No request stops the process: what is too deep, too large or too long is rejected, by count."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.bodies import nested
from tests.unit.box.apiserver.turns import turned

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import selectors
from tonnage.kubernetes.client.transport import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from tonnage_box.apiserver.request import negotiate
from tonnage_box.apiserver.rest import writes
from tonnage_box.apiserver.storage.store import StoreLimits

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


async def test_what_patches_make_of_an_object_is_as_deep(api: Api) -> None:
    await api.create(MAPS, {"metadata": {"name": "x"}, "data": {"a": "b"}})
    path, grown = f"{MAPS}/x", {"op": "add", "path": "/b", "value": nested(40)}
    await api.patch(path, [grown], content_type=JSON_PATCH)
    inner = "/b" + "/0" * 39
    for patch in (
        [grown, {"op": "add", "path": f"{inner}/0", "value": nested(40)}],
        [grown, {"op": "copy", "from": "/b", "path": f"{inner}/0"}],
        [{"op": "add", "path": "/b" + "/c" * n, "value": {}} for n in range(300)],
    ):
        answer = await api.patch(path, patch, want=400, content_type=JSON_PATCH)
        assert "nested" in answer["message"]
    deep: Any = "x"
    for _ in range(64):
        deep = {"a": deep}
    for kind in (MERGE_PATCH, STRATEGIC_PATCH):
        await api.patch(path, {"b": deep["a"]}, content_type=kind)
        answer = await api.patch(path, {"b": deep}, want=400, content_type=kind)
        assert "nested more than 64 deep" in answer["message"]
    assert (await api.get(path))["data"] == {"a": "b"}


async def test_an_object_does_not_grow_beyond_a_body(api: Api) -> None:
    path = f"{PODS}/x"
    await api.create(PODS, {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    for n in range(8):
        patch = {"status": {"conditions": [{"type": f"a{n}", "status": "True", "message": "x" * 900_000}]}}
        want = 200 if n < 6 else 413  # twice a body: no more than that in its status, and nothing else then
        answer = await api.patch(f"{path}/status", patch, content_type=STRATEGIC_PATCH, want=want)
    assert answer["reason"] == "RequestEntityTooLarge"
    assert "the object would have more than 6291456 bytes" in answer["message"]
    answer = await api.patch(path, {"metadata": {"annotations": {"a": "b"}}}, want=413)
    assert "more than 3145728 bytes" in answer["message"]
    assert len((await api.get(path))["status"]["conditions"]) == 6
    await api.patch(f"{path}/status", {"status": {"conditions": []}})
    await api.patch(path, {"metadata": {"annotations": {"a": "b"}}})


async def test_an_object_has_so_many_values_with_its_defaults(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def containers(count: int) -> Any:
        return {
            "metadata": {"name": "x"},
            "spec": {"containers": [{"name": f"c{n}", "image": "i"} for n in range(count)]},
        }

    await api.create(PODS, containers(7500))
    answer = await api.create(PODS, containers(9000), want=413)
    assert "more than 100000 keys and values, with its defaults" in answer["message"]
    monkeypatch.setattr(negotiate, "MAX_VALUES", 50_000)  # as if the object were from before the bound
    more = {"metadata": {"labels": {"a": "b"}}}
    await api.patch(f"{PODS}/x", more, want=413)
    await api.patch(f"{PODS}/x/status", {"status": {"phase": "Running"}})
    await api.patch(f"{PODS}/x", more, want=413)
    monkeypatch.setattr(negotiate, "MAX_VALUES", 10_000)
    await api.patch(f"{PODS}/x/status", {"status": {"message": "m"}}, want=413)
    await api.patch(f"{PODS}/x/status", {"status": {"phase": "Failed"}})
    await api.delete(f"{PODS}/x")


async def test_copies_of_a_patch_have_so_many_values(api: Api) -> None:
    await api.create(MAPS, {"metadata": {"name": "x"}, "u": {}})
    grown = [{"op": "add", "path": "/b", "value": [1] * 1000}]
    copies = [{"op": "copy", "from": "/b", "path": f"/c{n}"} for n in range(200)]
    answer = await api.patch(f"{MAPS}/x", grown + copies, want=413, content_type=JSON_PATCH)
    assert "more than 200000 keys and values" in answer["message"]


def test_a_selector_has_a_thousand_requirements_at_most() -> None:
    assert len(selectors.parse_labels("a," * 999 + "b").requirements) == selectors.MAX_REQUIREMENTS
    for parse, part in ((selectors.parse_labels, "a"), (selectors.parse_fields, "a=b")):
        with pytest.raises(InvalidError, match="at most 1000 requirements"):
            parse(",".join([part] * 1001))


@pytest.mark.parametrize(
    "time",
    [
        "2024-99-99T00:00:00.000000Z",
        "2023-02-29T00:00:00.000000Z",
        "0000-01-01T00:00:00.000000Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "2024-01-01T24:00:00.000000Z\n",
        "２０２４-01-01T00:00:00.000000Z",
    ],
)
async def test_times_that_do_not_exist(api: Api, time: str) -> None:
    answer = await api.create(LEASES, {"metadata": {"name": "x"}, "spec": {"renewTime": time}}, want=400)
    assert "parsing time" in answer["message"]


async def test_a_leap_day_exists(api: Api) -> None:
    made = await api.create(LEASES, {"metadata": {"name": "x"}, "spec": {"renewTime": "2024-02-29T00:00:00.000000Z"}})
    assert made["spec"]["renewTime"] == "2024-02-29T00:00:00.000000Z"


@pytest.mark.parametrize("grace", [2**62, 2**63 - 1])
async def test_a_grace_period_that_never_ends(api: Api, grace: int) -> None:
    spec = {"nodeName": "n", "terminationGracePeriodSeconds": grace, "containers": [{"name": "c", "image": "i"}]}
    for name, query, body in (("a", None, None), ("b", {"gracePeriodSeconds": str(grace)}, None), ("c", None, grace)):
        await api.create(PODS, {"metadata": {"name": name}, "spec": spec})
        options = {"gracePeriodSeconds": body} if body is not None else None
        gone = await api.delete(f"{PODS}/{name}", options, query=query)
        assert gone["metadata"]["deletionTimestamp"] == "9999-12-31T23:59:59Z"


@pytest.mark.parametrize("field", ["maxSurge", "maxUnavailable"])
async def test_percentages_of_many_digits(api: Api, field: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    rolling = {"strategy": {"rollingUpdate": {field: "9" * 5000 + "%"}}}
    path = "/apis/apps/v1/namespaces/default/deployments"
    await api.create(path, {"metadata": {"name": "x"}, "spec": spec | rolling}, want=422)
    budget = {"metadata": {"name": "x"}, "spec": {"selector": {}, "minAvailable": "9" * 5000 + "%"}}
    await api.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget, want=422)


@pytest.mark.parametrize("schedule", ["9" * 5000 + " * * * *", "*/" + "9" * 5000 + " * * * *", "*/٣ * * * *"])
async def test_schedules_of_many_digits(api: Api, schedule: str) -> None:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    spec = {"schedule": schedule, "jobTemplate": {"spec": {"template": pod}}}
    await api.create("/apis/batch/v1/namespaces/default/cronjobs", {"metadata": {"name": "x"}, "spec": spec}, want=422)


async def test_large_objects_are_worked_on_outside_the_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[bool] = set()

    def fields(*arguments: Any) -> Any:
        threads.add(threading.current_thread() is threading.main_thread())
        return check(*arguments)

    check = writes.check_fields
    monkeypatch.setattr(writes, "check_fields", fields)
    for size, here in ((100, True), (100_000, False)):
        threads.clear()
        data = {"data": {"a": "x" * size}}
        await api.create(MAPS, {"metadata": {"name": "x"}} | data)
        await api.put(f"{MAPS}/x", {"metadata": {"name": "x"}, "data": {"b": "x" * size}})
        await api.patch(f"{MAPS}/x", data)
        await api.delete(f"{MAPS}/x")
        assert threads == {here}


async def test_large_bodies_of_subresources_are_worked_on_outside_the_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[bool] = set()

    def fields(*arguments: Any) -> Any:
        threads.add(threading.current_thread() is threading.main_thread())
        return check(*arguments)

    check = writes.check_fields
    monkeypatch.setattr("tonnage_box.apiserver.rest.subresources.check_fields", fields)
    await api.create("/api/v1/namespaces", {"metadata": {"name": "x"}})
    many = {"metadata": {"name": "x", "finalizers": [f"a.b/c{n}" for n in range(10_000)]}}
    await api.put("/api/v1/namespaces/x/finalize", many)
    assert threads == {False}


async def test_a_collection_is_deleted_some_objects_in_a_turn(api: Api) -> None:
    for n in range(500):
        await api.create(MAPS, {"metadata": {"name": f"x{n}"}})
    count = api.server.store.count
    most = await turned(api.delete(MAPS), lambda: 500 - count("configmaps"))
    assert count("configmaps") == 0
    assert 0 < most <= 2 * writes._TOGETHER


@pytest.mark.parametrize("validation", ["Strict", "Warn"])
async def test_the_answer_about_repeated_fields_is_small(api: Api, validation: str) -> None:
    many = ",".join(['"a": 1'] * 600)
    unknown = ",".join(f'"u{n}": 1' for n in range(600))
    body = f'{{"metadata": {{"name": "x"}}, {unknown}, "{"k" * 1_000_000}": {{{many}}}}}'.encode()
    answer = await api.send("POST", MAPS, body, query={"fieldValidation": validation})
    assert answer.status == (400 if validation == "Strict" else 201)
    assert len(answer.body) + len(answer.headers.get("Warning", "")) < 64 << 10


async def test_a_full_store_rejects_by_name_and_lets_deletes_pass(api: Api) -> None:
    held = {"metadata": {"name": "held", "finalizers": ["a.b/c"]}, "data": {"a": "x" * 10_000}}
    await api.create(MAPS, held)
    api.server.store.limits = StoreLimits(objects=api.server.store.size, margin=0)
    answer = await api.create(MAPS, {"metadata": {"name": "x"}}, want=507)
    assert answer["reason"] == "InsufficientStorage"
    assert answer["message"].startswith("the store is full: it has ")
    await api.patch(f"{MAPS}/held", {"data": {"b": "y"}}, want=507)
    await api.delete(f"{MAPS}/held")
    await api.patch(f"{MAPS}/held", {"metadata": {"finalizers": None}})
    await api.get(f"{MAPS}/held", want=404)
    await api.create(MAPS, {"metadata": {"name": "x"}})
