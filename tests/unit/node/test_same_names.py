"""A claim that got its volume on one node while another node was still making one: the same name, and the same handle,
on both."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tonnage.base.errors import UnavailableError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.provisioning.claims.node_scope import reaches
from tonnage.storage.pools.base.contract import PoolVolume, VolumeRequest
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.testing.node import MakeNode
from tonnage_box.testing.objects import MakeClaim, MakePod, MakeVolume
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30


class _Gated(FakePool):
    """create() waits at the gate before it makes anything; delete() fails while `stuck`."""

    def __init__(self) -> None:
        super().__init__("scratch", to_bytes("30Gi"), directories=False)
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()
        self.stuck = False

    async def create(self, request: VolumeRequest) -> PoolVolume:
        self.waiting.set()
        await self.gate.wait()
        return await super().create(request)

    async def delete(self, name: str, *, wait: bool = True) -> None:
        if self.stuck:
            raise UnavailableError("stuck")
        await super().delete(name, wait=wait)


def _quiet(node: Any) -> Any:
    async def ask() -> bool:
        return not node.agents[-1].provisioner.busy and await node.volumes() == []

    return ask


def _affinity(node: str, key: str = names.TOPOLOGY_NODE) -> dict[str, Any]:
    expression = {"key": key, "operator": "In", "values": [node]}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}


async def _placed_late(node: Any, other: Any, scratch_pod: MakePod, eventually: Eventually) -> str:
    """A claim sent to a node that is slow, taken from it, and bound on the other; returns the volume's name."""
    await scratch_pod("app", "4Gi")
    await node.select("app-v0")
    await node.pool.waiting.wait()
    await node.select("app-v0", node=other.name)
    await eventually(lambda: other.is_bound("app-v0"))
    return str((await other.claim("app-v0")).spec.volume_name)


async def _is_untouched(other: Any, name: str) -> None:
    assert await other.volumes() == [name]
    volume = await other.client.get(kinds.VOLUMES, name)
    assert (volume.status.phase, volume.metadata.deleting) == ("Bound", False)
    assert volume.metadata.labels[names.NODE_LABEL] == other.name


async def test_a_volume_made_too_late_is_taken_back(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node: Any = await make_node(pool=_Gated())
    other = await make_node("10Gi", name="node-2")
    name = await _placed_late(node, other, scratch_pod, eventually)
    node.pool.gate.set()
    await eventually(_quiet(node))
    await eventually(lambda: node.publishes("30Gi", "30Gi"))
    await _is_untouched(other, name)


async def test_it_is_taken_back_though_the_watch_has_not_told_yet(
    make_node: MakeNode, make_claim: MakeClaim, make_volume: MakeVolume, eventually: Eventually
) -> None:
    node: Any = await make_node(pool=_Gated())
    claim = await make_claim("data", "4Gi", storageClassName="late")
    await node.select("data")
    await node.pool.waiting.wait()
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": claim.metadata.uid}
    name = names.volume_name(claim.metadata.uid)
    await make_volume(name, "4Gi", labels={names.NODE_LABEL: "node-2"}, claimRef=ref, **_affinity("node-2"))
    node.pool.gate.set()
    await eventually(_quiet(node))
    assert not await node.is_gone(kinds.VOLUMES, name)


async def test_after_a_kill_the_sweep_finds_it(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node: Any = await make_node(pool=_Gated())
    other = await make_node("10Gi", name="node-2")
    name = await _placed_late(node, other, scratch_pod, eventually)
    await node.kill_agent()
    node.pool.gate.set()
    await _left_behind(node, await node.claim("app-v0"))
    await node.start_agent()
    await asyncio.sleep(70.0)
    await eventually(_quiet(node))
    await _is_untouched(other, name)


@pytest.mark.parametrize("is_used", [True, False])
async def test_one_of_a_persistent_claim_is_an_orphan_beside_the_other_if_a_pod_had_it(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, *, is_used: bool
) -> None:
    node, other = await make_node("10Gi", agent=False), await make_node("10Gi", name="node-2")
    await make_claim("data", "4Gi", storageClassName="late")
    await other.select("data")
    await eventually(lambda: other.is_bound("data"))
    name = (await node.claim("data")).spec.volume_name
    await _left_behind(node, await node.claim("data"), **{names.PARAM_EPHEMERAL: "false"})
    if is_used:
        await node.use(name)
    await node.start_agent()
    await asyncio.sleep(70.0)

    async def told() -> bool:
        orphans = [o.id for o in node.agents[-1].sweep.orphans]
        return orphans == [f"scratch/{name}"] if is_used else await node.volumes() == []

    await eventually(told)
    await _is_untouched(other, name)


async def test_a_pv_that_vanished_takes_its_volume_along_though_another_node_has_its_name(
    make_node: MakeNode, scratch_pod: MakePod, make_volume: MakeVolume, eventually: Eventually
) -> None:
    pool = _Gated()
    pool.gate.set()
    node = await make_node(pool=pool)
    await scratch_pod("app", "4Gi")
    await node.select("app-v0")
    await eventually(lambda: node.is_bound("app-v0"))
    pool.stuck = True
    name = (await node.release("app-v0")).metadata.name
    await node.client.delete(kinds.VOLUMES, name)
    await node.client.patch(kinds.VOLUMES, name, {"metadata": {"finalizers": None}})
    await make_volume(name, "4Gi", labels={names.NODE_LABEL: "node-2"}, **_affinity("node-2"))
    pool.stuck = False
    await eventually(_quiet(node))
    assert not await node.is_gone(kinds.VOLUMES, name)


async def _left_behind(node: Any, claim: Any, **record: str) -> None:
    """The volume as a killed agent leaves it: made, and nobody told."""
    name = names.volume_name(claim.metadata.uid)
    parameters = {
        names.CSI_PVC_NAME: claim.metadata.name,
        names.CSI_PVC_NAMESPACE: "default",
        names.CSI_PV_NAME: name,
        names.PARAM_CLUSTER: "cluster-1",
        names.PARAM_EPHEMERAL: "true",
        names.PARAM_RECLAIM: "Delete",
        **record,
    }
    async with CsiClient(node.driver.endpoints[0]) as agent:
        await agent.create_volume(name, 4 * GIB, [VolumeCapability()], parameters=parameters)


@pytest.mark.parametrize(
    ("spec", "answer"),
    [
        ({}, True),
        (_affinity("node-1"), True),
        (_affinity("node-2"), False),
        (_affinity("node-2", "kubernetes.io/hostname"), True),
    ],
)
def test_what_a_volume_says_of_its_place(spec: dict[str, Any], answer: bool) -> None:
    volume = msgspec.convert({"metadata": {"name": "v"}, "spec": spec}, PersistentVolume)
    assert reaches(volume, {names.TOPOLOGY_NODE: "node-1"}) is answer
    assert reaches(volume, {}), "a driver without places"
