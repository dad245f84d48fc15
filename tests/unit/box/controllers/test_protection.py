"""When claims and volumes may go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.fixture_types import Running

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import ATTRIBUTES_CLASSES, CLAIMS, PODS, VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.claims.bind import bind
from tonnage_box.controllers.protection import AttributesClassProtection, ClaimProtection, VolumeProtection
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Settle = Callable[[], Awaitable[None]]


@pytest.fixture
async def claims(kube: Client, informers: Informers) -> ClaimProtection:
    return ClaimProtection(kube, informers)


@pytest.fixture
async def volumes(kube: Client, informers: Informers) -> VolumeProtection:
    return VolumeProtection(kube, informers)


async def gone(kube: Client, kind: Any, name: str, namespace: str = "") -> bool:
    try:
        await kube.get(kind, name, namespace)
    except ApiNotFoundError:
        return True
    return False


def owner(pod: Any) -> dict[str, Any]:
    meta = pod.metadata
    return {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid, "controller": True}


@pytest.mark.parametrize(
    ("pod", "phase", "held"),
    [
        pytest.param({"claims": ["c"], "nodeName": "n1"}, "Running", True, id="used by name"),
        pytest.param({"claims": ["c"], "nodeName": "n1"}, "Succeeded", True, id="used by name, ended"),
        pytest.param({"claims": ["c"]}, "Pending", False, id="used by name, no node yet"),
        pytest.param({"claims": ["other"], "nodeName": "n1"}, "Running", False, id="another claim"),
        pytest.param({"nodeName": "n1"}, "Running", False, id="no claim"),
    ],
)
async def test_plain_claim(
    kube: Client,
    claims: ClaimProtection,
    make_claim: Make,
    make_pod: Make,
    settle: Settle,
    pod: dict[str, Any],
    phase: str,
    held: bool,
) -> None:
    await make_claim("c")
    await make_pod("p", **pod)
    await kube.patch(PODS, "p", {"status": {"phase": phase}}, "default", subresource="status")
    await settle()
    await claims.reconcile("default/c")
    assert (await kube.get(CLAIMS, "c", "default")).metadata.finalizers == [names.PVC_PROTECTION]  # nobody deletes it
    await kube.delete(CLAIMS, "c", "default")
    await settle()
    await claims.reconcile("default/c")
    assert await gone(kube, CLAIMS, "c", "default") is not held


@pytest.mark.parametrize("cached", [True, False])
async def test_ephemeral_claim_goes_when_its_pod_has_been_shut_down(
    kube: Client,
    claims: ClaimProtection,
    make_claim: Make,
    make_pod: Make,
    settle: Settle,
    monkeypatch: pytest.MonkeyPatch,
    cached: bool,
) -> None:
    pod = await make_pod("p", ephemeral={"v": {}}, nodeName="n1")
    await make_claim("p-v", owners=[owner(pod)])
    await kube.delete(CLAIMS, "p-v", "default")
    await settle()
    if not cached:  # only the live look finds the pod
        monkeypatch.setattr(claims._pods, "by", lambda index, value: [])
    await claims.reconcile("default/p-v")
    assert not await gone(kube, CLAIMS, "p-v", "default")
    await kube.patch(PODS, "p", {"metadata": {"finalizers": ["example.com/hold"]}}, "default")
    await kube.delete(PODS, "p", "default", grace_seconds=0)
    await settle()
    await claims.reconcile("default/p-v")
    assert await gone(kube, CLAIMS, "p-v", "default")  # although the pod is still there


async def test_pod_of_the_same_name_that_is_not_the_owner_does_not_count(
    kube: Client, claims: ClaimProtection, make_claim: Make, make_pod: Make, settle: Settle
) -> None:
    pod = await make_pod("p", ephemeral={"v": {}}, nodeName="n1")
    stranger = {**owner(pod), "uid": "another"}
    await make_claim("p-v", owners=[stranger])
    await kube.delete(CLAIMS, "p-v", "default")
    await settle()
    await claims.reconcile("default/p-v")
    assert await gone(kube, CLAIMS, "p-v", "default")


async def test_pod_that_only_the_server_knows_holds_a_plain_claim(
    kube: Client,
    claims: ClaimProtection,
    make_claim: Make,
    make_pod: Make,
    settle: Settle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await make_claim("c")
    await make_pod("p", claims=["c"], nodeName="n1")
    await kube.delete(CLAIMS, "c", "default")
    await settle()
    monkeypatch.setattr(claims._pods, "by", lambda index, value: [])
    await claims.reconcile("default/c")
    assert not await gone(kube, CLAIMS, "c", "default")


async def test_many_claims_share_few_lists(
    kube: Client, claims: ClaimProtection, make_claim: Make, settle: Settle, monkeypatch: Any
) -> None:
    for number in range(20):
        await make_claim(f"c{number}")
        await kube.delete(CLAIMS, f"c{number}", "default")
    await settle()
    lists = 0
    real = kube.list

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal lists
        lists += 1
        return await real(*args, **kwargs)

    monkeypatch.setattr(kube, "list", counted)
    await asyncio.gather(*(claims.reconcile(f"default/c{n}") for n in range(20)))
    assert lists <= 2
    monkeypatch.undo()
    assert (await kube.list(CLAIMS)).items == []


async def test_watches_let_a_claim_go_after_its_pod(
    kube: Client, claims: ClaimProtection, make_claim: Make, make_pod: Make, running: Running, eventually: Eventually
) -> None:
    async def claim_gone() -> bool:
        return await gone(kube, CLAIMS, "c", "default")

    async with running(claims):
        await make_claim("c")
        await make_pod("p", claims=["c"], nodeName="n1")
        await kube.delete(CLAIMS, "c", "default")
        await kube.delete(PODS, "p", "default", grace_seconds=0)
        assert await eventually(claim_gone)


async def test_bound_volume_stays_until_it_is_not(
    kube: Client, volumes: VolumeProtection, make_claim: Make, make_volume: Make, settle: Settle
) -> None:
    await bind(kube, await make_claim("c", storageClassName=""), await make_volume("v"))
    await kube.delete(VOLUMES, "v")
    await settle()
    await volumes.reconcile("v")
    assert not await gone(kube, VOLUMES, "v")
    await kube.patch(VOLUMES, "v", {"status": {"phase": "Released"}}, subresource="status")
    await settle()
    await volumes.reconcile("v")
    assert await gone(kube, VOLUMES, "v")


async def test_volume_waits_for_the_provisioners_finalizer(
    kube: Client, volumes: VolumeProtection, make_volume: Make, running: Running, eventually: Eventually
) -> None:
    async def volume_gone() -> bool:
        return await gone(kube, VOLUMES, "v")

    async with running(volumes):
        await make_volume("v")
        held = [names.PV_PROTECTION, names.PROVISIONER_FINALIZER]
        await kube.patch(VOLUMES, "v", {"metadata": {"finalizers": held}})
        await kube.delete(VOLUMES, "v")
        await asyncio.sleep(0.02)
        assert (await kube.get(VOLUMES, "v")).metadata.finalizers == held
        await kube.patch(VOLUMES, "v", {"metadata": {"finalizers": [names.PV_PROTECTION]}})
        assert await eventually(volume_gone)


async def test_volume_that_nobody_deletes_is_left_alone(
    kube: Client, volumes: VolumeProtection, make_volume: Make, settle: Settle
) -> None:
    await make_volume("v")
    await settle()
    await volumes.reconcile("v")
    assert (await kube.get(VOLUMES, "v")).metadata.finalizers == [names.PV_PROTECTION]


async def test_protection_that_was_taken_away_comes_back(
    kube: Client, claims: ClaimProtection, volumes: VolumeProtection, make_claim: Make, settle: Settle
) -> None:
    await make_claim("c")
    capacity = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}
    await kube.create(VOLUMES, {"metadata": {"name": "v"}, "spec": capacity})
    bare = {"metadata": {"finalizers": None}}
    assert (await kube.patch(CLAIMS, "c", bare, "default")).metadata.finalizers == []
    assert (await kube.patch(VOLUMES, "v", bare)).metadata.finalizers == []
    await settle()
    await claims.reconcile("default/c")
    await volumes.reconcile("v")
    assert (await kube.get(CLAIMS, "c", "default")).metadata.finalizers == [names.PVC_PROTECTION]
    assert (await kube.get(VOLUMES, "v")).metadata.finalizers == [names.PV_PROTECTION]


@pytest.mark.parametrize("user", ["spec", "current", "target", "volume"])
async def test_an_attributes_class_stays_while_something_names_it(
    kube: Client, informers: Informers, make_claim: Make, make_volume: Make, settle: Settle, user: str
) -> None:
    controller = AttributesClassProtection(kube, informers)
    body = {"metadata": {"name": "gold"}, "driverName": names.DRIVER, "parameters": {"erase": "zero"}}
    made = await kube.create(ATTRIBUTES_CLASSES, body)
    assert made.metadata.finalizers == [names.VAC_PROTECTION]
    if user == "volume":
        await make_volume("v", volumeAttributesClassName="gold")
    else:
        await make_claim("c", **({"volumeAttributesClassName": "gold"} if user == "spec" else {}))
    change = {"targetVolumeAttributesClassName": "gold", "status": "Pending"}
    status = {"current": {"currentVolumeAttributesClassName": "gold"}, "target": {"modifyVolumeStatus": change}}
    if user in status:
        await kube.patch(CLAIMS, "c", {"status": status[user]}, "default", subresource="status")
    await settle()
    await kube.delete(ATTRIBUTES_CLASSES, "gold")
    await settle()
    await controller.reconcile("gold")
    assert not await gone(kube, ATTRIBUTES_CLASSES, "gold")
    kind: Any
    kind, name, namespace = (VOLUMES, "v", "") if user == "volume" else (CLAIMS, "c", "default")
    await kube.patch(kind, name, {"metadata": {"finalizers": None}}, namespace)
    async with _running(controller):
        await kube.delete(kind, name, namespace)
        await settle()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if await gone(kube, ATTRIBUTES_CLASSES, "gold"):
                return
    raise AssertionError("the end of the last user did not wake the controller")


async def test_an_attributes_class_that_is_used_by_what_the_cache_lacks_stays(
    kube: Client, informers: Informers, make_claim: Make, settle: Settle
) -> None:
    controller = AttributesClassProtection(kube, informers)
    body = {"metadata": {"name": "gold"}, "driverName": names.DRIVER, "parameters": {"erase": "zero"}}
    await kube.create(ATTRIBUTES_CLASSES, body)
    await kube.delete(ATTRIBUTES_CLASSES, "gold")
    await settle()
    await make_claim("c", volumeAttributesClassName="gold")
    await controller.reconcile("gold")
    assert not await gone(kube, ATTRIBUTES_CLASSES, "gold")


@asynccontextmanager
async def _running(controller: AttributesClassProtection) -> AsyncIterator[None]:
    task = asyncio.ensure_future(controller.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
