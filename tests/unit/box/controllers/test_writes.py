"""What the cluster-wide controllers write, together, in the life of pods with one ephemeral volume each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Running, Settle, Told

from tonnage.controller.immediate import ImmediateController
from tonnage.controller.preassigned import PreassignedPods
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS, CSI_DRIVERS, NODES, PODS, VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Response
from tonnage.provisioning.claims.bind import bind, is_complete
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.controllers.ephemeral import EphemeralController
from tonnage_box.controllers.garbage_collector import GarbageCollector
from tonnage_box.controllers.protection import ClaimProtection, VolumeProtection
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
PODS_MADE = 20


class Counting(Client):
    """A client that counts its requests (not its lists and watches) by method and kind."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server.transport("system:admin"))
        self.asked: Counter[str] = Counter()

    async def _send(self, method: str, path: str, *args: Any, **kwargs: Any) -> Response:
        plural = next(k.plural for k in (CLAIMS, VOLUMES, PODS) if f"/{k.plural}" in path)
        status = "/status" if path.endswith("/status") else ""
        self.asked[f"{method} {plural}{status}"] += 1
        return await super()._send(method, path, *args, **kwargs)


async def made(agent: Client, claim: Any) -> Any:
    """What scheduler and agent do: send the claim, make the volume."""
    meta = claim.metadata
    marks = {names.STORAGE_PROVISIONER: names.DRIVER, names.BETA_STORAGE_PROVISIONER: names.DRIVER}
    sent = {"annotations": {names.SELECTED_NODE: "n1", **marks}, "labels": {names.NODE_LABEL: "n1"}}
    await agent.patch(CLAIMS, meta.name, {"metadata": sent}, meta.namespace)
    ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {**ref, "uid": meta.uid},
        "csi": {"driver": names.DRIVER, "volumeHandle": f"pvc-{meta.uid}"},
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "late",
    }
    labels, notes = {names.NODE_LABEL: "n1"}, {names.PROVISIONED_BY: names.DRIVER}
    head = {"name": f"pvc-{meta.uid}", "labels": labels, "annotations": notes}
    return await agent.create(VOLUMES, {"metadata": head, "spec": spec})


@pytest.fixture
def counting(api_server: ApiServer) -> Callable[[], Counting]:
    return lambda: Counting(api_server)


async def test_life_of_ephemeral_volumes(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    counting: Callable[[], Counting],
    make_class: Make,
    make_pod: Make,
    running: Running,
    eventually: Eventually,
    settle: Settle,
    told: Told,
) -> None:
    clients = {name: counting() for name in ("ephemeral", "binder", "claims", "volumes", "garbage", "hand", "now")}
    await make_class("late")
    controllers = [
        EphemeralController(clients["ephemeral"], informers, events),
        Binder(clients["binder"], informers, events),
        ClaimProtection(clients["claims"], informers),
        VolumeProtection(clients["volumes"], informers),
        GarbageCollector(clients["garbage"], informers, events),
        PreassignedPods(context(clients["hand"], informers, events)),
        ImmediateController(context(clients["now"], informers, events)),
    ]

    async def claims() -> list[Any]:
        return (await kube.list(CLAIMS)).items

    async def volumes() -> list[Any]:
        return (await kube.list(VOLUMES)).items

    async def all_made() -> bool:
        return len(await claims()) == PODS_MADE

    async def all_released() -> bool:
        return all(v.status.phase == "Released" for v in await volumes())

    async def all_gone() -> bool:
        return not await claims() and not await volumes()

    async with running(*controllers):
        for number in range(PODS_MADE):
            await make_pod(f"p{number}", ephemeral={"v": {"storageClassName": "late"}})
        await eventually(all_made)
        pairs = [(claim, await made(kube, claim)) for claim in await claims()]
        await settle()
        bound = await asyncio.gather(*(bind(kube, claim, volume) for claim, volume in pairs))
        assert all(is_complete(claim, volume) for claim, volume in bound)
        await settle()
        asked = {name: dict(client.asked) for name, client in clients.items() if client.asked}
        assert asked == {"ephemeral": {"POST persistentvolumeclaims": PODS_MADE}}
        assert await told() == []  # served at once: nothing to say

        for number in range(PODS_MADE):
            await kube.delete(PODS, f"p{number}", "default", grace_seconds=0)
        await eventually(all_released)
        for volume in await volumes():
            await kube.delete(VOLUMES, volume.key)
        await eventually(all_gone)
    del clients["ephemeral"]
    assert {name: dict(client.asked) for name, client in clients.items() if client.asked} == {
        "binder": {"PATCH persistentvolumes/status": PODS_MADE},
        "claims": {"PATCH persistentvolumeclaims": PODS_MADE},
        "volumes": {"PATCH persistentvolumes": PODS_MADE},
        "garbage": {"DELETE persistentvolumeclaims": PODS_MADE},
    }


async def test_immediate_claim_is_sent_in_one_write_and_the_binder_keeps_still(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    counting: Callable[[], Counting],
    make_class: Make,
    make_claim: Make,
    running: Running,
    eventually: Eventually,
    settle: Settle,
) -> None:
    binder, sender = counting(), counting()
    await make_class("now", mode=names.IMMEDIATE)
    await kube.create(CSI_DRIVERS, {"metadata": {"name": names.DRIVER}, "spec": {"storageCapacity": True}})
    await kube.create(NODES, {"metadata": {"name": "n1", "labels": {names.TOPOLOGY_NODE: "n1"}}})
    topology = {"matchLabels": {names.TOPOLOGY_NODE: "n1"}}
    body = {"metadata": {"name": "c"}, "storageClassName": "now", "capacity": "9Gi", "nodeTopology": topology}
    await kube.create(CAPACITIES, body, "default")

    async def sent() -> bool:
        claim = await kube.get(CLAIMS, "c", "default")
        return names.SELECTED_NODE in claim.metadata.annotations

    async with running(Binder(binder, informers, events), ImmediateController(context(sender, informers, events))):
        await settle()
        await make_claim("c", storageClassName="now")
        await eventually(sent)
        await settle()
    assert (dict(binder.asked), dict(sender.asked)) == ({}, {"PATCH persistentvolumeclaims": 1})
