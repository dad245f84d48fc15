"""REST verbs that write: create, update, patch, delete."""

from __future__ import annotations

from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.bodies import config, pod

from tonnage.kubernetes.client.transport import JSON_PATCH, STRATEGIC_PATCH

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


async def test_dry_run_changes_nothing(api: Api) -> None:
    await api.create(MAPS, config(), query={"dryRun": "All"})
    await api.get(f"{MAPS}/x", want=404)
    made = await api.create(MAPS, config())
    await api.create(MAPS, config(), want=409, query={"dryRun": "All"})
    shown = await api.patch(f"{MAPS}/x", {"data": {"a": "1"}}, query={"dryRun": "All"})
    assert shown["data"] == {"a": "1"}
    await api.delete(f"{MAPS}/x", query={"dryRun": "All"})
    assert await api.get(f"{MAPS}/x") == made
    await api.create(MAPS, config("y"), want=422, query={"dryRun": "Some"})


async def test_nulls_are_not_stored(api: Api) -> None:
    made = await api.create(
        MAPS, {"metadata": {"name": "x", "creationTimestamp": None}, "data": {"a": "1"}, "binaryData": None}
    )
    assert "binaryData" not in made
    assert made["metadata"]["creationTimestamp"]


async def test_strict_fields(api: Api) -> None:
    body = config() | {"colour": "red"}
    rejected = await api.create(MAPS, body, want=400, query={"fieldValidation": "Strict"})
    assert 'strict decoding error: unknown field "colour"' in rejected["message"]
    twice = b'{"metadata":{"name":"x"},"data":{"a":"1","a":"2"}}'
    rejected = await api.create(MAPS, twice, want=400, query={"fieldValidation": "Strict"})
    assert "duplicate field" in rejected["message"]
    warned = await api.send("POST", MAPS, body, query={"fieldValidation": "Warn"})
    assert warned.headers["Warning"] == '299 - "unknown field \\"colour\\""'
    quiet = await api.send("PUT", f"{MAPS}/x", body, query={"fieldValidation": "Ignore"})
    assert "Warning" not in quiet.headers


async def test_update_detects_conflicts(api: Api) -> None:
    made = await api.create(MAPS, config())
    newer = await api.put(f"{MAPS}/x", made | {"data": {"a": "1"}})
    rejected = await api.put(f"{MAPS}/x", made | {"data": {"a": "2"}}, want=409)
    assert rejected["reason"] == "Conflict"
    assert "the object has been modified" in rejected["message"]
    forced = await api.put(f"{MAPS}/x", config("x", a="3"))
    assert forced["data"] == {"a": "3"}
    assert forced["metadata"]["uid"] == newer["metadata"]["uid"]
    await api.put(f"{MAPS}/y", config("y"), want=404)
    await api.put(f"{MAPS}/x", config("y"), want=400)
    other = config()
    other["metadata"]["uid"] = "another"
    assert "UID in precondition" in (await api.put(f"{MAPS}/x", other, want=409))["message"]


async def test_update_without_change_writes_nothing(api: Api) -> None:
    made = await api.create(MAPS, config("x", a="1"))
    assert await api.put(f"{MAPS}/x", made) == made
    assert await api.patch(f"{MAPS}/x", {"data": {"a": "1"}}) == made


async def test_patches_of_three_kinds(api: Api) -> None:
    await api.create(MAPS, config("x", a="1"))
    merged = await api.patch(f"{MAPS}/x", {"data": {"a": None, "b": "2"}})
    assert merged["data"] == {"b": "2"}
    operations = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": merged["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/data/c", "value": "3"},
    ]
    assert (await api.patch(f"{MAPS}/x", operations, content_type=JSON_PATCH))["data"] == {"b": "2", "c": "3"}
    assert (await api.patch(f"{MAPS}/x", operations, want=422, content_type=JSON_PATCH))["reason"] == "Invalid"
    strategic = {"metadata": {"finalizers": ["a.b/c"]}}
    await api.patch(f"{MAPS}/x", strategic, content_type=STRATEGIC_PATCH)
    both = await api.patch(f"{MAPS}/x", {"metadata": {"finalizers": ["a.b/d"]}}, content_type=STRATEGIC_PATCH)
    assert both["metadata"]["finalizers"] == ["a.b/c", "a.b/d"]


async def test_patches_leave_no_nulls(api: Api) -> None:
    await api.create(MAPS, config("x", a="1"))
    operations = [
        {"op": "add", "path": "/data", "value": None},
        {"op": "add", "path": "/metadata/labels", "value": None},
    ]
    patched = await api.patch(f"{MAPS}/x", operations, content_type=JSON_PATCH)
    assert "data" not in patched
    assert "labels" not in patched["metadata"]
    containers = [{"name": "c", "image": "busybox", "command": None, "env": [{"name": "A", "value": None}]}]
    await api.create(PODS, {"metadata": {"name": "p"}, "spec": {"containers": containers}})
    patched = await api.patch(
        f"{PODS}/p/status", {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": None}]}}
    )
    assert patched["status"]["conditions"] == [
        {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": None}
    ], "but those that Kubernetes prints"


async def test_patch_with_a_stale_version_conflicts(api: Api) -> None:
    made = await api.create(MAPS, config())
    version = made["metadata"]["resourceVersion"]
    await api.patch(f"{MAPS}/x", {"metadata": {"resourceVersion": version}, "data": {"a": "1"}})
    await api.patch(f"{MAPS}/x", {"metadata": {"resourceVersion": version}, "data": {"a": "2"}}, want=409)
    await api.patch(f"{MAPS}/x", b"[]", want=400)
    await api.patch(f"{MAPS}/x", b"{", want=400, content_type=JSON_PATCH)
    await api.patch(f"{MAPS}/x", {"metadata": {"name": "other"}}, want=400)
    await api.patch(f"{MAPS}/y", {}, want=404)


async def test_delete_with_preconditions(api: Api) -> None:
    made = (await api.create(MAPS, config()))["metadata"]
    for wrong in ({"uid": "other"}, {"resourceVersion": "1"}):
        answer = await api.delete(f"{MAPS}/x", {"preconditions": wrong}, want=409)
        assert "Precondition failed" in answer["message"]
    right = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    done = await api.delete(f"{MAPS}/x", {"preconditions": right})
    assert (done["status"], done["details"]["uid"]) == ("Success", made["uid"])
    await api.delete(f"{MAPS}/x", want=404)


async def test_deletecollection_takes_what_is_selected(api: Api) -> None:
    for n in range(4):
        body = config(f"x{n}")
        body["metadata"]["labels"] = {"even": str(n % 2 == 0)}
        await api.create(MAPS, body)
    gone = await api.delete(MAPS, query={"labelSelector": "even=True"})
    assert [i["metadata"]["name"] for i in gone["items"]] == ["x0", "x2"]
    left = await api.get(MAPS)
    assert [i["metadata"]["name"] for i in left["items"]] == ["x1", "x3"]


async def test_eviction_deletes_with_its_options(api: Api) -> None:
    await api.create(PODS, pod(nodeName="n"))
    await api.create(f"{PODS}/p/eviction", {"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 3}})
    assert (await api.get(f"{PODS}/p"))["metadata"]["deletionGracePeriodSeconds"] == 3
