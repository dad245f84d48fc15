"""The verbs through the in-process transport: what a client of Kubernetes expects of any object."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tonnage.kube.transport import JSON_PATCH, STRATEGIC_PATCH

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def config(name: str = "x", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "busybox"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def claim(name: str = "c") -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


# create


async def test_create_gives_identity(api: Any) -> None:
    made = await api.create(MAPS, config("x", a="1"))
    meta = made["metadata"]
    assert meta["namespace"] == "default"
    assert uuid.UUID(meta["uid"]).version == 4
    assert meta["creationTimestamp"] == "2027-01-15T08:00:00Z"
    assert await api.get(f"{MAPS}/x") == made
    assert (await api.create(MAPS, config("x"), want=409))["reason"] == "AlreadyExists"


async def test_generated_names(api: Any) -> None:
    names = {(await api.create(MAPS, {"metadata": {"generateName": "x-"}}))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(n.startswith("x-") and len(n) == 7 for n in names)
    answer = await api.create(MAPS, {"metadata": {}}, want=422)
    assert answer["details"]["causes"][0]["field"] == "metadata.name"


async def test_dry_run_changes_nothing(api: Any) -> None:
    await api.create(MAPS, config(), query={"dryRun": "All"})
    await api.get(f"{MAPS}/x", want=404)
    made = await api.create(MAPS, config())
    await api.create(MAPS, config(), want=409, query={"dryRun": "All"})
    shown = await api.patch(f"{MAPS}/x", {"data": {"a": "1"}}, query={"dryRun": "All"})
    assert shown["data"] == {"a": "1"}
    await api.delete(f"{MAPS}/x", query={"dryRun": "All"})
    assert await api.get(f"{MAPS}/x") == made
    await api.create(MAPS, config("y"), want=422, query={"dryRun": "Some"})


async def test_nulls_are_not_stored(api: Any) -> None:
    made = await api.create(
        MAPS, {"metadata": {"name": "x", "creationTimestamp": None}, "data": {"a": "1"}, "binaryData": None}
    )
    assert "binaryData" not in made
    assert made["metadata"]["creationTimestamp"]


async def test_strict_fields(api: Any) -> None:
    body = config() | {"colour": "red"}
    refused = await api.create(MAPS, body, want=400, query={"fieldValidation": "Strict"})
    assert 'strict decoding error: unknown field "colour"' in refused["message"]
    twice = b'{"metadata":{"name":"x"},"data":{"a":"1","a":"2"}}'
    refused = await api.create(MAPS, twice, want=400, query={"fieldValidation": "Strict"})
    assert "duplicate field" in refused["message"]
    warned = await api.send("POST", MAPS, body, query={"fieldValidation": "Warn"})
    assert warned.headers["Warning"] == '299 - "unknown field \\"colour\\""'
    quiet = await api.send("PUT", f"{MAPS}/x", body, query={"fieldValidation": "Ignore"})
    assert "Warning" not in quiet.headers


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"\xff", 400),
        (b'{"metadata": []}', 400),
        (b'{"metadata": {"name": 1}}', 400),
        (b'{"metadata": {"name": "x", "namespace": "other"}}', 400),
        (b'{"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}', 400),
        (b'{"metadata": {"name": "x", "resourceVersion": "1"}}', 400),
        (b'{"metadata": {"name": "Not_A_Name"}}', 422),
        (b"[" * 100_000, 400),
        (b" " * (3 << 20) + b"{}", 413),
    ],
)
async def test_bad_bodies(api: Any, body: bytes, code: int) -> None:
    answer = await api.create(MAPS, body, want=code)
    assert (answer["kind"], answer["code"]) == ("Status", code)


async def test_content_types(api: Any) -> None:
    for wrong in ("application/vnd.kubernetes.protobuf", "text/plain"):
        answer = await api.create(MAPS, config(), want=415, content_type=wrong)
        assert wrong in answer["message"]
    await api.create(MAPS, b"metadata: {name: x}\ndata: {when: 2001-01-01}", content_type="application/yaml")
    assert (await api.get(f"{MAPS}/x"))["data"] == {"when": "2001-01-01"}
    bomb = b"metadata: {name: y}\na: &a [x]\nb: [*a, *a]"
    await api.create(MAPS, bomb, want=400, content_type="application/yaml")
    await api.get(MAPS, want=406, accept="application/vnd.kubernetes.protobuf")
    await api.get(MAPS, accept="application/vnd.kubernetes.protobuf, application/json")
    await api.get(MAPS, accept="*/*")
    apply = await api.patch(f"{MAPS}/x", b"{}", want=415, content_type="application/apply-patch+yaml")
    assert "server-side apply" in apply["message"]


@pytest.mark.parametrize("name", ["..", ".", "a%2Fb", "a%00b", "%25", "x" * 10_000])
async def test_bad_names_in_paths(api: Any, name: str) -> None:
    await api.get(f"{MAPS}/{name}", want=400)
    await api.delete(f"/api/v1/namespaces/{name}/configmaps/x", want=400)


@pytest.mark.parametrize(
    "path", ["/", "/api/v2/pods", "/apis/x/v1/y", "/api/v1/pods/x", f"{PODS}/x/nothing", "/nothing"]
)
async def test_unknown_paths(api: Any, path: str) -> None:
    answer = await api.get(path, want=404)
    assert answer["reason"] == "NotFound"


async def test_methods_that_are_not_allowed(api: Any) -> None:
    assert (await api.call("POST", f"{MAPS}/x", config(), want=405))["reason"] == "MethodNotAllowed"
    await api.call("PUT", MAPS, config(), want=405)
    await api.call("POST", "/api/v1/configmaps", config(), want=405)


# update


async def test_update_detects_conflicts(api: Any) -> None:
    made = await api.create(MAPS, config())
    newer = await api.put(f"{MAPS}/x", made | {"data": {"a": "1"}})
    refused = await api.put(f"{MAPS}/x", made | {"data": {"a": "2"}}, want=409)
    assert refused["reason"] == "Conflict"
    assert "the object has been modified" in refused["message"]
    forced = await api.put(f"{MAPS}/x", config("x", a="3"))
    assert forced["data"] == {"a": "3"}
    assert forced["metadata"]["uid"] == newer["metadata"]["uid"]
    await api.put(f"{MAPS}/y", config("y"), want=404)
    await api.put(f"{MAPS}/x", config("y"), want=400)
    other = config()
    other["metadata"]["uid"] = "another"
    assert "UID in precondition" in (await api.put(f"{MAPS}/x", other, want=409))["message"]


async def test_update_without_change_writes_nothing(api: Any) -> None:
    made = await api.create(MAPS, config("x", a="1"))
    assert await api.put(f"{MAPS}/x", made) == made
    assert await api.patch(f"{MAPS}/x", {"data": {"a": "1"}}) == made


async def test_spec_and_status_are_written_apart(api: Any) -> None:
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


async def test_generation_counts_changes_of_spec(api: Any) -> None:
    nodes = "/api/v1/nodes"
    made = await api.create(nodes, {"metadata": {"name": "n"}, "spec": {"unschedulable": True}})
    assert made["metadata"]["generation"] == 1
    labelled = await api.patch(f"{nodes}/n", {"metadata": {"labels": {"a": "b"}, "generation": 7}})
    assert labelled["metadata"]["generation"] == 1
    changed = await api.patch(f"{nodes}/n", {"spec": {"unschedulable": None}})
    assert changed["metadata"]["generation"] == 2


# patch


async def test_patches_of_three_kinds(api: Any) -> None:
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


async def test_patches_leave_no_nulls(api: Any) -> None:
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
    assert patched["status"]["conditions"] == [{"type": "Ready", "status": "True"}]


async def test_patch_with_a_stale_version_conflicts(api: Any) -> None:
    made = await api.create(MAPS, config())
    version = made["metadata"]["resourceVersion"]
    await api.patch(f"{MAPS}/x", {"metadata": {"resourceVersion": version}, "data": {"a": "1"}})
    await api.patch(f"{MAPS}/x", {"metadata": {"resourceVersion": version}, "data": {"a": "2"}}, want=409)
    await api.patch(f"{MAPS}/x", b"[]", want=400)
    await api.patch(f"{MAPS}/x", b"{", want=400, content_type=JSON_PATCH)
    await api.patch(f"{MAPS}/x", {"metadata": {"name": "other"}}, want=400)
    await api.patch(f"{MAPS}/y", {}, want=404)


# delete


async def test_delete_with_preconditions(api: Any) -> None:
    made = (await api.create(MAPS, config()))["metadata"]
    for wrong in ({"uid": "other"}, {"resourceVersion": "1"}):
        answer = await api.delete(f"{MAPS}/x", {"preconditions": wrong}, want=409)
        assert "Precondition failed" in answer["message"]
    right = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    done = await api.delete(f"{MAPS}/x", {"preconditions": right})
    assert (done["status"], done["details"]["uid"]) == ("Success", made["uid"])
    await api.delete(f"{MAPS}/x", want=404)


async def test_finalizers_hold_an_object(api: Any) -> None:
    body = config()
    body["metadata"]["finalizers"] = ["a.b/c"]
    await api.create(MAPS, body)
    held = await api.delete(f"{MAPS}/x")
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    assert await api.delete(f"{MAPS}/x") == held
    refused = await api.patch(f"{MAPS}/x", {"metadata": {"finalizers": ["a.b/c", "a.b/new"]}}, want=422)
    assert "no new finalizers" in refused["message"]
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
async def test_propagation_becomes_a_finalizer(api: Any, options: dict[str, Any], finalizers: list[str]) -> None:
    await api.create(MAPS, config())
    marked = await api.delete(f"{MAPS}/x", options)
    assert marked["metadata"]["finalizers"] == finalizers
    await api.delete(f"{MAPS}/x", {"propagationPolicy": "Background"})
    await api.get(f"{MAPS}/x", want=404)


async def test_unknown_propagation_is_refused(api: Any) -> None:
    await api.create(MAPS, config())
    await api.delete(f"{MAPS}/x", {"propagationPolicy": "Sideways"}, want=422)
    await api.delete(f"{MAPS}/x", {"propagationPolicy": "Orphan", "orphanDependents": True}, want=422)


async def test_deletecollection_takes_what_is_selected(api: Any) -> None:
    for n in range(4):
        body = config(f"x{n}")
        body["metadata"]["labels"] = {"even": str(n % 2 == 0)}
        await api.create(MAPS, body)
    gone = await api.delete(MAPS, query={"labelSelector": "even=True"})
    assert [i["metadata"]["name"] for i in gone["items"]] == ["x0", "x2"]
    left = await api.get(MAPS)
    assert [i["metadata"]["name"] for i in left["items"]] == ["x1", "x3"]


# pods


async def test_pod_without_node_goes_at_once(api: Any) -> None:
    await api.create(PODS, pod())
    assert (await api.delete(f"{PODS}/p"))["kind"] == "Pod"
    await api.get(f"{PODS}/p", want=404)


async def test_pod_on_a_node_is_ended_gracefully(api: Any) -> None:
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


async def test_binding_happens_once(api: Any) -> None:
    made = await api.create(PODS, pod())
    binding = {"metadata": {"name": "p", "annotations": {"a": "b"}}, "target": {"kind": "Node", "name": "n1"}}
    wrong = {"metadata": {"name": "p", "uid": "other"}, "target": {"name": "n1"}}
    await api.create(f"{PODS}/p/binding", wrong, want=409)
    await api.create(f"{PODS}/p/binding", {"metadata": {"name": "p"}}, want=422)
    await api.create(f"{PODS}/p/binding", binding)
    bound = await api.get(f"{PODS}/p")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"a": "b"}
    assert bound["metadata"]["generation"] == made["metadata"]["generation"]
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    assert bound["status"]["conditions"][0]["status"] == "True"
    again = await api.create(f"{PODS}/p/binding", binding, want=409)
    assert 'already assigned to node "n1"' in again["message"]


async def test_dry_runs_of_subresources_write_nothing(api: Any) -> None:
    dry = {"dryRun": "All"}
    await api.create(PODS, pod())
    before = await api.get(f"{PODS}/p")
    await api.create(f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {"name": "n1"}}, query=dry)
    await api.create(f"{PODS}/p/eviction", {"metadata": {"name": "p"}}, query=dry)
    assert await api.get(f"{PODS}/p") == before
    await api.create("/api/v1/namespaces", {"metadata": {"name": "room"}})
    room = await api.delete("/api/v1/namespaces/room")
    room["spec"] = {}
    await api.put("/api/v1/namespaces/room/finalize", room, query=dry)
    assert (await api.get("/api/v1/namespaces/room"))["spec"] == {"finalizers": ["kubernetes"]}


async def test_eviction_deletes_with_its_options(api: Any) -> None:
    await api.create(PODS, pod(nodeName="n"))
    await api.create(f"{PODS}/p/eviction", {"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 3}})
    assert (await api.get(f"{PODS}/p"))["metadata"]["deletionGracePeriodSeconds"] == 3


# namespaces


async def test_namespaces_of_every_cluster(api: Any) -> None:
    names = [i["metadata"]["name"] for i in (await api.get("/api/v1/namespaces"))["items"]]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]
    assert api.server.cluster_id() == (await api.get("/api/v1/namespaces/kube-system"))["metadata"]["uid"]


async def test_a_namespace_goes_when_it_is_finalized(api: Any) -> None:
    made = await api.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    assert made["spec"]["finalizers"] == ["kubernetes"]
    ended = await api.delete("/api/v1/namespaces/team")
    assert ended["status"]["phase"] == "Terminating"
    await api.create("/api/v1/namespaces/team/configmaps", config(), want=403)
    await api.put("/api/v1/namespaces/team/finalize", ended | {"spec": {"finalizers": []}})
    await api.get("/api/v1/namespaces/team", want=404)


async def test_creation_needs_the_namespace(api: Any) -> None:
    await api.create("/api/v1/namespaces/nowhere/configmaps", config(), want=404)


# reviews, events, documents


async def test_reviews_are_answered_and_not_stored(api: Any) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    review = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    assert (await api.create(path, review))["status"]["allowed"] is True
    await api.create(path, {"spec": {}}, want=400)
    await api.get(path, want=405)
    token = await api.create("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}})
    assert token["status"]["authenticated"] is False
    assert "token" not in token["spec"]
    me = await api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert me["status"]["userInfo"]["username"] == "kubernetes-admin"


async def test_an_event_is_one_object_in_two_shapes(api: Any) -> None:
    core = "/api/v1/namespaces/default/events"
    new = "/apis/events.k8s.io/v1/namespaces/default/events"
    regarding = {"kind": "Pod", "name": "p", "namespace": "default"}
    event = {
        "metadata": {"name": "e"},
        "involvedObject": regarding,
        "reason": "Why",
        "message": "text",
        "type": "Normal",
    }
    async with api.watch(new, fieldSelector="regarding.name=p") as watch:
        await api.create(core, event)
        kind, seen = await watch.next()
    assert (kind, seen["apiVersion"], seen["note"], seen["regarding"]["name"]) == (
        "ADDED",
        "events.k8s.io/v1",
        "text",
        "p",
    )
    assert (await api.get(f"{new}/e"))["note"] == "text"
    await api.patch(f"{core}/e", {"message": "other"})
    changed = await api.patch(f"{new}/e", {"metadata": {"labels": {"a": "b"}}})
    assert (changed["note"], changed["apiVersion"]) == ("other", "events.k8s.io/v1")
    assert (await api.get(f"{core}/e"))["metadata"]["labels"] == {"a": "b"}
    found = await api.get(core, query={"fieldSelector": "involvedObject.name=p,reason=Why"})
    assert len(found["items"]) == 1
    await api.delete(f"{new}/e")
    await api.get(f"{core}/e", want=404)


async def test_documents(api: Any) -> None:
    assert (await api.get("/version"))["gitVersion"].startswith("v1.34.0+tonnage")
    for path in ("/readyz", "/livez", "/healthz"):
        assert (await api.send("GET", path)).body == b"ok"
    assert b"tonnage_apiserver_requests" in (await api.send("GET", "/metrics")).body


async def test_pretty(api: Any) -> None:
    answer = await api.send("GET", "/api/v1/namespaces/default", query={"pretty": "true"})
    assert b'\n  "' in answer.body


@pytest.mark.parametrize("subresource", ["exec", "attach", "portforward", "ephemeralcontainers"])
async def test_what_is_not_built_is_refused_by_name(api: Any, subresource: str) -> None:
    for method in ("GET", "POST"):
        answer = await api.call(method, f"/api/v1/namespaces/default/pods/p/{subresource}", want=501)
        assert answer["reason"] == "NotImplemented"
        assert f"pods/{subresource} is not built here" in answer["message"]
    await api.get("/api/v1/namespaces/default/pods/p/nonsense", want=404)
