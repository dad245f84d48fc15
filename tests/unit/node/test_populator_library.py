"""Claims that a populator built on lib-volume-populator fills: its steps, over our agents and the box's PV binder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import ApiNotFoundError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeUse
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.kinds import CLAIMS, EVENTS, PODS, VOLUMES
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.claims.bind import find
from tonnage_box.controllers.protection import ClaimProtection, VolumeProtection
from tonnage_box.controllers.pv_binder.controller import Binder
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
SPACE = "populators"
SOURCE = {"dataSourceRef": {"apiGroup": "hello.example.com", "kind": "Hello", "name": "h"}}
GUARD = "hello.example.com/populate-target-protection"


class Populator:
    """Does what the library does, in its order, one step for each call."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(self) -> None:
        while True:
            await asyncio.sleep(1)
            for claim in (await self._client.list(CLAIMS)).items:
                if claim.spec.data_source_ref is not None and claim.metadata.namespace != SPACE:
                    await self._sync(claim)

    async def _sync(self, target: Any) -> None:
        uid, node = target.metadata.uid, target.metadata.annotations.get(names.SELECTED_NODE)
        prime = await find(self._client, CLAIMS, f"prime-{uid}", SPACE)
        pod = await find(self._client, PODS, f"populate-{uid}", SPACE)
        if target.spec.volume_name:
            if prime is not None and prime.status.phase == "Lost":
                await self._finish(target, prime, pod)
            return
        if not node:
            return
        if prime is None:
            await self._make_prime(target, node)
        elif GUARD not in target.metadata.finalizers:
            body: dict[str, Any] = {"metadata": {"finalizers": [*target.metadata.finalizers, GUARD]}}
            await self._client.patch(CLAIMS, target.metadata.name, body, "default")
        elif pod is None:
            await self._make_pod(uid, node)
        elif pod.status.phase == "Succeeded" and prime.spec.volume_name:
            ref = {"namespace": "default", "name": target.metadata.name, "uid": uid}
            ref["resourceVersion"] = target.metadata.resource_version
            notes = {"hello.example.com/populated-from": "default/h"}
            body = {"metadata": {"annotations": notes}, "spec": {"claimRef": ref}}
            await self._client.patch(VOLUMES, prime.spec.volume_name, body)

    async def _make_prime(self, target: Any, node: str) -> None:
        raw = target.spec
        notes = {names.SELECTED_NODE: node, names.STORAGE_PROVISIONER: names.DRIVER}
        # The scope policy labels what is born with a node.
        meta = {"name": f"prime-{target.metadata.uid}", "annotations": notes, "labels": {names.NODE_LABEL: node}}
        spec = {
            "accessModes": raw.access_modes,
            "resources": {"requests": raw.resources.requests},
            "storageClassName": raw.storage_class_name,
            "volumeMode": raw.volume_mode,
        }
        await self._client.create(CLAIMS, {"metadata": meta, "spec": spec}, SPACE)

    async def _make_pod(self, uid: str, node: str) -> None:
        volume = {"name": "target", "persistentVolumeClaim": {"claimName": f"prime-{uid}"}}
        containers = [{"name": "populate", "image": "hello"}]
        spec = {"nodeName": node, "restartPolicy": "Never", "containers": containers, "volumes": [volume]}
        await self._client.create(PODS, {"metadata": {"name": f"populate-{uid}"}, "spec": spec}, SPACE)

    async def _finish(self, target: Any, prime: Any, pod: Any) -> None:
        if pod is not None:
            await self._client.delete(PODS, pod.metadata.name, SPACE, grace_seconds=0)
        await self._client.delete(CLAIMS, prime.metadata.name, SPACE)
        rest = [f for f in target.metadata.finalizers if f != GUARD]
        await self._client.patch(CLAIMS, target.metadata.name, {"metadata": {"finalizers": rest}}, "default")


@pytest.fixture
async def populator(kube: Client, informers: Informers) -> AsyncIterator[Populator]:
    """It runs, and with it what a cluster has: the PV binder and the protection of claims and volumes."""
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": SPACE}})
    clock = LoopClock()
    events = EventRecorder(kube, "persistentvolume-controller", clock=clock)
    made = Populator(kube)
    parts = (made, events, Binder(kube, informers, events, clock=clock), ClaimProtection(kube, informers))
    tasks = [asyncio.ensure_future(part.run()) for part in (*parts, VolumeProtection(kube, informers))]
    yield made
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [e for e in found if not isinstance(e, asyncio.CancelledError)] == []


async def _run_pod(node: FakeNode, uid: str) -> None:
    """The kubelet's part: the populator's pod ends once its claim is bound."""
    await node.client.patch(PODS, f"populate-{uid}", {"status": {"phase": "Succeeded"}}, SPACE, subresource="status")


async def test_a_populated_claim_gets_the_populators_volume(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, populator: Populator, kube: Client
) -> None:
    node = await make_node("10Gi")
    target = await make_claim("data", "4Gi", storageClassName="late", **SOURCE)
    uid = target.metadata.uid
    await node.select("data")

    async def is_primed() -> bool:
        prime, pod = await find(kube, CLAIMS, f"prime-{uid}", SPACE), await find(kube, PODS, f"populate-{uid}", SPACE)
        return prime is not None and prime.status.phase == "Bound" and pod is not None

    await eventually(is_primed)
    (name,) = await node.volumes()
    await asyncio.sleep(600)  # population takes long, and nothing is given back meanwhile
    assert (await node.claim("data")).metadata.annotations[names.SELECTED_NODE] == "node-1"
    await _run_pod(node, uid)
    await eventually(lambda: node.is_bound("data"))
    await asyncio.sleep(60)
    claim, volume = await node.claim("data"), await kube.get(VOLUMES, name)
    assert (claim.spec.volume_name, volume.status.phase) == (name, "Bound")
    assert names.BIND_COMPLETED in claim.metadata.annotations
    assert GUARD not in claim.metadata.finalizers
    assert await node.is_gone(CLAIMS, f"prime-{uid}", SPACE)
    assert await node.volumes() == [name], "the end of the populator's claim does not take the volume along"
    told = {(e.involved_object.name, e.reason) for e in (await kube.list(EVENTS)).items}
    assert (f"prime-{uid}", "ClaimMisbound") in told
    await node.kill_agent()
    await node.start_agent()
    await kube.delete(CLAIMS, "data", "default")

    async def is_empty() -> bool:
        return await node.volumes() == [] and await node.is_gone(VOLUMES, name)

    await eventually(is_empty)


async def test_a_populated_claim_grows_by_itself(
    make_class: MakeClass, make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, populator: Populator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its volume has the name that was made for the populator's claim."""
    rule = {names.AUTOGROW_AT: "10%", names.AUTOGROW_BY: "50%", names.AUTOGROW_MAX: "10Gi"}
    await make_class("grows", allowVolumeExpansion=True, parameters=rule)
    node = await make_node("20Gi")
    target = await make_claim("data", "4Gi", storageClassName="grows", **SOURCE)
    await node.select("data")

    async def is_primed() -> bool:
        return await find(node.client, PODS, f"populate-{target.metadata.uid}", SPACE) is not None

    async def use(self: CsiClient, volume_id: str, path: Path | str) -> VolumeUse:
        (made,) = await node.pool.list()
        used = to_bytes("4Gi")
        return VolumeUse(made.size, used, made.size - used)

    async def has_grown() -> bool:
        claim = await node.claim("data")
        return (claim.status.capacity["storage"], claim.spec.volume_name) == ("6Gi", name)

    await eventually(is_primed)
    (name,) = await node.volumes()
    await _run_pod(node, target.metadata.uid)
    await eventually(lambda: node.is_bound("data"))
    monkeypatch.setattr(CsiClient, "volume_use", use)
    await asyncio.sleep(120)
    await eventually(has_grown)


async def test_where_the_populators_claim_does_not_fit_the_first_claim_leaves_too(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, populator: Populator, kube: Client,
    all_events: AllEvents,
) -> None:  # fmt: skip
    small, large = await make_node("2Gi"), await make_node("10Gi", name="node-2")
    target = await make_claim("data", "4Gi", storageClassName="late", **SOURCE)
    uid = target.metadata.uid
    await small.select("data")

    async def has_left() -> bool:
        return names.SELECTED_NODE not in (await small.claim("data")).metadata.annotations

    await eventually(has_left)
    claim = await small.claim("data")
    assert names.NODE_LABEL not in claim.metadata.labels
    assert claim.metadata.annotations[names.RESCHEDULES] == "1"
    (text,) = [t for about, reason, t in await all_events() if (about, reason) == ("data", "PopulatorRescheduled")]
    assert f"node node-1 cannot have the populator's claim {SPACE}/prime-{uid} (insufficient storage on node" in text
    # What the scheduler does now, a person with the Event's command, and the controller: a pod on a node takes its claim.
    await large.select("data")
    assert text.endswith(f": kubectl -n {SPACE} delete pod populate-{uid}")
    await _delete(kube, PODS, f"populate-{uid}")
    sent = {"annotations": {names.SELECTED_NODE: "node-2"}, "labels": {names.NODE_LABEL: "node-2"}}
    await kube.patch(CLAIMS, f"prime-{uid}", {"metadata": sent}, SPACE)

    async def is_made() -> bool:
        return len(await large.volumes()) == 1 and await find(kube, PODS, f"populate-{uid}", SPACE) is not None

    await eventually(is_made)
    await _run_pod(large, uid)
    await eventually(lambda: large.is_bound("data"))
    assert await small.volumes() == []


async def _delete(kube: Client, kind: Any, name: str) -> None:
    try:
        await kube.delete(kind, name, SPACE, grace_seconds=0)
    except ApiNotFoundError:
        return


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "it waits here"),
        ({"resources": {"requests": {"storage": "5Gi"}}}, "another size: anybody can name a claim so"),
        ({"accessModes": ["ReadWriteOncePod"]}, "another access mode"),
    ],
)
async def test_only_the_populators_claim_moves_the_first(
    make_node: MakeNode, make_claim: MakeClaim, kube: Client, change: dict[str, Any], why: str
) -> None:
    node = await make_node("2Gi")
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": SPACE}})
    target = await make_claim("data", "4Gi", storageClassName="late", **SOURCE)
    await node.select("data")
    notes = {names.SELECTED_NODE: "node-1", names.STORAGE_PROVISIONER: names.DRIVER}
    meta = {"name": f"prime-{target.metadata.uid}", "annotations": notes, "labels": {names.NODE_LABEL: "node-1"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Gi"}}}
    await kube.create(CLAIMS, {"metadata": meta, "spec": {**spec, "storageClassName": "late", **change}}, SPACE)
    await asyncio.sleep(60)
    stays = names.SELECTED_NODE in (await node.claim("data")).metadata.annotations
    assert stays is bool(change), why
    prime = await kube.get(CLAIMS, f"prime-{target.metadata.uid}", SPACE)
    assert names.SELECTED_NODE not in prime.metadata.annotations


async def test_a_kill_between_the_two_claims_loses_neither(
    make_node: MakeNode, make_claim: MakeClaim, kube: Client, eventually: Eventually
) -> None:
    """The first claim goes first: whoever starts next finds the populator's, and goes on."""
    node = await make_node("2Gi", agent=False)
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": SPACE}})
    target = await make_claim("data", "4Gi", storageClassName="late", **SOURCE)
    await node.select("data")
    notes = {names.SELECTED_NODE: "node-1", names.STORAGE_PROVISIONER: names.DRIVER}
    name = f"prime-{target.metadata.uid}"
    meta = {"name": name, "annotations": notes, "labels": {names.NODE_LABEL: "node-1"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Gi"}}, "storageClassName": "late"}
    await kube.create(CLAIMS, {"metadata": meta, "spec": spec}, SPACE)
    patched: list[str] = []
    patch = kube.patch

    async def cut(kind: Any, which: str, *args: Any, **more: Any) -> Any:
        if kind is CLAIMS:
            patched.append(which)
            if len(patched) == 2:
                await asyncio.Event().wait()
        return await patch(kind, which, *args, **more)

    kube.patch = cut  # type: ignore[method-assign, assignment]
    await node.start_agent()
    await eventually(lambda: _is_second(patched))
    await node.kill_agent()
    kube.patch = patch  # type: ignore[method-assign]
    assert patched == ["data", name]
    await node.start_agent()

    async def both_left() -> bool:
        claims = [await kube.get(CLAIMS, "data", "default"), await kube.get(CLAIMS, name, SPACE)]
        return not any(names.SELECTED_NODE in claim.metadata.annotations for claim in claims)

    await eventually(both_left)


async def _is_second(patched: list[str]) -> bool:
    return len(patched) == 2
