"""Volumes that must be attached: controller and kubelet together; the test plays the external-attacher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.box.kubelet.machine import DRIVER, NODE, Eventually

from tonnage.base.aio.tasks import Background
from tonnage.csi.client.types import AttachedContext
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import ATTACHMENTS, CSI_DRIVERS, NODES, PODS
from tonnage.kubernetes.api.storage import VolumeAttachment
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.attach_detach import AttachDetach

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]


@pytest.fixture
async def attaching(machine: Any) -> AsyncIterator[Any]:
    """The node, with a driver that wants attachments, and the controller."""
    await machine.client.delete(CSI_DRIVERS, DRIVER)
    await machine.client.create(CSI_DRIVERS, {"metadata": {"name": DRIVER}, "spec": {"attachRequired": True}})
    while not (found := machine.kubelet._csi_drivers.cache.get(DRIVER)) or not found.spec.attach_required:
        await asyncio.sleep(0.01)
    informers, tasks = Informers(machine.client), Background("controller")
    events = EventRecorder(machine.client, "attachdetach-controller")
    controller = AttachDetach(machine.client, informers, events)
    informers.start()
    tasks.start(events.run())
    tasks.start(controller.run())
    yield machine
    await tasks.close()
    await informers.close()


async def _attachment(machine: Any) -> VolumeAttachment:
    while not (found := (await machine.client.list(ATTACHMENTS)).items):
        await asyncio.sleep(0.01)
    (one,) = found
    assert isinstance(one, VolumeAttachment)
    return one


async def _answer(machine: Any, **status: Any) -> None:
    one = await _attachment(machine)
    await machine.client.patch(ATTACHMENTS, one.metadata.name, {"status": status}, subresource="status")


async def _node(machine: Any) -> tuple[list[str], list[str]]:
    status = (await machine.client.get(NODES, NODE)).status
    return status.volumes_in_use, [entry["name"] for entry in status.volumes_attached]


async def test_a_pod_waits_until_its_volume_is_attached(
    attaching: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    await eventually(lambda: attaching.kubelet.drivers.find(DRIVER))
    client = attaching.kubelet.drivers.get(DRIVER).client
    real, contexts = client.stage, []

    async def stage(*arguments: Any, **more: Any) -> None:
        contexts.append(more["context"])
        await real(*arguments, **more)

    monkeypatch.setattr(client, "stage", stage)
    await attaching.volume("a")
    await attaching.pod("p", volumes=CLAIM)
    one = await _attachment(attaching)
    pv = (await attaching.client.read("/api/v1/persistentvolumes/pv-a")).decode()
    handle = pv.split('"volumeHandle":"')[1].split('"')[0]
    assert one.metadata.name == names.attachment_name(handle, DRIVER, NODE)
    assert one.spec == {"attacher": DRIVER, "nodeName": NODE, "source": {"persistentVolumeName": "pv-a"}}
    unique = f"kubernetes.io/csi/{DRIVER}^{handle}"
    while await _node(attaching) != ([unique], []):
        await asyncio.sleep(0.01)
    assert contexts == []
    await _answer(attaching, attached=True, attachmentMetadata={"device": "7"})
    await attaching.phase("p", "Running")
    (context,) = contexts
    assert isinstance(context, AttachedContext)
    assert context.publish == {"device": "7"}
    event = await attaching.event("SuccessfulAttachVolume")
    assert event.message == 'AttachVolume.Attach succeeded for volume "pv-a" '
    while await _node(attaching) != ([unique], [unique]):
        await asyncio.sleep(0.01)
    await attaching.restart()
    await attaching.client.delete(PODS, "p", "default")
    await attaching.gone("p")
    while (await attaching.client.list(ATTACHMENTS)).items:
        await asyncio.sleep(0.01)
    while await _node(attaching) != ([], []):
        await asyncio.sleep(0.01)


async def test_a_volume_in_use_is_not_detached(attaching: Any) -> None:
    await attaching.volume("a")
    await attaching.pod("p", volumes=CLAIM)
    await _answer(attaching, attached=True)
    await attaching.phase("p", "Running")
    await attaching.kill()
    await attaching.client.delete(PODS, "p", "default", grace_seconds=0)
    assert not (await _attachment(attaching)).metadata.deleting
    await attaching.start()
    while (await attaching.client.list(ATTACHMENTS)).items:
        await asyncio.sleep(0.01)
    assert (await _node(attaching))[0] == []


async def test_a_failure_is_told(attaching: Any) -> None:
    await attaching.volume("a")
    await attaching.pod("p", volumes=CLAIM)
    await _answer(attaching, attached=False, attachError={"message": "no slot left", "time": "2026-01-01T00:00:00Z"})
    event = await attaching.event("FailedAttachVolume")
    assert event.message == 'AttachVolume.Attach failed for volume "pv-a" : no slot left'
    await attaching.client.delete(PODS, "p", "default")
    await attaching.gone("p")


async def test_a_volume_is_attached_to_one_node_at_a_time(attaching: Any) -> None:
    await attaching.client.create(NODES, {"metadata": {"name": "other"}})
    await attaching.volume("a")
    await attaching.pod("p", volumes=CLAIM)
    await _answer(attaching, attached=True)
    await attaching.phase("p", "Running")
    await attaching.pod("q", volumes=CLAIM, nodeName="other")
    event = await attaching.event("FailedAttachVolume", about="q")
    assert event.message == 'Multi-Attach error for volume "pv-a" Volume is already used by pod(s) p'
    await attaching.client.delete(PODS, "p", "default")
    await attaching.gone("p")
    while (await _attachment_node(attaching)) != "other":
        await asyncio.sleep(0.01)


async def _attachment_node(machine: Any) -> str:
    found = (await machine.client.list(ATTACHMENTS)).items
    return found[0].spec["nodeName"] if len(found) == 1 else ""


async def test_a_pod_that_is_deleted_before_its_volume_is_attached_leaves_it(attaching: Any) -> None:
    await attaching.volume("a")
    await attaching.pod("p", volumes=CLAIM)
    await _attachment(attaching)
    while not (await _node(attaching))[0]:
        await asyncio.sleep(0.01)
    await attaching.client.delete(PODS, "p", "default")
    await attaching.gone("p")
    while (await attaching.client.list(ATTACHMENTS)).items:
        await asyncio.sleep(0.01)
    assert (await _node(attaching))[0] == []


async def test_a_volume_stays_in_use_for_the_pod_that_waits_while_another_leaves_it(
    attaching: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    await eventually(lambda: attaching.kubelet.drivers.find(DRIVER))
    client = attaching.kubelet.drivers.get(DRIVER).client
    real, begun, go_on = client.unstage, asyncio.Event(), asyncio.Event()

    async def unstage(*arguments: Any, **more: Any) -> None:
        begun.set()
        await go_on.wait()
        await real(*arguments, **more)

    await attaching.volume("a")
    await attaching.pod("p", volumes=CLAIM)
    await _answer(attaching, attached=True)
    await attaching.phase("p", "Running")
    monkeypatch.setattr(client, "unstage", unstage)
    await attaching.client.delete(PODS, "p", "default")
    await begun.wait()
    uid = (await attaching.pod("q", volumes=CLAIM)).metadata.uid
    while not any(uid in users for users in attaching.kubelet.volumes.attachments._users.values()):
        await asyncio.sleep(0.01)
    go_on.set()
    await attaching.phase("q", "Running")
    await attaching.gone("p")
    assert (await _node(attaching))[0] != []
    begun.clear()
    go_on.clear()
    await attaching.client.delete(PODS, "q", "default")
    await begun.wait()
    assert not (await _attachment(attaching)).metadata.deleting, "it is still staged"
    go_on.set()
    await attaching.gone("q")
    while (await attaching.client.list(ATTACHMENTS)).items:
        await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_volume_that_is_being_detached_is_not_mounted(attaching: Any) -> None:
    await attaching.volume("a")
    await attaching.pod("p", volumes=CLAIM)
    one = await _attachment(attaching)
    finalizers = {"metadata": {"finalizers": ["external-attacher/x"]}}
    await attaching.client.patch(ATTACHMENTS, one.metadata.name, finalizers)
    await _answer(attaching, attached=True)
    await attaching.phase("p", "Running")
    await attaching.client.delete(PODS, "p", "default")
    await attaching.gone("p")
    while not (await _attachment(attaching)).metadata.deleting:
        await asyncio.sleep(0.01)
    await attaching.pod("q", volumes=CLAIM)
    event = await attaching.event("FailedMount", about="q")
    assert "it is being detached" in event.message
    assert (await attaching.client.get(PODS, "q", "default")).status.phase == "Pending"
    await attaching.client.patch(ATTACHMENTS, one.metadata.name, {"metadata": {"finalizers": None}})
    while (await _attachment(attaching)).metadata.uid == one.metadata.uid:
        await asyncio.sleep(0.01)
    await _answer(attaching, attached=True)
    await attaching.phase("q", "Running")
