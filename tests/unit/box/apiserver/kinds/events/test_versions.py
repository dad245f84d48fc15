"""Events of both versions: one object in two shapes."""

from __future__ import annotations

from tests.unit.box.apiserver.api import Api

from tonnage_box.apiserver.kinds.events import versions as event_versions


async def test_an_event_is_one_object_in_two_shapes(api: Api) -> None:
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


def test_an_event_goes_in_and_out_unchanged() -> None:
    core = {"apiVersion": "v1", "kind": "Event", "involvedObject": {}, "message": "m", "count": 2, "action": "a"}
    shown = event_versions.outward(core)
    assert shown == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "regarding": {},
        "note": "m",
        "deprecatedCount": 2,
        "action": "a",
    }
    assert event_versions.inward(shown) == core


async def test_an_event_is_one_object_under_two_names(api: Api) -> None:
    body = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "message": "m",
    }
    await api.create("/api/v1/namespaces/default/events", body)
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    assert (await api.get(f"{path}/e"))["note"] == "m"
    found = await api.get(path, query={"fieldSelector": "regarding.name=p"})
    assert [item["metadata"]["name"] for item in found["items"]] == ["e"]
