"""Drivers that want no attachments cost no write. The rest is tested with the kubelet that waits for them."""

from __future__ import annotations

import pytest
from tests.unit.fixture_types import Settle

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import ATTACHMENTS, CSI_DRIVERS, NODES, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.attach_detach import AttachDetach
from tonnage_box.testing.clock import ManualClock
from tonnage_box.testing.objects import MakeClaim, MakePod, MakeVolume


async def test_a_driver_without_attachments_costs_no_write(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    settle: Settle,
    make_claim: MakeClaim,
    make_pod: MakePod,
    make_volume: MakeVolume,
) -> None:
    controller = AttachDetach(kube, informers, events)
    await kube.create(CSI_DRIVERS, {"metadata": {"name": names.DRIVER}, "spec": {"attachRequired": False}})
    await kube.create(NODES, {"metadata": {"name": "n"}})
    await make_claim("c", volumeName="v")
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c"}
    volume = await make_volume("v", claimRef=ref)
    await make_pod("p", nodeName="n", claims=["c"])
    await settle()
    assert volume.spec.csi is not None
    before = await kube.revision(NODES)
    await controller.reconcile(("volume", "v"))
    await controller.reconcile(("node", "n"))
    assert await kube.revision(NODES) == before
    assert (await kube.list(ATTACHMENTS)).items == []
    await kube.delete(CSI_DRIVERS, names.DRIVER)
    await settle()
    await controller.reconcile(("volume", "v"))
    assert len((await kube.list(ATTACHMENTS)).items) == 1, "a driver without a CSIDriver wants attachments"


def test_names_are_those_of_kubernetes() -> None:
    assert names.attached_volume("d", "h") == "kubernetes.io/csi/d^h"
    assert (
        names.attachment_name("h", "d", "n") == "csi-9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d"
    )


@pytest.fixture
async def attached(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    settle: Settle,
    make_claim: MakeClaim,
    make_pod: MakePod,
    make_volume: MakeVolume,
    manual_clock: ManualClock,
) -> AttachDetach:
    """The controller; a volume is attached and in use, and its pod is gone."""
    controller = AttachDetach(kube, informers, events, clock=manual_clock)
    await kube.create(NODES, {"metadata": {"name": "n"}})
    await make_claim("c", volumeName="v")
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c"}
    volume = await make_volume("v", claimRef=ref)
    await make_pod("p", nodeName="n", claims=["c"])
    await settle()
    await controller.reconcile(("volume", "v"))
    assert volume.spec.csi is not None
    unique = names.attached_volume(volume.spec.csi.driver, volume.spec.csi.volume_handle)
    await kube.patch(NODES, "n", {"status": {"volumesInUse": [unique]}}, subresource="status")
    await kube.delete(PODS, "p", "default", grace_seconds=0)
    await settle()
    return controller


async def _report(kube: Client, settle: Settle, *, ready: bool) -> None:
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    await kube.patch(NODES, "n", {"status": {"conditions": conditions}}, subresource="status")
    await settle()


async def _count(kube: Client) -> int:
    return len((await kube.list(ATTACHMENTS)).items)


async def test_a_ready_node_unmounts_however_long_it_takes(
    kube: Client, settle: Settle, attached: AttachDetach, manual_clock: ManualClock
) -> None:
    await _report(kube, settle, ready=True)
    assert await attached.reconcile(("volume", "v")) is None
    manual_clock.now += 3600
    assert await attached.reconcile(("volume", "v")) is None
    assert await _count(kube) == 1


async def test_a_node_that_is_not_ready_has_six_minutes(
    kube: Client, settle: Settle, attached: AttachDetach, manual_clock: ManualClock
) -> None:
    await _report(kube, settle, ready=False)
    assert await attached.reconcile(("volume", "v")) == 360
    manual_clock.now += 359
    assert await attached.reconcile(("volume", "v")) == 1
    assert await _count(kube) == 1
    manual_clock.now += 1
    assert await attached.reconcile(("volume", "v")) is None
    assert await _count(kube) == 0


async def test_a_node_that_is_out_of_service_has_no_time(kube: Client, settle: Settle, attached: AttachDetach) -> None:
    taint = {"key": names.OUT_OF_SERVICE_TAINT, "effect": "NoExecute"}
    await kube.patch(NODES, "n", {"spec": {"taints": [taint]}})
    await settle()
    await attached.reconcile(("volume", "v"))
    assert await _count(kube) == 0


async def test_a_pod_that_comes_back_ends_the_time(
    kube: Client, settle: Settle, attached: AttachDetach, manual_clock: ManualClock, make_pod: MakePod
) -> None:
    await _report(kube, settle, ready=False)
    assert await attached.reconcile(("volume", "v")) == 360
    await make_pod("q", nodeName="n", claims=["c"])
    await settle()
    manual_clock.now += 400
    await attached.reconcile(("volume", "v"))
    await kube.delete(PODS, "q", "default", grace_seconds=0)
    await settle()
    assert await attached.reconcile(("volume", "v")) == 360
    assert await _count(kube) == 1
