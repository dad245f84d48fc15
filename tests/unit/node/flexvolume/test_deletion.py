"""Deletion of the volume of a PersistentVolume with flexVolume that a person wrote: by its policy at that moment."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from tonnage.csi.client.client import CsiClient
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.node.flexvolume.mounts import FlexMounts
from tonnage.node.flexvolume.protocol import parse_request
from tonnage.provisioning.claims.bind import find
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
OPTIONS = {"pvOrVolumeName": "pv", "pod.name": "p", "pod.namespace": "default", "pod.uid": "u1", "readwrite": "rw"}
MOUNT = json.dumps({f"kubernetes.io/{key}": value for key, value in OPTIONS.items()})
ENDS = ("its claim", "its claim, then it", "it, then its claim", "it without a claim", "it by force")


async def _mounted(node: FakeNode, policy: str) -> None:
    """A PersistentVolume whose pod has run and is gone: its volume exists and is not mounted."""
    there = {"key": names.HOSTNAME_LABEL, "operator": "In", "values": [node.name]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": policy,
        "flexVolume": {"driver": "tonnage.dev/local"},
        "claimRef": {"namespace": "default", "name": "data", "uid": "u"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
    }
    await node.client.create(kinds.VOLUMES, {"metadata": {"name": "pv"}, "spec": spec})
    await node.client.patch(kinds.VOLUMES, "pv", {"status": {"phase": "Bound"}}, subresource="status")
    kubelet = node.folder
    target = kubelet / "pods/u1/volumes/tonnage.dev~local/pv"
    target.mkdir(parents=True)
    async with CsiClient(node.driver.endpoints[0]) as driver:
        mounts = FlexMounts(driver, node.client, node.name, kubelet=kubelet, state=kubelet, changed=lambda: None)
        for call in (("mount", str(target), MOUNT), ("unmount", str(target))):
            await mounts.serve(parse_request("\0".join(("/x", *call, "")).encode(), kubelet))


async def _end(node: FakeNode, how: str) -> None:
    """What a person and Kubernetes' controllers do."""
    client = node.client

    async def released() -> None:
        await client.patch(kinds.VOLUMES, "pv", {"status": {"phase": "Released"}}, subresource="status")

    if how == "its claim":
        await released()
    elif how == "it, then its claim":
        await client.delete(kinds.VOLUMES, "pv")
        await released()
    elif how == "its claim, then it":
        await released()
        await client.delete(kinds.VOLUMES, "pv")
    elif how == "it without a claim":
        await client.patch(kinds.VOLUMES, "pv", {"spec": {"claimRef": None}})
        await client.patch(kinds.VOLUMES, "pv", {"status": {"phase": "Available"}}, subresource="status")
        await client.delete(kinds.VOLUMES, "pv")
    else:
        await client.patch(kinds.VOLUMES, "pv", {"metadata": {"finalizers": None}})
        await client.delete(kinds.VOLUMES, "pv")


async def _found(node: FakeNode) -> PersistentVolume | None:
    """The PersistentVolume. One that is being deleted loses its protection, as by Kubernetes' controller."""
    now = await find(node.client, kinds.VOLUMES, "pv")
    if now is None or not now.metadata.deleting or names.PV_PROTECTION not in now.metadata.finalizers:
        return now
    left = [one for one in now.metadata.finalizers if one != names.PV_PROTECTION]
    await node.client.patch(kinds.VOLUMES, "pv", {"metadata": {"finalizers": left or None}})
    return await find(node.client, kinds.VOLUMES, "pv")


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(("first", "then"), list(itertools.product(("Delete", "Retain"), repeat=2)))
async def test_only_the_policy_of_that_moment_counts(
    make_node: MakeNode, eventually: Eventually, first: str, then: str, how: str, is_killed: bool
) -> None:
    node = await make_node(agent=False)
    ours = {"cluster_uid": (await node.client.get(kinds.NAMESPACES, "kube-system")).metadata.uid}
    await node.start_agent(**ours)
    await _mounted(node, first)
    if is_killed:
        await node.kill_agent()
    if then != first:
        await node.client.patch(kinds.VOLUMES, "pv", {"spec": {"persistentVolumeReclaimPolicy": then}})
    await _end(node, how)
    if is_killed:
        await node.start_agent(**ours)
    if (first, then) == ("Delete", "Delete") and how != "it by force":

        async def is_over() -> bool:
            return await _found(node) is None and await node.volumes() == []

        await eventually(is_over)
        return
    await _found(node)
    await asyncio.sleep(4000.0)  # beyond the sweep of an hour
    assert len(await node.volumes()) == 1
    is_retained = how == "its claim"
    assert (await _found(node) is not None) == is_retained
    assert len(node.agents[-1].sweep.orphans) == (0 if is_retained else 1)


async def test_one_whose_mount_was_killed_before_its_volume_existed_can_be_deleted(
    make_node: MakeNode, eventually: Eventually
) -> None:
    node = await make_node()
    await _mounted(node, "Delete")
    (name,) = await node.volumes()
    await node.pool.delete(name)
    await _end(node, "its claim")

    async def is_over() -> bool:
        return await _found(node) is None

    await eventually(is_over)
