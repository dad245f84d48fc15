"""get, list and watch."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api

from tonnage.base.errors import ApiGoneError
from tonnage_box.apiserver.storage import watch as watches
from tonnage_box.apiserver.storage.store import StoreLimits

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


def config(name: str = "x", labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def pod(name: str, node: str = "", **labels: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "busybox"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec | ({"nodeName": node} if node else {})}


def names(found: Any) -> list[str]:
    return [i["metadata"]["name"] for i in found["items"]]


async def test_lists_select(api: Api) -> None:
    for n, node in enumerate(("a", "b", "a", "")):
        await api.create(PODS, pod(f"p{n}", node, odd=str(n % 2)))
    everything = await api.get(PODS)
    assert (everything["kind"], everything["apiVersion"], len(everything["items"])) == ("PodList", "v1", 4)
    assert names(await api.get(PODS, query={"fieldSelector": "spec.nodeName=a"})) == ["p0", "p2"]
    assert names(await api.get(PODS, query={"fieldSelector": "spec.nodeName="})) == ["p3"]
    assert names(await api.get(PODS, query={"labelSelector": "odd in (1)", "fieldSelector": "spec.nodeName!=b"})) == [
        "p3"
    ]
    assert names(await api.get("/api/v1/pods", query={"fieldSelector": "metadata.name=p1"})) == ["p1"]
    assert "not supported" in (await api.get(PODS, want=400, query={"fieldSelector": "spec.nothing=1"}))["message"]
    await api.get(PODS, want=400, query={"labelSelector": "==="})


async def test_readers_of_one_moment_do_not_take_it_from_each_other(api: Api) -> None:
    for n in range(6):
        await api.create(MAPS, config(f"x{n}"))
    pages = [await api.get(MAPS, query={"limit": "3"}) for _ in range(3)]
    await api.delete(f"{MAPS}/x4")
    for page in pages:
        assert names(await api.get(MAPS, query={"continue": page["metadata"]["continue"]})) == ["x3", "x4", "x5"]
    await api.get(MAPS, want=410, query={"continue": pages[0]["metadata"]["continue"]})


async def test_many_lists_are_read_while_writes_go_on(api: Api) -> None:
    for n in range(3):
        await api.create(MAPS, config(f"x{n}"))
    pages = []
    for n in range(30):
        pages.append(await api.get(MAPS, query={"limit": "2"}))
        await api.patch(f"{MAPS}/x2", {"data": {"n": str(n)}})
    for page in pages:
        assert names(await api.get(MAPS, query={"continue": page["metadata"]["continue"]})) == ["x2"]


async def test_pages_show_one_moment(api: Api) -> None:
    for n in range(7):
        await api.create(MAPS, config(f"x{n}"))
    page = await api.get(MAPS, query={"limit": "3"})
    assert (names(page), page["metadata"]["remainingItemCount"]) == (["x0", "x1", "x2"], 4)
    await api.delete(f"{MAPS}/x4")
    await api.create(MAPS, config("x3a"))
    second = await api.get(MAPS, query={"limit": "3", "continue": page["metadata"]["continue"]})
    assert names(second) == ["x3", "x4", "x5"]
    assert second["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]
    third = await api.get(MAPS, query={"limit": "3", "continue": second["metadata"]["continue"]})
    assert names(third) == ["x6"]
    assert "continue" not in third["metadata"]


async def test_pages_that_are_too_old_are_gone(api: Api) -> None:
    for n in range(3):
        await api.create(MAPS, config(f"x{n}"))
    token = (await api.get(MAPS, query={"limit": "1"}))["metadata"]["continue"]
    for n in range(70):
        await api.create(MAPS, config(f"y{n}"))
        await api.get(MAPS, query={"limit": "1"})
    gone = await api.get(MAPS, want=410, query={"limit": "1", "continue": token})
    assert gone["reason"] == "Expired"
    await api.get(MAPS, want=400, query={"continue": "nonsense"})


async def test_resource_versions_of_lists(api: Api) -> None:
    first = await api.create(MAPS, config())
    old = first["metadata"]["resourceVersion"]
    await api.create(PODS, pod("p"))
    exact = await api.get(MAPS, query={"resourceVersion": old, "resourceVersionMatch": "Exact"})
    assert (names(exact), exact["metadata"]["resourceVersion"]) == (["x"], old)
    await api.create(MAPS, config("y"))
    await api.get(MAPS, want=410, query={"resourceVersion": old, "resourceVersionMatch": "Exact"})
    newer = await api.get(MAPS, query={"resourceVersion": old, "resourceVersionMatch": "NotOlderThan"})
    assert names(newer) == ["x", "y"]
    assert names(await api.get(MAPS, query={"resourceVersion": "0"})) == ["x", "y"]
    ahead = await api.get(MAPS, want=504, query={"resourceVersion": "100000"})
    assert ahead["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    for wrong in ({"resourceVersion": "abc"}, {"limit": "-1"}, {"watch": "maybe"}, {"timeoutSeconds": "x"}):
        await api.get(MAPS, want=400, query=wrong)
    for wrong in (
        {"resourceVersionMatch": "Exact"},
        {"resourceVersion": "0", "resourceVersionMatch": "Exact"},
        {"sendInitialEvents": "true"},
        {"watch": "1", "sendInitialEvents": "true"},
    ):
        await api.get(MAPS, want=422, query=wrong)


async def test_a_watch_begins_with_what_is_there(api: Api) -> None:
    await api.create(MAPS, config("x"))
    async with api.watch(MAPS) as watch:
        assert await watch.names(1) == [("ADDED", "x")]
        await api.create(MAPS, config("y"))
        await api.patch(f"{MAPS}/y", {"data": {"a": "1"}})
        await api.delete(f"{MAPS}/x")
        assert await watch.names(3) == [("ADDED", "y"), ("MODIFIED", "y"), ("DELETED", "x")]


async def test_a_watch_goes_on_from_a_revision(api: Api) -> None:
    first = await api.create(MAPS, config("x"))
    await api.create(MAPS, config("y"))
    gone = await api.delete(f"{MAPS}/x")
    assert gone["status"] == "Success"
    version = first["metadata"]["resourceVersion"]
    async with api.watch(MAPS, resourceVersion=version) as watch:
        assert await watch.names(1) == [("ADDED", "y")]
        kind, last = await watch.next()
        assert (kind, last["metadata"]["name"]) == ("DELETED", "x")
        assert int(last["metadata"]["resourceVersion"]) == api.server.store.revision


async def test_revisions_that_are_forgotten_are_gone(api: Api) -> None:
    api.server.store.limits = StoreLimits(history=1)
    first = await api.create(MAPS, config("x"))
    await api.create(MAPS, config("y"))
    version = str(int(first["metadata"]["resourceVersion"]) - 1)
    gone = await api.get(MAPS, want=410, query={"watch": "1", "resourceVersion": version})
    assert (gone["code"], gone["reason"]) == (410, "Expired")
    with pytest.raises(ApiGoneError, match="too old resource version"):
        await api.watch(MAPS, resourceVersion=version).__aenter__()


async def test_selecting_watches_see_objects_come_and_go(api: Api) -> None:
    await api.create(PODS, pod("p", app="a"))
    async with (
        api.watch(PODS, labelSelector="app=a") as by_label,
        api.watch("/api/v1/pods", fieldSelector="spec.nodeName=n") as by_field,
    ):
        assert await by_label.names(1) == [("ADDED", "p")]
        await api.create(f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {"name": "n"}})
        assert await by_field.names(1) == [("ADDED", "p")]
        assert await by_label.names(1) == [("MODIFIED", "p")]
        changed = await api.patch(f"{PODS}/p", {"metadata": {"labels": {"app": "b"}}})
        assert await by_field.names(1) == [("MODIFIED", "p")]
        kind, last = await by_label.next()
        assert (kind, last["metadata"]["labels"]) == ("DELETED", {"app": "a"})
        assert last["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]
        await api.patch(f"{PODS}/p", {"metadata": {"labels": {"app": "a"}}})
        assert await by_label.names(1) == [("ADDED", "p")]
        await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})
        assert await by_label.names(1) == [("DELETED", "p")]
        assert await by_field.names(2) == [("MODIFIED", "p"), ("DELETED", "p")]


async def test_a_watch_of_one_object(api: Api) -> None:
    await api.create(MAPS, config("x"))
    await api.create(MAPS, config("y"))
    async with api.watch(f"{MAPS}/y") as watch:
        await api.patch(f"{MAPS}/x", {"data": {"a": "1"}})
        await api.patch(f"{MAPS}/y", {"data": {"a": "1"}})
        assert await watch.names(2) == [("ADDED", "y"), ("MODIFIED", "y")]


async def test_initial_events_end_with_a_bookmark(api: Api) -> None:
    await api.create(MAPS, config("x"))
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with api.watch(MAPS, **options) as watch:
        assert await watch.names(1) == [("ADDED", "x")]
        kind, mark = await watch.next()
        assert (kind, mark["kind"]) == ("BOOKMARK", "ConfigMap")
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert mark["metadata"]["resourceVersion"] == str(api.server.store.revision)


async def test_bookmarks_move_quiet_watches_on(api: Api) -> None:
    api.server.hub.bookmark_seconds = 0.01
    async with api.watch(MAPS, allowWatchBookmarks="true") as watch:
        made = await api.create(PODS, pod("p"))
        kind, mark = await watch.next()
    assert (kind, mark["metadata"]["resourceVersion"]) == ("BOOKMARK", made["metadata"]["resourceVersion"])


async def test_a_watch_ends_after_its_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = watches.Watcher.close_after
    monkeypatch.setattr(watches.Watcher, "close_after", lambda watcher, seconds: wait(watcher, seconds / 30_000))
    async with api.watch(MAPS, timeoutSeconds="300") as watch:
        with pytest.raises(StopAsyncIteration):
            await watch.next()


async def test_all_watches_end_when_the_server_stops(api: Api) -> None:
    async with api.watch(MAPS) as one, api.watch(PODS) as other:
        await api.server.stop()
        for watch in (one, other):
            with pytest.raises(StopAsyncIteration):
                await watch.next()
    assert len(api.server.hub) == 0


async def test_a_watch_of_a_stopped_server_ends(api: Api) -> None:
    await api.server.stop()
    async with api.watch("/api/v1/namespaces") as watch:
        assert len(await watch.names(4)) == 4
        with pytest.raises(StopAsyncIteration):
            await watch.next()
