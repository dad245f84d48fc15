"""Expectations: own writes count until the watch shows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tonnage.kubernetes.api.kinds import CONFIG_MAPS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informer, Informers
from tonnage_box.controllers.podcontrol.expectations import Dependents, controller_of

OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}


async def make(kube: Client, name: str, *owners: Any) -> Any:
    return await kube.create(CONFIG_MAPS, {"metadata": {"name": name, "ownerReferences": owners}}, "default")


async def test_what_was_written_is_there_before_the_watch_shows_it(kube: Client) -> None:
    dependents = Dependents(Informer(kube, CONFIG_MAPS))  # never run: it shows nothing
    one = dependents.wrote(await make(kube, "a", OWNER))
    assert dependents.owned("u") == [one]
    assert dependents.get("default/a") is one
    orphan = dependents.wrote(await make(kube, "b"))
    assert dependents.orphans("default") == [orphan]
    reference = controller_of(one)
    assert reference is not None
    assert reference.uid == "u"
    assert controller_of(orphan) is None


async def test_what_was_deleted_counts_as_being_deleted_until_it_is_gone(
    kube: Client, informers: Informers, settle: Callable[[], Awaitable[None]]
) -> None:
    dependents = Dependents(informers.of(CONFIG_MAPS))
    one = await make(kube, "a", OWNER)
    await settle()
    dependents.deleted(one)
    assert [obj.metadata.deleting for obj in dependents.owned("u")] == [True]
    await kube.delete(CONFIG_MAPS, "a", "default")
    await settle()
    assert dependents.owned("u") == []
    assert dependents.get("default/a") is None


async def test_the_cache_takes_over(kube: Client, informers: Informers, settle: Callable[[], Awaitable[None]]) -> None:
    dependents = Dependents(informers.of(CONFIG_MAPS))
    await make(kube, "first")
    await settle()
    dependents.wrote(await make(kube, "a", OWNER))
    changed = await kube.patch(CONFIG_MAPS, "a", {"data": {"k": "v"}}, "default")
    await settle()
    assert dependents.owned("u") == [changed]
