"""Binding of pods, finalizing of namespaces."""

from __future__ import annotations

from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.bodies import config, pod

PODS = "/api/v1/namespaces/default/pods"


async def test_binding_happens_once(api: Api) -> None:
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


async def test_dry_runs_of_subresources_write_nothing(api: Api) -> None:
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


async def test_a_namespace_goes_when_it_is_finalized(api: Api) -> None:
    made = await api.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    assert made["spec"]["finalizers"] == ["kubernetes"]
    ended = await api.delete("/api/v1/namespaces/team")
    assert ended["status"]["phase"] == "Terminating"
    await api.create("/api/v1/namespaces/team/configmaps", config(), want=403)
    await api.put("/api/v1/namespaces/team/finalize", ended | {"spec": {"finalizers": []}})
    await api.get("/api/v1/namespaces/team", want=404)


async def test_ephemeral_containers_are_all_that_their_subresource_changes(api: Api) -> None:
    path = f"{PODS}/p/ephemeralcontainers"
    made = await api.create(PODS, pod())
    look = {"name": "look", "image": "busybox", "targetContainerName": "c"}
    wanted = made | {"spec": {"ephemeralContainers": [look], "nodeName": "elsewhere"}, "status": {"phase": "Failed"}}
    changed = await api.put(path, wanted)
    (added,) = changed["spec"].pop("ephemeralContainers")
    assert added.items() >= look.items()
    assert changed["spec"] == made["spec"]
    assert changed["status"] == made["status"]
    assert changed["metadata"]["generation"] == made["metadata"]["generation"] + 1
    assert await api.get(path) == await api.get(f"{PODS}/p")
    stale = await api.put(path, wanted, want=409)
    assert stale["reason"] == "Conflict"
    more = {"spec": {"ephemeralContainers": [{"name": "more", "image": "busybox"}]}}
    both = await api.patch(path, more, content_type="application/strategic-merge-patch+json")
    assert [c["name"] for c in both["spec"]["ephemeralContainers"]] == ["look", "more"]


async def test_ephemeral_containers_stay_as_they_were_added(api: Api) -> None:
    path = f"{PODS}/p/ephemeralcontainers"
    await api.create(PODS, pod())
    look = {"name": "look", "image": "busybox"}
    kind = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    with_one = await api.put(path, kind | {"spec": {"ephemeralContainers": [look]}})
    for containers, said in (
        ([], 'existing ephemeral containers "look" may not be removed'),
        ([look | {"image": "other"}], 'existing ephemeral containers "look" may not be changed'),
    ):
        answer = await api.put(path, kind | {"spec": {"ephemeralContainers": containers}}, want=422)
        assert said in answer["message"]
    plain = await api.put(f"{PODS}/p", with_one | {"spec": with_one["spec"] | {"ephemeralContainers": []}}, want=422)
    assert "pod updates may not change fields other than" in plain["message"]
    await api.delete(path, want=405)
