"""What admission reads, and the locks that it holds until the write has been answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.unit.box.apiserver.api import Api

from tonnage.base.aio.clock import RealClock
from tonnage.base.aio.tasks import KeyedLocks
from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.access.access import ApiAccess
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.request.user import ADMIN
from tonnage_box.apiserver.storage.store import ObjectKey, Store


async def used(namespace: str) -> Mapping[str, int]:
    return {}


def context(store: Store, locks: KeyedLocks) -> AdmissionContext:
    key = ObjectKey("pods", "default", "p")
    return AdmissionContext(
        store, locks, used, "CREATE", key, "", ADMIN, "2026-01-01T00:00:00Z", ApiAccess(store, RealClock())
    )


async def test_it_reads_what_is_stored(api: Api) -> None:
    one = context(api.server.store, KeyedLocks())
    assert (one.namespace, one.name) == ("default", "p")
    found = one.get(kinds.NAMESPACES, "default")
    assert found is not None
    assert found["metadata"]["name"] == "default"
    assert one.get(kinds.PODS, "p", "default") is None
    names = [namespace["metadata"]["name"] for namespace in await one.list(kinds.NAMESPACES)]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]


async def test_what_it_reads_is_its_own(api: Api) -> None:
    one = context(api.server.store, KeyedLocks())
    (await one.list(kinds.NAMESPACES))[0].clear()
    assert (await one.list(kinds.NAMESPACES))[0]["kind"] == "Namespace"


async def test_a_lock_is_held_until_the_write_has_ended(api: Api) -> None:
    locks, order = KeyedLocks(), list[str]()

    async def write(name: str) -> None:
        async with context(api.server.store, locks) as one:
            await one.hold("quota/default")
            await one.hold("quota/default")  # which it has
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(write("a"), write("b"))
    assert order == ["a begins", "a ends", "b begins", "b ends"]
