"""Disks of a static pool as PersistentVolumes ahead of claims: real mounts, a real driver, a real API server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.errors import Code, CsiError
from tonnage.host import mount
from tonnage.kubernetes.api import kinds, names
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.static.backend import StaticBackend
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.real
MI = 1024**2
DISKS = {"pool": "disks"}


@pytest.fixture
def eventually() -> Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    """Asks until the answer is true, and returns it. Real time on a shared machine."""

    async def until(question: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(60):
            while not (answer := await question()):
                await asyncio.sleep(0.005)
            return answer

    return until


@pytest.fixture
def disk(real_folder: Path) -> Callable[..., Path]:
    """disk(entry, size): a disk in the discovery directory."""
    (real_folder / "disks").mkdir(mode=0o755)

    def make(entry: str, size: int) -> Path:
        path = real_folder / "disks" / entry
        path.mkdir(exist_ok=True)
        mount.mount("disk", path, "tmpfs", [f"size={size}"])
        return path

    return make


@pytest.fixture
async def node(real_folder: Path, disk: Any, make_node: MakeNode) -> Any:
    """A node with two disks; its agent is to be started."""
    disk("small", 20 * MI)
    disk("large", 50 * MI)
    return await make_node(agent=False, pool=Pool("disks", StaticBackend(real_folder / "disks")))


async def _start(node: FakeNode) -> Any:
    """The agent, which hears of disks that have been cleaned."""
    agent = await node.start_agent()
    node.driver.hooks.to = agent
    return agent


async def _publish(agent: Any) -> None:
    """One pass, repeated as the agent does where the driver is still in a call of the agent's own pass."""
    while True:
        try:
            await agent.publication.reconcile((names.DRIVER, "disks"))
        except CsiError as failure:
            if failure.code is not Code.ABORTED:
                raise
            await asyncio.sleep(1.0)
        else:
            return


async def _published(node: FakeNode, storage_class: str = "") -> dict[str, Any]:
    """PersistentVolumes by disk."""
    found = (await node.client.list(kinds.VOLUMES)).items
    ours = [v for v in found if not storage_class or v.spec.storage_class_name == storage_class]
    return {v.metadata.annotations.get(names.DISK, ""): v for v in ours}


async def _release(node: FakeNode, name: str) -> None:
    """As the binder does for a volume whose claim is gone."""
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "gone", "uid": "1"}
    await node.client.patch(kinds.VOLUMES, name, {"spec": {"claimRef": ref}})
    await node.client.patch(kinds.VOLUMES, name, {"status": {"phase": "Released"}}, subresource="status")


async def _let_go(node: FakeNode, name: str) -> None:
    """As the protection controller does."""
    with suppress(ApiNotFoundError, ApiConflictError):
        meta = (await node.client.get(kinds.VOLUMES, name)).metadata
        body = {"metadata": {"finalizers": [f for f in meta.finalizers if f != names.PV_PROTECTION] or None}}
        await node.client.patch(kinds.VOLUMES, name, body, resource_version=meta.resource_version)


def _all(node: FakeNode, *disks: str, storage_class: str = "") -> Any:
    async def ask() -> bool:
        return set(await _published(node, storage_class)) == set(disks)

    return ask


async def test_each_disk_becomes_a_volume_of_the_class(
    node: FakeNode, make_class: MakeClass, eventually: Eventually
) -> None:
    await make_class("ssd", parameters=DISKS, reclaimPolicy="Delete")
    await _start(node)
    await eventually(_all(node, "small", "large"))
    volumes = await _published(node)
    assert {entry: v.spec.capacity["storage"] for entry, v in volumes.items()} == {"small": "20Mi", "large": "50Mi"}
    small = volumes["small"]
    assert small.spec.csi.driver == names.DRIVER
    assert small.spec.csi.volume_handle == f"disks/{small.metadata.name}"
    assert (small.spec.storage_class_name, small.spec.volume_mode, small.spec.access_modes, small.spec.claim_ref) == (
        "ssd",
        "Filesystem",
        ["ReadWriteOnce"],
        None,
    )
    assert small.spec.persistent_volume_reclaim_policy == "Delete"
    assert small.metadata.annotations[names.PROVISIONED_BY] == names.DRIVER
    assert small.metadata.labels == {names.NODE_LABEL: node.name, names.POOL_LABEL: "disks"}
    assert names.PROVISIONER_FINALIZER in small.metadata.finalizers
    (term,) = small.spec.node_affinity.required.node_selector_terms
    assert [(e.key, e.values) for e in term.match_expressions] == [(names.TOPOLOGY_NODE, [node.name])]


async def test_no_room_is_published_but_the_reason(
    node: FakeNode, make_class: MakeClass, eventually: Eventually
) -> None:
    await make_class("ssd", parameters={"kind": "static"})
    await _start(node)
    await eventually(_all(node, "small", "large"))
    await eventually(lambda: node.publishes("0", "0", "ssd"))
    (shown,) = [c for c in (await node.client.list(kinds.CAPACITIES)).items if c.storage_class_name == "ssd"]
    assert "PersistentVolumes already" in shown.metadata.annotations[names.REASON]


async def test_a_claim_that_is_sent_to_the_node_gets_no_volume_made(
    node: FakeNode, make_class: MakeClass, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    await make_class("ssd", parameters=DISKS)
    await _start(node)
    await eventually(_all(node, "small", "large"))
    await make_claim("data", "10Mi", storageClassName="ssd")
    await node.select("data")

    async def is_back() -> bool:
        return names.SELECTED_NODE not in (await node.claim("data")).metadata.annotations

    async def told() -> Any:
        return [text for about, reason, text in await all_events() if (about, reason) == ("data", "ProvisioningFailed")]

    await eventually(is_back)
    assert len(await node.volumes()) == 2
    assert "a claim waits until one that is free fits" in (await eventually(told))[0]


async def test_a_released_volume_is_cleaned_and_published_anew(
    node: FakeNode, real_folder: Path, make_class: MakeClass, eventually: Eventually
) -> None:
    await make_class("ssd", parameters=DISKS)
    await _start(node)
    await eventually(_all(node, "small", "large"))
    small = (await _published(node))["small"]
    async with CsiClient(node.driver.endpoints[0]) as kubelet:
        staging = node.folder / "staging"
        handle, capability = small.spec.csi.volume_handle, VolumeCapability()
        await kubelet.stage(handle, staging, capability)
        (staging / "file").write_text("of the first owner")
        await kubelet.unstage(handle, staging)
    await _release(node, small.metadata.name)

    async def anew() -> bool:
        now = (await _published(node)).get("small")
        if now is not None and now.metadata.uid == small.metadata.uid and now.metadata.deleting:
            await _let_go(node, now.metadata.name)
        return now is not None and now.metadata.uid != small.metadata.uid

    await eventually(anew)
    assert os.listdir(real_folder / "disks" / "small") == []
    assert set(await _published(node)) == {"small", "large"}


async def test_what_is_retained_stays_with_its_content(
    node: FakeNode, real_folder: Path, make_class: MakeClass, eventually: Eventually
) -> None:
    await make_class("kept", parameters=DISKS, reclaimPolicy="Retain")
    agent = await _start(node)
    await eventually(_all(node, "small", "large"))
    small = (await _published(node))["small"]
    async with CsiClient(node.driver.endpoints[0]) as kubelet:
        staging = node.folder / "staging"
        await kubelet.stage(small.spec.csi.volume_handle, staging, VolumeCapability())
        (staging / "file").write_text("of the first owner")
        await kubelet.unstage(small.spec.csi.volume_handle, staging)
    await _release(node, small.metadata.name)
    await node.client.delete(kinds.VOLUMES, small.metadata.name)
    await _let_go(node, small.metadata.name)
    await eventually(_all(node, "large"))
    await _publish(agent)
    assert set(await _published(node)) == {"large"}, "somebody's data is on the other"
    assert (real_folder / "disks" / "small" / "file").read_text() == "of the first owner"
    assert small.metadata.name in await node.volumes()


async def test_a_volume_that_a_kill_left_without_its_object_is_published(
    node: FakeNode, make_class: MakeClass, eventually: Eventually
) -> None:
    await make_class("ssd", parameters=DISKS)
    record = {
        names.CSI_PV_NAME: "static-0",
        names.PARAM_CLUSTER: "cluster-1",
        names.PARAM_RECLAIM: "Delete",
        names.PARAM_CLASS: "ssd",
    }
    async with CsiClient(node.driver.endpoints[0]) as killed:
        await killed.create_volume("static-0", 50 * MI, [VolumeCapability()], parameters={**DISKS, **record})
    await _start(node)
    await eventually(_all(node, "small", "large"))
    assert (await _published(node))["large"].metadata.name == "static-0"
    await node.kill_agent()
    before = await _published(node)
    agent = await _start(node)
    await eventually(lambda: node.publishes("0", "0", "ssd"))
    await _publish(agent)
    after = await _published(node)
    assert {v.metadata.uid for v in after.values()} == {v.metadata.uid for v in before.values()}


async def test_a_pool_is_published_in_one_class_and_follows_it(
    node: FakeNode, make_class: MakeClass, eventually: Eventually, all_events: AllEvents
) -> None:
    await make_class("by-default")
    await make_class("first", parameters=DISKS)
    await make_class("second", parameters=DISKS)
    await _start(node)
    await eventually(_all(node, "small", "large", storage_class="first"))

    async def told() -> Any:
        return {about for about, reason, _ in await all_events() if reason == "InvalidParameters"} >= {
            "by-default",
            "second",
        }

    await eventually(told)
    assert len(await _published(node)) == 2
    large = (await _published(node))["large"]
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "mine", "uid": "1"}
    await node.client.patch(kinds.VOLUMES, large.metadata.name, {"spec": {"claimRef": ref}})
    for volume in (await _published(node)).values():
        await node.client.patch(
            kinds.VOLUMES, volume.metadata.name, {"status": {"phase": "Available"}}, subresource="status"
        )
    await node.client.delete(kinds.STORAGE_CLASSES, "first")

    async def moved() -> bool:
        now = await _published(node)
        if (small := now.get("small")) is not None and small.metadata.deleting:
            await _let_go(node, small.metadata.name)
        return small is not None and small.spec.storage_class_name == "second"

    await eventually(moved)
    assert (await _published(node))["large"].metadata.uid == large.metadata.uid, "it is claimed"


async def test_a_disk_that_is_mounted_later_is_published_and_one_that_vanishes_is_told(
    node: FakeNode, disk: Any, make_class: MakeClass, eventually: Eventually, all_events: AllEvents
) -> None:
    await make_class("ssd", parameters=DISKS)
    agent = await _start(node)
    await eventually(_all(node, "small", "large"))
    path = disk("later", 30 * MI)
    agent.capacity_changed()
    await eventually(_all(node, "small", "large", "later"))
    mount.umount(path)
    agent.publication._looked.clear()
    agent.capacity_changed()

    async def told() -> Any:
        return [t for _, reason, t in await all_events() if reason == "VolumeConditionAbnormal"]

    (text,) = await eventually(told)
    assert "disks/later" in text
    assert "bring it back as it was" in text
    assert set(await _published(node)) == {"small", "large", "later"}


async def test_cleaners_that_need_a_device_are_a_fault_of_a_class_without_devices(
    node: FakeNode, make_class: MakeClass, eventually: Eventually, all_events: AllEvents
) -> None:
    await make_class("wiped", parameters={**DISKS, "cleaner": "mop"})
    await _start(node)

    async def told() -> Any:
        return [t for about, reason, t in await all_events() if about == "wiped" and reason == "InvalidParameters"]

    assert "'mop' is unknown" in (await eventually(told))[0]
    assert await _published(node) == {}


async def test_secrets_that_are_named_after_a_claim_are_a_fault(
    node: FakeNode, make_class: MakeClass, eventually: Eventually, all_events: AllEvents
) -> None:
    secret = {f"{names.CSI_PREFIX}node-stage-secret-{part}": "${pvc.name}" for part in ("name", "namespace")}
    await make_class("secret", parameters={**DISKS, **secret})
    await _start(node)

    async def told() -> Any:
        return [t for about, reason, t in await all_events() if about == "secret" and reason == "InvalidParameters"]

    assert "before their claims" in (await eventually(told))[0]
    assert await _published(node) == {}
    assert await node.volumes() == []
