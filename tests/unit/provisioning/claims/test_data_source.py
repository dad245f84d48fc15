"""The data source of a claim, read from a real API server; the agent's side is among the provisioner's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tonnage.base.errors import InvalidError, PreconditionError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import ContentSource
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.snapshot import ALLOW_MODE_CHANGE, MANAGED_BY, content_name
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.claims.data_source import POPULATED, SourceOnOtherNode, content_of, leave_to_populator
from tonnage.provisioning.claims.node_scope import DriverInfo
from tonnage_box.testing.objects import MakeClaim

SOURCE = {"dataSource": {"kind": "PersistentVolumeClaim", "name": "first"}, "storageClassName": "late"}


def _driver(node: str = "node-1", name: str = "d") -> DriverInfo:
    nothing = frozenset[str]()
    return DriverInfo(CsiClient(Path("/nowhere")), name, "", nothing, nothing, {names.TOPOLOGY_NODE: node}, "id")


async def _bound_source(kube: Client, make_claim: MakeClaim) -> None:
    """The claim "first" of 2Gi, bound to a volume of driver d on node-1."""
    claim = await make_claim("first", "2Gi", storageClassName="late")
    term = {"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": ["node-1"]}]}
    spec = {
        "capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "csi": {"driver": "d", "volumeHandle": "scratch/first"},
        "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "first",
                     "uid": claim.metadata.uid},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }  # fmt: skip
    await kube.create(kinds.VOLUMES, {"metadata": {"name": "pv-first"}, "spec": spec})
    notes = {names.BIND_COMPLETED: "yes", names.BOUND_BY_CONTROLLER: "yes"}
    body = {"metadata": {"annotations": notes}, "spec": {"volumeName": "pv-first"}}
    await kube.patch(kinds.CLAIMS, "first", body, "default")
    await kube.patch(kinds.CLAIMS, "first", {"status": {"phase": "Bound"}}, "default", subresource="status")


async def test_an_empty_volume_has_none(kube: Client, make_claim: MakeClaim) -> None:
    assert await content_of(kube, await make_claim("empty", "1Gi"), _driver(), "node-1") is None


async def test_a_copy_is_made_on_the_node_of_its_source(kube: Client, make_claim: MakeClaim) -> None:
    await _bound_source(kube, make_claim)
    copy = await make_claim("copy", "2Gi", **SOURCE)
    assert await content_of(kube, copy, _driver(), "node-1") == ContentSource(volume_id="scratch/first")
    away = await content_of(kube, copy, _driver("node-2"), "node-2")
    assert away == SourceOnOtherNode("claim copy clones claim first, whose volume pv-first is on another node")


@pytest.mark.parametrize(
    ("size", "driver", "why"),
    [("1Gi", "d", "requested size 1Gi is smaller"), ("2Gi", "other", "pv-first is not of driver other")],
)
async def test_a_copy_that_can_never_be(kube: Client, make_claim: MakeClaim, size: str, driver: str, why: str) -> None:
    await _bound_source(kube, make_claim)
    with pytest.raises(InvalidError, match=why):
        await content_of(kube, await make_claim("copy", size, **SOURCE), _driver(name=driver), "node-1")


async def test_a_source_that_is_not_ready(kube: Client, make_claim: MakeClaim) -> None:
    copy = await make_claim("copy", "2Gi", **SOURCE)
    with pytest.raises(PreconditionError, match="claim first does not exist"):
        await content_of(kube, copy, _driver(), "node-1")
    await make_claim("first", "2Gi", storageClassName="late")
    with pytest.raises(PreconditionError, match="claim first is not bound yet"):
        await content_of(kube, copy, _driver(), "node-1")


async def _snapshot(kube: Client, *, node: str = "node-1", ready: bool = True, **more: Any) -> None:
    """The snapshot "monday" of 2Gi with its content; its volume may be gone."""
    source = {"persistentVolumeClaimName": "first"}
    made = await kube.create(kinds.SNAPSHOTS, {"metadata": {"name": "monday"}, "spec": {"source": source}}, "default")
    name = content_name(made.metadata.uid)
    spec = {
        "volumeSnapshotRef": {"namespace": "default", "name": "monday", "uid": made.metadata.uid},
        "deletionPolicy": "Delete",
        "driver": "d",
        "source": {"volumeHandle": "scratch/pv-first"},
        "sourceVolumeMode": "Filesystem",
    }
    labels = {MANAGED_BY: node} if node else {}
    await kube.create(kinds.SNAPSHOT_CONTENTS, {"metadata": {"name": name, "labels": labels}, "spec": {**spec, **more}})
    status: Any = {"readyToUse": ready, "snapshotHandle": "scratch/s", "restoreSize": 2 << 30}
    await kube.patch(kinds.SNAPSHOT_CONTENTS, name, {"status": status}, subresource="status")
    status = {"readyToUse": ready, "boundVolumeSnapshotContentName": name}
    await kube.patch(kinds.SNAPSHOTS, "monday", {"status": status}, "default", subresource="status")


async def _restored(make_claim: MakeClaim, size: str = "2Gi", **spec: Any) -> PersistentVolumeClaim:
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"}
    return await make_claim("restored", size, storageClassName="late", dataSource=source, **spec)


async def test_a_snapshot_is_restored_on_its_node(kube: Client, make_claim: MakeClaim) -> None:
    for node in ("node-1", "node-2"):
        await kube.create(kinds.NODES, {"metadata": {"name": node}})
    await _snapshot(kube)
    claim = await _restored(make_claim, "3Gi")
    assert await content_of(kube, claim, _driver(), "node-1") == ContentSource(snapshot_id="scratch/s")
    away = await content_of(kube, claim, _driver("node-2"), "node-2")
    assert away == SourceOnOtherNode("claim restored restores snapshot monday, which lies on node node-1")


async def test_a_claim_stays_where_its_snapshot_becomes_ready_and_goes_from_elsewhere_at_once(
    kube: Client, make_claim: MakeClaim
) -> None:
    await kube.create(kinds.NODES, {"metadata": {"name": "node-1"}})
    claim = await _restored(make_claim)
    with pytest.raises(PreconditionError, match="cannot restore: snapshot monday does not exist"):
        await content_of(kube, claim, _driver(), "node-1")
    await _snapshot(kube, ready=False)
    with pytest.raises(PreconditionError, match="cannot restore: snapshot monday is not ready yet"):
        await content_of(kube, claim, _driver(), "node-1")
    assert isinstance(await content_of(kube, claim, _driver("node-2"), "node-2"), SourceOnOtherNode)


async def test_without_a_label_the_volume_tells_the_node(kube: Client, make_claim: MakeClaim) -> None:
    await _snapshot(kube, node="")
    claim = await _restored(make_claim)
    with pytest.raises(PreconditionError, match="snapshot monday has no node yet"):
        await content_of(kube, claim, _driver(), "node-1")
    await _bound_source(kube, make_claim)
    term = {"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": ["node-1"]}]}
    spec = {
        "capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "d", "volumeHandle": "scratch/pv-first"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    await kube.delete(kinds.VOLUMES, "pv-first")
    await kube.patch(kinds.VOLUMES, "pv-first", {"metadata": {"finalizers": None}})
    await kube.create(kinds.VOLUMES, {"metadata": {"name": "pv-first"}, "spec": spec})
    assert await content_of(kube, claim, _driver(), "node-1") == ContentSource(snapshot_id="scratch/s")
    away = await content_of(kube, claim, _driver("node-2"), "node-2")
    assert away == SourceOnOtherNode(
        "claim restored restores snapshot monday, whose volume pv-first is on another node"
    )


async def test_a_snapshot_of_a_node_that_is_gone_sends_no_claim_around(kube: Client, make_claim: MakeClaim) -> None:
    await _snapshot(kube, node="node-3")
    with pytest.raises(PreconditionError, match="snapshot default/monday lies on node node-3, which is gone"):
        await content_of(kube, await _restored(make_claim), _driver(), "node-1")


@pytest.mark.parametrize(
    ("size", "driver", "spec", "why"),
    [
        ("1Gi", "d", {}, "size 1Gi is less than the size 2Gi for the source snapshot monday"),
        ("2Gi", "other", {}, "snapshot monday is of driver d, the class of the claim of driver other"),
        ("2Gi", "d", {"volumeMode": "Block"}, "default/restored modifies the mode of the source volume"),
    ],
)
async def test_a_restore_that_can_never_be(  # what differs in each
    kube: Client, make_claim: MakeClaim, size: str, driver: str, spec: dict[str, str], why: str
) -> None:
    await _snapshot(kube)
    claim = await _restored(make_claim, size, **spec)
    with pytest.raises(InvalidError, match=why):
        await content_of(kube, claim, _driver(name=driver), "node-1")


async def test_a_snapshot_of_another_namespace_is_not_restored(kube: Client, make_claim: MakeClaim) -> None:
    """One of the same name there is not the one that the claim means; and none is found through a namespace."""
    await _snapshot(kube)
    elsewhere = structs.replace(await _restored(make_claim), metadata=ObjectMeta(name="restored", namespace="tenant"))
    with pytest.raises(PreconditionError, match="snapshot monday does not exist"):
        await content_of(kube, elsewhere, _driver(), "node-1")


async def test_an_administrator_allows_another_volume_mode(kube: Client, make_claim: MakeClaim) -> None:
    await _snapshot(kube)
    (content,) = (await kube.list(kinds.SNAPSHOT_CONTENTS)).items
    note = {"metadata": {"annotations": {ALLOW_MODE_CHANGE: "true"}}}
    await kube.patch(kinds.SNAPSHOT_CONTENTS, content.metadata.name, note)
    claim = await _restored(make_claim, volumeMode="Block")
    assert await content_of(kube, claim, _driver(), "node-1") == ContentSource(snapshot_id="scratch/s")


async def test_a_content_that_is_another_snapshots_is_not_restored(kube: Client, make_claim: MakeClaim) -> None:
    ref = {"namespace": "default", "name": "tuesday", "uid": "x"}
    await _snapshot(kube, volumeSnapshotRef=ref)
    with pytest.raises(PreconditionError, match="is bound to a different snapshot"):
        await content_of(kube, await _restored(make_claim), _driver(), "node-1")


class _Recorder:
    """Remembers Events, and what makes each unique."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []

    def record(self, about: Any, kind: str, reason: str, message: str, *, once: str) -> None:
        """One Event."""
        self.found.append((about.name, message, once))


async def test_a_populators_claim_has_one_event(make_claim: MakeClaim) -> None:
    events, claim = _Recorder(), await make_claim("copy", "2Gi")
    leave_to_populator(events, claim)  # type: ignore[arg-type]
    leave_to_populator(events, claim)  # type: ignore[arg-type]
    assert len(set(events.found)) == 1
    assert events.found[0][:2] == ("copy", POPULATED)
