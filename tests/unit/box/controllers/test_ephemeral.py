"""Claims of ephemeral volumes: what is made, when, and what is rejected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.fixture_types import Running, Told

from tonnage.base.errors import ApiNotFoundError, PreconditionError
from tonnage.base.observe.metrics import EPHEMERAL_CREATED, EPHEMERAL_FAILED
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, RESOURCE_QUOTAS
from tonnage.kubernetes.api.meta import to_builtins
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.ephemeral import EphemeralController
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Settle = Callable[[], Awaitable[None]]


@pytest.fixture
async def controller(kube: Client, informers: Informers, events: EventRecorder) -> EphemeralController:
    return EphemeralController(kube, informers, events)


def _count(counter: Any) -> float:
    return float(counter._value.get())


async def test_claim_is_the_template_owned_by_the_pod(
    kube: Client, controller: EphemeralController, make_pod: Make, settle: Settle
) -> None:
    pod = await make_pod("p", ephemeral={"data": {"storageClassName": "slow", "volumeMode": "Block"}, "more": {}})
    await settle()
    before = _count(EPHEMERAL_CREATED)
    await controller.reconcile(pod.key)
    claim = await kube.get(CLAIMS, "p-data", "default")
    owner = to_builtins(claim.metadata.owner_references[0])
    assert owner == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "p",
        "uid": pod.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert (claim.spec.storage_class_name, claim.spec.volume_mode) == ("slow", "Block")
    assert claim.spec.resources.requests == {"storage": "1Gi"}
    assert claim.metadata.finalizers == [names.PVC_PROTECTION]
    assert (await kube.get(CLAIMS, "p-more", "default")).spec.storage_class_name is None
    assert _count(EPHEMERAL_CREATED) == before + 2


async def test_template_labels_and_annotations_are_copied(
    kube: Client, controller: EphemeralController, settle: Settle
) -> None:
    template = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volume = {"name": "v", "ephemeral": {"volumeClaimTemplate": template}}
    spec = {"containers": [{"name": "c", "image": "none"}], "volumes": [volume]}
    await kube.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, "default")
    await settle()
    await controller.reconcile("default/p")
    claim = await kube.get(CLAIMS, "p-v", "default")
    assert claim.metadata.labels == {"a": "b"}
    assert claim.metadata.annotations == {"c": "d"}


async def test_repeating_it_changes_nothing_even_with_a_stale_cache(
    kube: Client, controller: EphemeralController, make_pod: Make, settle: Settle
) -> None:
    await make_pod("p", ephemeral={"v": {}})
    await settle()
    await controller.reconcile("default/p")
    first = await kube.get(CLAIMS, "p-v", "default")
    await controller.reconcile("default/p")  # no await in between that let the watch tell
    await settle()
    await controller.reconcile("default/p")
    assert await kube.get(CLAIMS, "p-v", "default") == first


async def test_foreign_claim_is_an_event_and_an_error(
    kube: Client, controller: EphemeralController, make_pod: Make, make_claim: Make, settle: Settle, told: Told
) -> None:
    await make_claim("p-v")
    await make_pod("p", ephemeral={"v": {}})
    await settle()
    text = "PVC default/p-v was not created for pod default/p (pod is not owner)"
    with pytest.raises(PreconditionError) as failure:
        await controller.reconcile("default/p")
    assert str(failure.value) == f"pod default/p, ephemeral volume v: {text}"
    assert await told() == [("p", "Warning", "FailedBinding", f"ephemeral volume v: {text}")]


async def test_first_failing_volume_stops_and_is_counted(
    kube: Client, controller: EphemeralController, make_pod: Make, settle: Settle, told: Told
) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"persistentvolumeclaims": "0"}}}
    await kube.create(RESOURCE_QUOTAS, quota, "default")
    await make_pod("p", ephemeral={"v": {}, "w": {}})
    await settle()
    failures = _count(EPHEMERAL_FAILED)
    with pytest.raises(PreconditionError, match="ephemeral volume v: create PVC p-v: "):
        await controller.reconcile("default/p")
    assert _count(EPHEMERAL_FAILED) == failures + 1
    assert [(reason, message[:38]) for _, _, reason, message in await told()] == [
        ("FailedBinding", "ephemeral volume v: create PVC p-v: pe")
    ]


async def test_pod_that_goes_gets_no_claim(
    kube: Client, controller: EphemeralController, make_pod: Make, settle: Settle
) -> None:
    await make_pod("p", ephemeral={"v": {}}, nodeName="n1")
    await kube.delete(PODS, "p", "default")
    await settle()
    await controller.reconcile("default/p")
    await controller.reconcile("default/absent")
    assert (await kube.list(CLAIMS)).items == []


async def test_watches_make_claims_again_when_they_vanish(
    kube: Client, controller: EphemeralController, make_pod: Make, running: Running, eventually: Eventually
) -> None:
    async def claim() -> Any:
        try:
            return await kube.get(CLAIMS, "p-v", "default")
        except ApiNotFoundError:
            return None

    async with running(controller):
        await make_pod("p", ephemeral={"v": {}})
        first = await eventually(claim)
        await kube.patch(CLAIMS, "p-v", {"metadata": {"finalizers": None}}, "default")
        await kube.delete(CLAIMS, "p-v", "default")

        async def again() -> bool:
            now = await claim()
            return now is not None and now.metadata.uid != first.metadata.uid

        assert await eventually(again)
