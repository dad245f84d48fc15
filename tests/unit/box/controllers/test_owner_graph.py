"""Owner graph: dependents by owner, as objects come, change their owners, and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import ConfigMap
from tonnage.kubernetes.api.kinds import CONFIG_MAPS
from tonnage.kubernetes.api.meta import ObjectMeta, OwnerReference
from tonnage.kubernetes.client.cache import Cache
from tonnage_box.controllers.garbage_collector import OwnerLookup, Owners, blocks, refers_to

_UIDS = st.sampled_from("abcd")


def ref(uid: str, *, blocking: bool = True, name: str = "") -> OwnerReference:
    return OwnerReference(api_version="v1", kind="ConfigMap", name=name or uid, uid=uid, block_owner_deletion=blocking)


def thing(uid: str, *owners: str, waits: bool = False, version: int = 1) -> ConfigMap:
    meta = ObjectMeta(
        name=uid,
        namespace="default",
        uid=uid,
        resource_version=str(version),
        owner_references=[ref(owner) for owner in owners],
        deletion_timestamp="2026-01-01T00:00:00Z" if waits else None,
        finalizers=[names.FOREGROUND] if waits else [],
    )
    return ConfigMap(metadata=meta)


@given(st.lists(st.tuples(_UIDS, st.sets(_UIDS) | st.none()), max_size=30))
def test_it_knows_the_dependents_of_what_there_is(changes: list[tuple[str, set[str] | None]]) -> None:
    cache: Cache[ConfigMap] = Cache()
    graph, present = Owners(), dict[str, ConfigMap]()
    for version, (uid, owners) in enumerate(changes):
        old = present.get(uid)
        if owners is not None:
            new = present[uid] = thing(uid, *sorted(owners), version=version)
            cache.put(new)
            graph.put(CONFIG_MAPS, cache, old, new)
        elif old is not None:
            del present[uid]
            cache.remove(old.key)
            graph.remove(old)
    for uid in "abcd":
        found = graph.find(uid)
        assert (found.obj if found else None) is present.get(uid)
        dependents = {
            o.metadata.uid for o in present.values() if any(r.uid == uid for r in o.metadata.owner_references)
        }
        assert set(graph.dependents(uid)) == dependents


def test_a_cycle_of_waiting_owners_is_seen() -> None:
    cache: Cache[ConfigMap] = Cache()
    graph = Owners()
    for one in (thing("a", "c", waits=True), thing("b", "a", waits=True), thing("c", "b", waits=True), thing("d")):
        cache.put(one)
        graph.put(CONFIG_MAPS, cache, None, one)
    found = graph.find("a")
    assert found is not None
    assert found.waits_for_dependents
    assert graph.waits_for(found, "c")
    assert not graph.waits_for(found, "d")


@pytest.mark.parametrize(
    ("reference", "namespace", "means"),
    [
        (ref("a"), "default", True),
        (ref("a"), "other", False),
        (ref("b"), "default", False),
        (ref("a", name="x"), "default", False),
    ],
)
def test_a_reference_means_one_object(reference: OwnerReference, namespace: str, means: bool) -> None:
    assert refers_to(reference, OwnerLookup(CONFIG_MAPS, thing("a")), namespace) is means


def test_only_blocking_references_block() -> None:
    assert blocks(thing("d", "a"), "a")
    assert not blocks(thing("d", "a"), "b")
    loose = ConfigMap(metadata=ObjectMeta(name="d", uid="d", owner_references=[ref("a", blocking=False)]))
    assert not blocks(loose, "a")
