"""A finished pod gives its disk back: when its volume's data is deleted, and when not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.snapshot import VolumeSnapshot
from tonnage.node.reclaim.finished import LATEST, is_finished
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.testing.node import NODE, FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass, MakePod, Objects
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
CLAIM = "job-v0"


@dataclass
class Finishing:
    """A node whose volume belongs to the pod `job`, and what its kubelet does."""

    node: FakeNode
    volume: str
    handle: str

    @property
    def kubelet(self) -> CsiClient:
        """A client of the driver."""
        return CsiClient(self.node.driver.endpoints[0])

    async def stage(self) -> None:
        """Stage the volume. Raises CsiError."""
        async with self.kubelet as client:
            (self.node.folder / "s").mkdir(exist_ok=True)
            await client.stage(
                self.handle, self.node.folder / "s" / "globalmount", VolumeCapability(AccessMode.SINGLE_NODE_WRITER)
            )

    async def unstage(self) -> None:
        """Unstage it."""
        async with self.kubelet as client:
            await client.unstage(self.handle, self.node.folder / "s" / "globalmount")

    async def end(self, phase: str = "Succeeded", pod: str = "job") -> None:
        """Let a pod end, as its kubelet reports it."""
        await self.node.client.patch(kinds.PODS, pod, {"status": {"phase": phase}}, "default", subresource="status")

    async def is_reclaimed(self) -> bool:
        """Whether all of it is done."""
        return (await self.node.client.get(kinds.VOLUMES, self.volume)).status.reason == names.RECLAIMED

    async def stays(self) -> None:
        """Check that the data stays, for a long time."""
        await asyncio.sleep(600)
        assert await self.node.volumes() == [self.volume]
        assert not await self.is_reclaimed()


@pytest.fixture
async def job(make_class: MakeClass, make_node: MakeNode, objects: Objects, eventually: Eventually) -> Finishing:
    """A pod that runs with a volume of 4Gi of a pool of 6Gi."""
    await make_class("gives", parameters={names.RECLAIM_FINISHED: "true"})
    node = await make_node("6Gi")
    return await _job(node, objects, eventually)


async def _job(
    node: FakeNode, objects: Objects, eventually: Eventually, storage_class: str = "gives", **spec: Any
) -> Finishing:
    made = objects.pod

    async def pod(name: str, **more: Any) -> Pod:
        return await made(name, **{"nodeName": NODE, "restartPolicy": "Never", **spec, **more})

    objects.pod = pod  # type: ignore[method-assign]
    await objects.scratch_pod("job", "4Gi", storage_class=storage_class)
    await node.select(CLAIM)
    await eventually(lambda: node.is_bound(CLAIM))
    volume = await node.client.get(kinds.VOLUMES, (await node.claim(CLAIM)).spec.volume_name)
    assert volume.spec.csi is not None
    found = Finishing(node, volume.metadata.name, volume.spec.csi.volume_handle)
    await found.stage()
    return found


async def test_a_finished_pod_gives_its_disk_back(
    job: Finishing, eventually: Eventually, all_events: AllEvents
) -> None:
    assert await job.node.capacity("gives") == ("2Gi", "2Gi")
    await job.unstage()
    await asyncio.sleep(5)
    assert await job.node.volumes() == [job.volume], "its kubelet reports the end a moment later"
    await job.end()
    await eventually(job.is_reclaimed)
    assert await job.node.volumes() == []
    await eventually(lambda: job.node.publishes("6Gi", "6Gi", "gives"))
    (condition,) = (await job.node.claim(CLAIM)).status.conditions
    assert (condition["type"], condition["status"], condition["reason"]) == ("Reclaimed", "True", "PodFinished")
    assert "pod default/job has succeeded, and class gives has tonnage.dev/reclaim-finished" in condition["message"]
    volume = await job.node.client.get(kinds.VOLUMES, job.volume)
    assert (volume.status.phase, volume.status.message) == ("Bound", condition["message"])
    assert [e for e in await all_events() if e[1] == "Reclaimed"] == [(CLAIM, "Reclaimed", condition["message"])]


async def test_a_pod_that_ends_before_its_volume_is_seen_to_be_bound(job: Finishing, eventually: Eventually) -> None:
    """PVs get their phase from another controller, at any time after the claim has its own."""
    cached = job.node.agents[0].finished._node.volumes

    async def has_phase(phase: str) -> None:
        await job.node.client.patch(kinds.VOLUMES, job.volume, {"status": {"phase": phase}}, subresource="status")

    async def is_seen() -> bool:
        found = cached.get(job.volume)
        return found is not None and found.status.phase == "Available"

    await has_phase("Available")
    await eventually(is_seen)
    await job.end()
    await job.unstage()
    await has_phase("Bound")
    await eventually(job.is_reclaimed)


async def test_a_device_that_is_in_use_for_a_moment_after_its_unmount(
    job: Finishing, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_use, looks = FakePool.in_use, iter([True, True])

    async def lagging(pool: FakePool, name: str) -> bool:
        return next(looks, None) or await in_use(pool, name)

    monkeypatch.setattr(FakePool, "in_use", lagging)
    await job.end()
    await job.unstage()
    await eventually(job.is_reclaimed)
    assert next(looks, None) is None, "it was in use at the first two looks"


async def test_every_later_use_is_rejected_with_the_reason_until_the_claim_goes(
    job: Finishing, eventually: Eventually, make_claim: MakeClaim, all_events: AllEvents
) -> None:
    await job.end("Failed")
    await job.unstage()
    await eventually(job.is_reclaimed)
    with pytest.raises(CsiError, match="has no data any more: pod default/job has failed") as rejected:
        await job.stage()
    assert rejected.value.code is Code.FAILED_PRECONDITION
    async with job.kubelet as client:
        with pytest.raises(CsiError, match="has no data any more"):
            await client.create_snapshot("s", job.handle)
    source = {"kind": "PersistentVolumeClaim", "name": CLAIM}
    await make_claim("copy", "4Gi", storageClassName="gives", dataSource=source)
    await job.node.select("copy")

    async def is_told() -> bool:
        return any(name == "copy" and "has no data any more" in text for name, _, text in await all_events())

    await eventually(is_told)
    marks = job.node.folder / "plugins" / names.DRIVER / "reclaimed" / "scratch"
    assert [mark.name for mark in marks.iterdir()] == [job.volume]
    await job.node.release(CLAIM)

    async def is_deleted() -> bool:
        return not list(marks.iterdir())

    await eventually(is_deleted)


@pytest.mark.parametrize("kind", ["pod", "clone", "snapshot"])
async def test_data_stays_while_another_object_names_the_claim(
    kind: str, job: Finishing, make_pod: MakePod, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    client = job.node.client
    other: Kind[Pod] | Kind[PersistentVolumeClaim] | Kind[VolumeSnapshot]
    if kind == "pod":
        await make_pod("reader", claims=[CLAIM], nodeName="", restartPolicy="Never")
        other, by = kinds.PODS, "pod reader"
    elif kind == "clone":
        await make_claim("reader", "4Gi", dataSource={"kind": "PersistentVolumeClaim", "name": CLAIM})
        other, by = kinds.CLAIMS, "claim reader"
    else:
        body = {"metadata": {"name": "reader"}, "spec": {"source": {"persistentVolumeClaimName": CLAIM}}}
        await client.create(kinds.SNAPSHOTS, body, "default")
        other, by = kinds.SNAPSHOTS, "VolumeSnapshot reader"
    await job.end()
    await job.unstage()
    await job.stays()
    (told,) = [text for name, reason, text in await all_events() if (name, reason) == (CLAIM, "NotReclaimed")]
    assert by in told
    await client.delete(other, "reader", "default")  # type: ignore[misc]
    if kind != "pod":
        await client.patch(other, "reader", {"metadata": {"finalizers": None}}, "default")  # type: ignore[misc]
    await asyncio.sleep(LATEST)
    await eventually(job.is_reclaimed)


async def test_data_stays_while_the_volume_is_mounted(job: Finishing, eventually: Eventually) -> None:
    await job.end()
    await job.node.kill_agent()
    await job.node.start_agent()
    await job.stays()
    await job.unstage()
    await eventually(job.is_reclaimed)


async def test_a_pod_that_was_replaced_by_one_of_its_name_takes_its_claim_with_it(
    job: Finishing, objects: Objects
) -> None:
    await job.node.client.delete(kinds.PODS, "job", "default", grace_seconds=0)
    await objects.pod("job")
    await job.end()
    await job.unstage()
    await job.stays()


async def test_retain_stays(job: Finishing) -> None:
    await job.node.client.patch(kinds.VOLUMES, job.volume, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
    await job.end()
    await job.unstage()
    await job.stays()


async def test_a_class_without_the_parameter_keeps_the_data(
    make_node: MakeNode, objects: Objects, eventually: Eventually
) -> None:
    found = await _job(await make_node("6Gi"), objects, eventually, "late")
    await found.end()
    await found.unstage()
    await found.stays()


async def test_a_claim_that_no_pod_owns_keeps_the_data(job: Finishing) -> None:
    await job.node.client.patch(kinds.CLAIMS, CLAIM, {"metadata": {"ownerReferences": None}}, "default")
    await job.end()
    await job.unstage()
    await job.stays()


async def test_an_agent_that_was_killed_after_the_deletion_tells_the_claim(
    job: Finishing, make_pod: MakePod, eventually: Eventually
) -> None:
    """Also where a pod has named the claim meanwhile: its data is gone."""
    await job.end()
    await job.node.kill_agent()
    await job.unstage()
    async with job.kubelet as client:
        assert (await client.reclaim_volume(job.handle, "its pod has finished")).why == "its pod has finished"
    await make_pod("reader", claims=[CLAIM], nodeName="", restartPolicy="Never")
    await job.node.start_agent()
    await eventually(job.is_reclaimed)
    (condition,) = (await job.node.claim(CLAIM)).status.conditions
    assert condition["message"] == "the data was deleted: its pod has finished"


async def test_a_pool_that_cannot_delete_is_tried_again_and_nothing_uses_the_volume_meanwhile(
    job: Finishing, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    fails = True
    delete = FakePool.delete

    async def failing(pool: FakePool, name: str, *, wait: bool = True) -> None:
        if fails:
            raise OSError(5, "Input/output error")
        await delete(pool, name, wait=wait)

    monkeypatch.setattr(FakePool, "delete", failing)
    await job.end()
    await job.unstage()
    await job.stays()
    with pytest.raises(CsiError, match="has no data any more"):
        await job.stage()
    fails = False
    await eventually(job.is_reclaimed)


@pytest.mark.parametrize(
    ("phase", "policy", "state", "finished"),
    [
        ("Succeeded", "Never", "terminated", True),
        ("Succeeded", "OnFailure", "terminated", True),
        ("Succeeded", "Always", "terminated", False),
        ("Failed", "Never", "terminated", True),
        ("Failed", "OnFailure", "terminated", True),
        ("Failed", "Always", "terminated", True),  # evicted, or past its deadline
        ("Failed", "Never", "waiting", True),  # evicted before it started
        ("Failed", "Never", "running", False),  # of a node that was lost: its kubelet has not seen it
        ("Succeeded", "Never", "running", False),
        ("Running", "Never", "terminated", False),
        ("Pending", "Never", "waiting", False),
        ("Unknown", "Never", "terminated", False),
        ("", "Never", "waiting", False),
    ],
)
def test_finished(phase: str, policy: str, state: str, finished: bool) -> None:
    statuses = [{"name": "main", "state": {state: {}}}]
    body = {"spec": {"restartPolicy": policy}, "status": {"phase": phase, "containerStatuses": statuses}}
    assert is_finished(convert(body, Pod)) is finished


async def test_a_pod_that_failed_before_it_mounted_its_volume(
    make_class: MakeClass,
    make_node: MakeNode,
    objects: Objects,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(_self: Finishing) -> None:
        """Its kubelet rejects the pod."""

    monkeypatch.setattr(Finishing, "stage", nothing)
    await make_class("gives", parameters={names.RECLAIM_FINISHED: "true"})
    job = await _job(await make_node("6Gi"), objects, eventually)
    await job.end("Failed")
    await asyncio.sleep(120)
    await eventually(job.is_reclaimed)
