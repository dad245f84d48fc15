"""The garbage collector: each policy, each kind of absent owner, and random families against the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.fixture_types import Settle, Told

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, CONFIG_MAPS, NODES, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.controllers.garbage_collector import GarbageCollector

Make = Callable[..., Awaitable[Any]]
KINDS = (CONFIG_MAPS, PODS, CLAIMS, NODES)


@pytest.fixture
async def collector(kube: Client, informers: Informers, events: EventRecorder) -> GarbageCollector:
    return GarbageCollector(kube, informers, events, KINDS)


async def drain(collector: GarbageCollector, settle: Callable[[], Awaitable[None]]) -> None:
    """Work off everything that watches asked for."""
    queue = collector._controller.queue
    await settle()
    while (key := queue.get()) is not None:
        await collector.reconcile(key)
        queue.done(key)
        await settle()


@pytest.fixture
def work(collector: GarbageCollector, settle: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        await drain(collector, settle)

    return run


def owned(owner: Any, *, block: bool = False, kind: str = "ConfigMap", **more: str) -> dict[str, Any]:
    ref = {"apiVersion": "v1", "kind": kind, "name": owner.metadata.name, "uid": owner.metadata.uid, **more}
    return ref | ({"blockOwnerDeletion": True} if block else {})


@pytest.fixture
def make_map(kube: Client) -> Make:
    async def make(name: str, *owners: dict[str, Any], namespace: str = "default") -> Any:
        meta = {"name": name, "ownerReferences": list(owners)}
        return await kube.create(CONFIG_MAPS, {"metadata": meta}, namespace)

    return make


async def left(kube: Client) -> set[str]:
    return {o.metadata.name for o in (await kube.list(CONFIG_MAPS)).items}


async def test_background_takes_the_whole_family(kube: Client, make_map: Make, work: Any) -> None:
    a = await make_map("a")
    b = await make_map("b", owned(a))
    await make_map("c", owned(b))
    await make_map("other")
    await work()
    assert await left(kube) == {"a", "b", "c", "other"}
    await kube.delete(CONFIG_MAPS, "a", "default")
    await work()
    assert await left(kube) == {"other"}


async def test_second_owner_keeps_it_and_the_dead_reference_goes(kube: Client, make_map: Make, work: Any) -> None:
    a, b = await make_map("a"), await make_map("b")
    await make_map("c", owned(a), owned(b, block=True))
    await kube.delete(CONFIG_MAPS, "a", "default")
    await work()
    child = await kube.get(CONFIG_MAPS, "c", "default")
    assert [ref.name for ref in child.metadata.owner_references] == ["b"]
    assert child.metadata.owner_references[0].block_owner_deletion is True


async def test_foreground_owner_goes_last(kube: Client, make_map: Make, work: Any) -> None:
    a = await make_map("a")
    await make_map("b", owned(a, block=True))
    await kube.patch(CONFIG_MAPS, "b", {"metadata": {"finalizers": ["example.com/hold"]}}, "default")
    await work()
    await kube.delete(CONFIG_MAPS, "a", "default", propagation="Foreground")
    await work()
    assert (await kube.get(CONFIG_MAPS, "b", "default")).metadata.deleting
    assert (await kube.get(CONFIG_MAPS, "a", "default")).metadata.finalizers == [names.FOREGROUND]
    await kube.patch(CONFIG_MAPS, "b", {"metadata": {"finalizers": None}}, "default")
    await work()
    assert await left(kube) == set()


async def test_foreground_does_not_wait_for_those_that_do_not_block(kube: Client, make_map: Make, work: Any) -> None:
    a = await make_map("a")
    await make_map("b", owned(a))
    await kube.patch(CONFIG_MAPS, "b", {"metadata": {"finalizers": ["example.com/hold"]}}, "default")
    await work()
    await kube.delete(CONFIG_MAPS, "a", "default", propagation="Foreground")
    await work()
    assert await left(kube) == {"b"}
    assert (await kube.get(CONFIG_MAPS, "b", "default")).metadata.deleting


async def test_foreground_circle_is_untied(kube: Client, make_map: Make, work: Any) -> None:
    a = await make_map("a")
    b = await make_map("b", owned(a, block=True))
    c = await make_map("c", owned(b, block=True))
    await kube.patch(CONFIG_MAPS, "a", {"metadata": {"ownerReferences": [owned(c, block=True)]}}, "default")
    await work()
    await kube.delete(CONFIG_MAPS, "a", "default", propagation="Foreground")
    await work()
    assert await left(kube) == set()


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_circle_deleted_in_the_foreground_altogether(kube: Client, make_map: Make, work: Any, size: int) -> None:
    """Each waits for the next one, and all wait at once: nobody is left to untie them."""
    maps = [await make_map(f"m{n}") for n in range(size)]
    for n, one in enumerate(maps):
        owners = {"metadata": {"ownerReferences": [owned(maps[(n + 1) % size], block=True)]}}
        await kube.patch(CONFIG_MAPS, one.metadata.name, owners, "default")
    outside = await make_map("outside", owned(maps[0], block=True))
    for one in maps:
        await kube.delete(CONFIG_MAPS, one.metadata.name, "default", propagation="Foreground")
    await work()
    assert outside.metadata.name not in await left(kube)
    assert await left(kube) == set()


async def test_orphans_stay_without_the_reference(kube: Client, make_map: Make, work: Any) -> None:
    a = await make_map("a")
    await make_map("b", owned(a, block=True))
    await work()
    await kube.delete(CONFIG_MAPS, "a", "default", propagation="Orphan")
    await work()
    assert await left(kube) == {"b"}
    assert (await kube.get(CONFIG_MAPS, "b", "default")).metadata.owner_references == []


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        pytest.param({}, True, id="right"),
        pytest.param({"uid": "00000000-0000-0000-0000-000000000000"}, False, id="another uid"),
        pytest.param({"name": "b"}, False, id="another name"),
        pytest.param({"kind": "Secret"}, False, id="another kind"),
        pytest.param({"apiVersion": "example.org/v1", "kind": "Thing"}, True, id="a kind that is not served"),
    ],
)
async def test_absent_owner(kube: Client, make_map: Make, work: Any, change: dict[str, str], kept: bool) -> None:
    a = await make_map("a")
    await make_map("child", {**owned(a), **change})
    await work()
    assert ("child" in await left(kube)) is kept


async def test_owner_in_another_namespace_is_no_owner_and_is_told(
    kube: Client, make_map: Make, work: Any, told: Told
) -> None:
    a = await make_map("a", namespace="kube-system")
    await work()
    await make_map("child", owned(a))
    await work()
    assert await left(kube) == {"a"}
    assert [(name, reason) for name, _, reason, _ in await told()] == [("child", "OwnerRefInvalidNamespace")]


async def test_cluster_wide_dependent_of_a_namespaced_owner_is_kept(kube: Client, make_map: Make, work: Any) -> None:
    a = await make_map("a")
    meta = {"name": "n1", "ownerReferences": [owned(a)]}
    await kube.create(NODES, {"metadata": meta})
    await work()
    await kube.delete(CONFIG_MAPS, "a", "default")
    await work()
    assert (await kube.list(NODES)).items != []


async def test_owner_that_no_watch_has_shown_is_looked_for(
    kube: Client, events: EventRecorder, informers: Informers, settle: Settle, make_map: Make
) -> None:
    collector = GarbageCollector(kube, informers, events, [CLAIMS])  # sees no config maps
    a = await make_map("a")
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for name, ref in (("kept", owned(a)), ("gone", {**owned(a), "uid": "elsewhere"})):
        body = {"metadata": {"name": name, "ownerReferences": [ref]}, "spec": claim}
        await kube.create(CLAIMS, body, "default")
    await drain(collector, settle)
    found = {c.metadata.name: c.metadata.deleting for c in (await kube.list(CLAIMS)).items}
    assert found == {"kept": False, "gone": True}


async def test_claim_of_a_pod_costs_one_delete(
    kube: Client, collector: GarbageCollector, make_pod: Make, make_claim: Make, work: Any, monkeypatch: Any
) -> None:
    pod = await make_pod("p")
    await make_claim("p-v", owners=[owned(pod, kind="Pod", block=True)])
    await work()
    await kube.delete(PODS, "p", "default", grace_seconds=0)
    asked: list[str] = []
    send = kube._send

    async def counted(method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(f"{method} {path}")
        return await send(method, path, *args, **kwargs)

    monkeypatch.setattr(collector._client, "_send", counted)
    await work()
    writes = [a for a in asked if "limit" not in a and not a.endswith(("claims", "pods", "configmaps", "nodes"))]
    assert writes == ["DELETE /api/v1/namespaces/default/persistentvolumeclaims/p-v"]


@dataclass(frozen=True)
class Family:
    """owners[i]: (index, blocks) of the owners of object i (index -1: one that never was); then who is deleted how."""

    owners: list[list[tuple[int, bool]]]
    deletions: list[tuple[int, str]]


@st.composite
def families(draw: st.DrawFn) -> Family:
    size = draw(st.integers(1, 7))
    owner = st.tuples(st.integers(-1, size - 1), st.booleans())
    owners = [draw(st.lists(owner, max_size=3, unique_by=lambda o: o[0])) for _ in range(size)]
    policy = st.sampled_from(["Background", "Foreground", "Orphan"])
    deletions = draw(st.lists(st.tuples(st.integers(0, size - 1), policy), max_size=4))
    return Family([[o for o in refs if o[0] != i] for i, refs in enumerate(owners)], deletions)


def by_the_rules(family: Family) -> dict[int, set[int]]:
    """Who is left with which owners."""
    alive = {i: {owner for owner, _ in refs} for i, refs in enumerate(family.owners)}

    def collect() -> None:
        changed = True
        while changed:
            changed = False
            for i, owners in list(alive.items()):
                there = owners & alive.keys()
                if owners and not there:
                    del alive[i]
                    changed = True
                else:
                    alive[i] = there

    collect()
    for who, policy in family.deletions:
        if who not in alive:
            continue
        del alive[who]
        if policy == "Orphan":
            for owners in alive.values():
                owners.discard(who)
        collect()
    return alive


@examples(40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(families())
def test_random_families_end_by_the_rules(family: Family) -> None:
    asyncio.run(_check(family))


async def _check(family: Family) -> None:
    server = ApiServer(Store(extractor()))
    await server.start()
    kube = Client(server.transport("system:admin"))
    informers = Informers(kube)
    maps = [
        await kube.create(CONFIG_MAPS, {"metadata": {"name": f"m{i}"}}, "default") for i in range(len(family.owners))
    ]
    for i, refs in enumerate(family.owners):
        body = {"ownerReferences": [_ref(maps, owner, blocks=blocks) for owner, blocks in refs]}
        await kube.patch(CONFIG_MAPS, f"m{i}", {"metadata": body}, "default")
    collector = GarbageCollector(kube, informers, EventRecorder(kube, "test"), [CONFIG_MAPS])
    informers.start()

    async def settle() -> None:
        cache = informers.of(CONFIG_MAPS).cache
        await informers.wait_synced()
        for _ in range(5000):
            live = {o.key: o for o in (await kube.list(CONFIG_MAPS)).items}
            if live == {o.key: o for o in cache}:
                return
            await asyncio.sleep(0)
        raise AssertionError("the cache does not become what the server has")

    try:
        await drain(collector, settle)
        for who, policy in family.deletions:
            try:
                await kube.delete(CONFIG_MAPS, f"m{who}", "default", propagation=policy)
            except ApiNotFoundError:
                continue
            await drain(collector, settle)
        found = (await kube.list(CONFIG_MAPS)).items
        ended = {int(o.metadata.name[1:]): {int(r.name[1:]) for r in o.metadata.owner_references} for o in found}
        assert ended == by_the_rules(family)
        assert not any(o.metadata.deleting for o in found)
    finally:
        await informers.close()
        await server.stop()


def _ref(maps: list[Any], owner: int, *, blocks: bool) -> dict[str, Any]:
    if owner < 0:
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": "m-1", "uid": "never-was"}
    return owned(maps[owner], block=blocks)
