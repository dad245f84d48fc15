"""An object that cannot be read is there all the same: nothing is deleted or released because of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.kubernetes.client.nulls import Nulls

from tonnage.base.errors import ApiUnreadableError
from tonnage.controller.capacity_cleanup import GoneCapacity
from tonnage.controller.node_loss import GoneNodes
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS, CONFIG_MAPS, NAMESPACES, NODES, PODS, VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.controllers.garbage_collector import GarbageCollector
from tonnage_box.controllers.namespace import NamespaceController
from tonnage_box.controllers.protection import ClaimProtection
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.testing.clock import ManualClock

Make = Callable[..., Awaitable[Any]]
WRONG = {"spec": 7}


@pytest.fixture
def transport(api_server: ApiServer) -> Nulls:
    """Prints null for what is empty, and WRONG for the objects in `broken`."""
    return Nulls(api_server.transport("system:admin"))


@pytest.fixture
async def broken(transport: Nulls) -> AsyncIterator[Callable[..., Awaitable[tuple[Client, Informers]]]]:
    """broken(*names): a client and informers, synced, that cannot read the objects of those names."""
    client = Client(transport)
    informers = Informers(client)

    async def begin(*names: str) -> tuple[Client, Informers]:
        transport.broken = dict.fromkeys(names, WRONG)
        return client, informers

    yield begin
    await informers.close()


async def synced(informers: Informers) -> None:
    informers.start()
    await informers.wait_synced()


@pytest.mark.parametrize("is_broken", [True, False])
async def test_a_claim_stays_while_a_pod_cannot_be_read(
    kube: Client, broken: Any, make_claim: Make, make_pod: Make, is_broken: bool
) -> None:
    await make_claim("c")
    await make_pod("p", **({"claims": ["c"], "nodeName": "n1"} if is_broken else {}))
    client, informers = await broken(*(["p"] if is_broken else []))
    protection = ClaimProtection(client, informers)
    await synced(informers)
    await protection.reconcile("default/c")
    await kube.delete(CLAIMS, "c", "default")
    live = await kube.get(CLAIMS, "c", "default")
    informers.of(CLAIMS).cache.put(live)
    if is_broken:
        with pytest.raises(ApiUnreadableError, match=r"^pods default/p: cannot be read: spec: "):
            await protection.reconcile("default/c")
    else:
        await protection.reconcile("default/c")
    assert len((await kube.list(CLAIMS)).items) == is_broken


@pytest.mark.parametrize("is_broken", [True, False])
async def test_what_belongs_to_an_unreadable_owner_is_not_collected(
    kube: Client, broken: Any, make_claim: Make, events: EventRecorder, is_broken: bool
) -> None:
    owner = await make_claim("owner")
    ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "owner", "uid": owner.metadata.uid}
    await kube.create(CONFIG_MAPS, {"metadata": {"name": "m", "ownerReferences": [ref]}}, "default")
    if not is_broken:
        await kube.patch(CLAIMS, "owner", {"metadata": {"finalizers": None}}, "default")
        await kube.delete(CLAIMS, "owner", "default")
    client, informers = await broken("owner")
    collector = GarbageCollector(client, informers, events, (CONFIG_MAPS, CLAIMS))
    await synced(informers)
    queue = collector._controller.queue
    while (key := queue.get()) is not None:
        try:
            await collector.reconcile(key)
        except ApiUnreadableError:
            assert is_broken
        queue.done(key)
    assert len((await kube.list(CONFIG_MAPS)).items) == is_broken


async def test_a_volume_whose_claim_cannot_be_read_is_not_released(
    kube: Client, broken: Any, make_claim: Make, make_volume: Make, events: EventRecorder, manual_clock: ManualClock
) -> None:
    claim = await make_claim("c", volumeName="v", storageClassName="")
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c", "uid": claim.metadata.uid}
    await make_volume("v", claimRef=ref, storageClassName="", persistentVolumeReclaimPolicy="Delete")
    await kube.patch(VOLUMES, "v", {"status": {"phase": "Bound"}}, subresource="status")
    client, informers = await broken("c")
    binder = Binder(client, informers, events, clock=manual_clock, grace=3.0, quiet=0.0)
    await synced(informers)
    queue = binder._controller.queue
    failures = 0
    while (key := queue.get()) is not None:
        try:
            await binder.reconcile(key)
        except ApiUnreadableError:
            failures += 1
        queue.done(key)
    assert failures == 1
    assert (await kube.get(VOLUMES, "v")).status.phase == "Bound"


async def test_a_namespace_is_emptied_of_what_cannot_be_read(
    kube: Client, broken: Any, manual_clock: ManualClock
) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": "ns"}})
    for name in ("a", "b"):
        spec = {"containers": [{"name": "c", "image": "i"}]}
        await kube.create(PODS, {"metadata": {"name": name}, "spec": spec}, "ns")
    client, informers = await broken("a")
    controller = NamespaceController(client, informers, clock=manual_clock, quiet=3.0)
    await kube.delete(NAMESPACES, "ns")
    await synced(informers)
    await controller.reconcile("ns")
    assert not (await kube.list(PODS, "ns")).items


async def test_an_unreadable_node_keeps_its_volumes_and_does_not_hold_up_those_of_a_node_that_is_gone(
    kube: Client,
    broken: Any,
    make_class: Make,
    make_claim: Make,
    make_volume: Make,
    events: EventRecorder,
    manual_clock: ManualClock,
) -> None:
    await make_class("hour", parameters={names.ON_NODE_GONE: "release-after:1h"})
    await kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    for node in ("stays", "odd"):
        await kube.create(NODES, {"metadata": {"name": node}})
    for node in ("odd", "lost"):
        claim = await make_claim(f"of-{node}", storageClassName="hour", volumeName=f"of-{node}")
        place = {"key": names.TOPOLOGY_NODE, "operator": "In", "values": [node]}
        await make_volume(
            f"of-{node}",
            labels={names.NODE_LABEL: node},
            storageClassName="hour",
            claimRef={
                "kind": "PersistentVolumeClaim", "namespace": "default", "name": f"of-{node}", "uid": claim.metadata.uid
            },
            nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [place]}]}},
            persistentVolumeReclaimPolicy="Delete",
        )  # fmt: skip
        await kube.patch(VOLUMES, f"of-{node}", {"status": {"phase": "Bound"}}, subresource="status")
        labels = {
            names.CAPACITY_DRIVER: names.DRIVER, names.CAPACITY_MANAGED_BY: "tonnage-node", names.NODE_LABEL: node
        }  # fmt: skip
        capacity = {"metadata": {"name": f"of-{node}", "labels": labels}, "storageClassName": "hour", "capacity": "1Gi"}
        await kube.create(CAPACITIES, capacity, names.SYSTEM_NAMESPACE)
    client, informers = await broken("odd")
    volumes = GoneNodes(context(client, informers, events, clock=manual_clock))
    capacities = GoneCapacity(context(client, informers))
    await synced(informers)
    for node in ("odd", "lost"):
        await volumes.reconcile(f"of-{node}")
        live = await kube.get(VOLUMES, f"of-{node}")
        assert names.NODE_GONE_SINCE in live.metadata.annotations
        informers.of(VOLUMES).cache.put(live)
    manual_clock.now += 3600
    for node in ("odd", "lost"):
        await volumes.reconcile(f"of-{node}")
        await capacities.reconcile(f"{names.SYSTEM_NAMESPACE}/of-{node}")
    assert [c.metadata.name for c in (await kube.list(CLAIMS)).items if not c.metadata.deleting] == ["of-odd"]
    assert [c.metadata.name for c in (await kube.list(CAPACITIES)).items] == ["of-odd"]
