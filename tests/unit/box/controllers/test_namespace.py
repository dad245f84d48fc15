"""Namespaces are emptied, pods first, and go; what holds one up is said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.unit.fixture_types import Running

from tonnage.base.errors import ApiError, ApiNotFoundError
from tonnage.kubernetes.api.kinds import CLAIMS, CONFIG_MAPS, NAMESPACES, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.namespace import NamespaceController
from tonnage_box.testing.clock import ManualClock
from tonnage_box.testing.wait import Eventually

Settle = Callable[[], Awaitable[None]]


@pytest.fixture
async def controller(kube: Client, informers: Informers, manual_clock: ManualClock) -> NamespaceController:
    return NamespaceController(kube, informers, clock=manual_clock, quiet=3.0)


async def make_namespace(kube: Client) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": "ns"}})
    await kube.create(CONFIG_MAPS, {"metadata": {"name": "m"}}, "ns")
    await kube.create(CONFIG_MAPS, {"metadata": {"name": "kept"}}, "default")


async def there(kube: Client) -> bool:
    try:
        await kube.get(NAMESPACES, "ns")
    except ApiNotFoundError:
        return False
    return True


async def test_namespace_goes_with_all_its_content_and_nothing_else(
    kube: Client, controller: NamespaceController, settle: Settle
) -> None:
    await make_namespace(kube)
    await settle()
    assert await controller.reconcile("ns") is None
    assert await there(kube)  # nobody asked
    await kube.delete(NAMESPACES, "ns")
    await settle()
    await controller.reconcile("ns")
    assert not await there(kube)
    assert [m.key for m in (await kube.list(CONFIG_MAPS)).items] == ["default/kept"]
    await controller.reconcile("ns")


async def test_pods_go_before_the_rest(kube: Client, controller: NamespaceController, settle: Settle) -> None:
    await make_namespace(kube)
    spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "none"}]}
    await kube.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, "ns")
    await kube.delete(NAMESPACES, "ns")
    await settle()
    assert await controller.reconcile("ns") is not None
    assert (await kube.get(PODS, "p", "ns")).metadata.deleting
    assert (await kube.list(CONFIG_MAPS, "ns")).items != []
    await kube.delete(PODS, "p", "ns", grace_seconds=0)
    await controller.reconcile("ns")
    assert not await there(kube)


async def test_what_holds_it_up_is_said(
    kube: Client, controller: NamespaceController, settle: Settle, manual_clock: ManualClock
) -> None:
    await make_namespace(kube)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await kube.create(CLAIMS, {"metadata": {"name": "c"}, "spec": claim}, "ns")
    await kube.delete(NAMESPACES, "ns")
    await settle()
    assert await controller.reconcile("ns") == pytest.approx(3.0)
    manual_clock.now += 4
    await controller.reconcile("ns")
    raw = (await kube.read("/api/v1/namespaces/ns")).decode()
    assert "Some resources are remaining: persistentvolumeclaims. has 1 resource instances" in raw
    assert "finalizers remaining: kubernetes.io/pvc-protection in 1 resource instances" in raw
    before = await kube.get(NAMESPACES, "ns")
    await controller.reconcile("ns")
    assert await kube.get(NAMESPACES, "ns") == before  # said once


async def test_watches_bring_it_to_an_end(
    kube: Client, controller: NamespaceController, running: Running, eventually: Eventually
) -> None:
    await make_namespace(kube)
    await kube.patch(CONFIG_MAPS, "m", {"metadata": {"finalizers": ["example.com/hold"]}}, "ns")

    async def deleting() -> bool:
        return (await kube.get(CONFIG_MAPS, "m", "ns")).metadata.deleting

    async def gone() -> bool:
        return not await there(kube)

    async with running(controller):
        await kube.delete(NAMESPACES, "ns")
        await eventually(deleting)
        await kube.patch(CONFIG_MAPS, "m", {"metadata": {"finalizers": None}}, "ns")
        assert await eventually(gone)


async def test_nothing_new_comes_into_one_that_goes(
    kube: Client, controller: NamespaceController, settle: Settle
) -> None:
    await make_namespace(kube)
    await kube.patch(CONFIG_MAPS, "m", {"metadata": {"finalizers": ["example.com/hold"]}}, "ns")
    await kube.delete(NAMESPACES, "ns")
    await settle()
    await controller.reconcile("ns")
    with pytest.raises(ApiError):
        await kube.create(CONFIG_MAPS, {"metadata": {"name": "late"}}, "ns")
