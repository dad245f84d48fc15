"""Drivers that want no attachments cost no write. The rest is tested with the kubelet that waits for them."""

from __future__ import annotations

from tests.unit.conftest import Settle

from tonnage.api import names
from tonnage.api.kinds import ATTACHMENTS, CSI_DRIVERS, NODES
from tonnage.box.controllers.attach_detach import AttachDetach
from tonnage.kube.client import Client
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers
from tonnage.testing.objects import MakeClaim, MakePod, MakeVolume


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
