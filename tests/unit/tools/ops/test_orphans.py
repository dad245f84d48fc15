"""Whose a volume is: what a cluster knows, at the moment it is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tonnage.base.aio.clock import RealClock, rfc3339
from tonnage.base.errors import ApiAlreadyExistsError, TonnageError, UnavailableError
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.kinds import SNAPSHOT_CONTENTS
from tonnage.kubernetes.api.snapshot import MANAGED_BY
from tonnage.kubernetes.client.client import Client, Listing
from tonnage.tools.ops import orphans
from tonnage.tools.ops.orphans import Owner, Registry
from tonnage.tools.ops.report import VolumeReport
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store

CLAIM = {
    "metadata": {"name": "data", "namespace": "default"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "x"},
}
OLD = rfc3339(1_700_000_000)


@pytest.fixture
async def kube() -> AsyncIterator[Client]:
    """A client of a server."""
    server = ApiServer(Store(extractor()))
    await server.start()
    yield Client(server.transport("system:admin"))
    await server.stop()


@pytest.fixture
async def registry(kube: Client) -> Registry:
    """What that server knows."""
    return Registry(kube, RealClock())


def _volume(name: str = "v", **fields: Any) -> VolumeReport:
    return VolumeReport(f"pool/{name}", 1 << 30, driver=names.DRIVER, created=OLD, **fields)


async def test_nobody_has_it(registry: Registry) -> None:
    await registry.look()

    assert await registry.owner(_volume()) is Owner.NOBODY


async def test_a_persistent_volume_names_it(kube: Client, registry: Registry) -> None:
    body = orphans.persistent_volume(_volume(), name="mine", storage_class="", block=False)
    await kube.create(kinds.VOLUMES, body)
    await registry.look()

    assert await registry.owner(_volume()) is Owner.VOLUME
    assert registry.volume_of(_volume()) == "mine"
    assert await registry.owner(_volume("other")) is Owner.NOBODY


async def test_a_flexvolume_that_was_made_for_a_claim_names_it(kube: Client, registry: Registry) -> None:
    body = orphans.persistent_volume(_volume(), name="mine", storage_class="", block=False)
    del body["spec"]["csi"]
    body["spec"]["flexVolume"] = {"driver": "tonnage.dev/local", "options": {names.FLEX_HANDLE: "pool/v"}}
    await kube.create(kinds.VOLUMES, body)
    await registry.look()

    assert await registry.owner(_volume()) is Owner.VOLUME
    assert registry.volume_of(_volume()) == "mine"


async def test_a_persistent_volume_of_another_driver_does_not_count(kube: Client, registry: Registry) -> None:
    body = orphans.persistent_volume(_volume(), name="mine", storage_class="", block=False)
    body["spec"]["csi"]["driver"] = "other.example.com"
    await kube.create(kinds.VOLUMES, body)
    await registry.look()

    assert await registry.owner(_volume()) is Owner.NOBODY


async def test_its_claim_waits_for_it(kube: Client, registry: Registry) -> None:
    claim = await kube.create(kinds.CLAIMS, CLAIM, "default")
    await registry.look()
    name = names.volume_name(claim.metadata.uid)

    assert await registry.owner(_volume(claim="default/data", persistent_volume=name)) is Owner.CLAIM
    another = _volume(claim="default/data", persistent_volume=names.volume_name("another"))
    assert await registry.owner(another) is Owner.NOBODY  # made for an earlier claim of that name


async def test_a_persistent_volume_that_is_written_after_the_look_counts(kube: Client, registry: Registry) -> None:
    await registry.look()
    volume = _volume("pvc-1", claim="default/data", persistent_volume="pvc-1")
    await kube.create(kinds.VOLUMES, orphans.persistent_volume(volume, name="pvc-1", storage_class="", block=False))

    assert await registry.owner(volume) is Owner.VOLUME


async def test_others(kube: Client, registry: Registry) -> None:
    await registry.look()
    here = (await kube.get(kinds.NAMESPACES, "kube-system")).metadata.uid

    assert await registry.owner(_volume(inline=True)) is Owner.POD
    assert await registry.owner(_volume(cluster="elsewhere")) is Owner.FOREIGN
    assert await registry.owner(_volume(cluster=here)) is Owner.NOBODY
    now = rfc3339(RealClock().time())
    assert await registry.owner(msgspec.structs.replace(_volume(), created=now)) is Owner.YOUNG


async def test_adopted(kube: Client, registry: Registry) -> None:
    volume = _volume(topology={"b": "2", "a": "1"})
    await registry.look()
    await registry.adopt(orphans.persistent_volume(volume, name="kept", storage_class="fast", block=True))

    spec = (await kube.get(kinds.VOLUMES, "kept")).spec
    assert spec.csi is not None
    assert (spec.csi.driver, spec.csi.volume_handle) == (names.DRIVER, "pool/v")
    assert (spec.storage_class_name, spec.volume_mode, spec.persistent_volume_reclaim_policy) == (
        "fast",
        "Block",
        "Retain",
    )
    with pytest.raises(ApiAlreadyExistsError):
        await registry.adopt(orphans.persistent_volume(volume, name="kept", storage_class="fast", block=True))


async def test_snapshots_of_another_clusters_volumes_are_its_own(registry: Registry) -> None:
    await registry.look()
    assert await registry.owner(_volume("s", snapshot_of="pool/v", cluster="another")) is Owner.FOREIGN


async def test_snapshots_of_a_cluster_that_has_none(registry: Registry) -> None:
    await registry.look()

    assert await registry.owner(_volume("s", snapshot_of="pool/v")) is Owner.NOBODY
    young = msgspec.structs.replace(_volume("s", snapshot_of="pool/v"), created=rfc3339(RealClock().time()))
    assert await registry.owner(young) is Owner.YOUNG


class _Contents(Client):
    """A cluster with one VolumeSnapshotContent, as its custom resource is served."""

    def __init__(self, inner: Client) -> None:
        self.inner = inner
        self.made: list[dict[str, Any]] = []

    async def get(self, kind: kinds.Kind[Any], *arguments: Any, **options: Any) -> Any:
        return await self.inner.get(kind, *arguments, **options)

    async def list(self, kind: kinds.Kind[Any], *arguments: Any, **options: Any) -> Any:
        if kind is not SNAPSHOT_CONTENTS:
            return await self.inner.list(kind, *arguments, **options)
        content = {
            "metadata": {"name": "snapcontent-1"},
            "spec": {"driver": names.DRIVER, "source": {"volumeHandle": "pool/v"}},
            "status": {"snapshotHandle": "pool/s"},
        }
        return Listing([kind.decode(msgspec.json.encode(content))], "1")

    async def create(self, kind: kinds.Kind[Any], body: Any, *arguments: Any, **options: Any) -> Any:
        self.made.append({**kind.head(), **body})


async def test_a_snapshot_content_names_it(kube: Client) -> None:
    client = _Contents(kube)
    registry = Registry(client, RealClock())
    await registry.look()
    mine, other = _volume("s", snapshot_of="pool/v"), _volume("other", snapshot_of="pool/v")
    assert await registry.owner(mine) is Owner.CONTENT
    assert registry.volume_of(mine) == "snapcontent-1"
    assert await registry.owner(other) is Owner.NOBODY
    assert await registry.owner(_volume("s")) is Owner.NOBODY, "a volume of that name is another thing"

    await registry.adopt(orphans.snapshot_content(other, name="kept", namespace="shop", block=True))
    (made,) = client.made
    assert made["kind"] == "VolumeSnapshotContent"
    assert made["spec"] == {
        "driver": names.DRIVER,
        "deletionPolicy": "Retain",
        "source": {"snapshotHandle": "pool/other"},
        "sourceVolumeMode": "Block",
        "volumeSnapshotRef": {"name": "kept", "namespace": "shop"},
    }


async def test_a_snapshot_whose_agent_has_not_told_it_yet_is_no_orphan(kube: Client, registry: Registry) -> None:
    """And contents whose VolumeSnapshot is gone are named, unless somebody has deleted them."""
    spec = {"driver": names.DRIVER, "deletionPolicy": "Retain", "source": {"volumeHandle": "pool/v"}}
    for name, uid in (("kept", "u1"), ("going", "u2"), ("unbound", "")):
        ref = {"namespace": "default", "name": name, **({"uid": uid} if uid else {})}
        body = {"metadata": {"name": name, "finalizers": ["example.com/x"]}, "spec": {**spec, "volumeSnapshotRef": ref}}
        await kube.create(SNAPSHOT_CONTENTS, body)
    source = {"spec": {"source": {"persistentVolumeClaimName": "data"}}}
    made = await kube.create(kinds.SNAPSHOTS, {"metadata": {"name": "s"}, **source}, "default")
    ref = {"namespace": "default", "name": "s", "uid": made.metadata.uid}
    await kube.create(SNAPSHOT_CONTENTS, {"metadata": {"name": "used"}, "spec": {**spec, "volumeSnapshotRef": ref}})
    await kube.delete(SNAPSHOT_CONTENTS, "going")
    await registry.look()
    assert await registry.owner(_volume("snapshot-u1", snapshot_of="pool/v")) is Owner.CONTENT
    assert await registry.owner(_volume("snapshot-u9", snapshot_of="pool/v")) is Owner.NOBODY
    assert [content.metadata.name for content in registry.without_snapshot] == ["kept"]


def test_an_adopted_snapshot_is_its_node_s() -> None:
    found = orphans.snapshot_content(
        _volume("s", snapshot_of="pool/v", node="n1"), name="a", namespace="b", block=False
    )
    assert found["metadata"] == {"name": "a", "labels": {MANAGED_BY: "n1"}}


async def test_a_persistent_volume_of_another_node_may_have_its_name(kube: Client, registry: Registry) -> None:
    here, there = (_volume(topology={names.TOPOLOGY_NODE: node}) for node in ("node-1", "node-2"))
    await kube.create(kinds.VOLUMES, orphans.persistent_volume(there, name="theirs", storage_class="", block=False))
    await registry.look()

    assert await registry.owner(here) is Owner.NOBODY
    assert await registry.owner(there) is Owner.VOLUME


@pytest.mark.parametrize("status", [{}, {"volumeSnapshotInfoList": [{"snapshotHandle": "pool/other-name"}]}])
async def test_a_snapshot_of_a_group_belongs_to_its_content(
    kube: Client, registry: Registry, status: dict[str, Any]
) -> None:
    """Also while the agent has not reported it, and while its own content is not made."""
    uid = "01234567-89ab-cdef-0123-456789abcdef"
    ref = {"name": "g", "namespace": "default", "uid": uid}
    spec = {
        "driver": names.DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandles": ["pool/v"]},
        "volumeGroupSnapshotRef": ref,
    }  # fmt: skip
    made = await kube.create(kinds.GROUP_CONTENTS, {"metadata": {"name": "content"}, "spec": spec})
    await kube.patch(kinds.GROUP_CONTENTS, made.metadata.name, {"status": status}, subresource="status")
    await registry.look()
    member = "other-name" if status else f"groupsnapshot-{uid}-0123456789ab"
    assert await registry.owner(_volume(member, snapshot_of="pool/v")) is Owner.CONTENT
    stranger = "groupsnapshot-11234567-89ab-cdef-0123-456789abcdef-0123456789ab"
    assert await registry.owner(_volume(stranger, snapshot_of="pool/v")) is Owner.NOBODY


def _restored() -> tuple[dict[str, Any], dict[str, Any]]:
    """The PV and the claim of trash."""
    spec = {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
        "csi": {"driver": names.DRIVER, "volumeHandle": "p/v"}, "claimRef": {"namespace": "default", "name": "data"},
    }  # fmt: skip
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": spec}
    wanted = {"accessModes": ["ReadWriteOnce"], "volumeName": "v", "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "data", "namespace": "default"}, "spec": {**wanted, "storageClassName": ""}}
    return volume, claim


async def test_a_restore_that_fails_for_good_leaves_no_volume_that_a_claim_could_bind(kube: Client) -> None:
    registry = Registry(kube, RealClock())

    async def full() -> None:
        raise CsiError(Code.RESOURCE_EXHAUSTED, "pool p has 0 free bytes")

    with pytest.raises(CsiError, match="0 free bytes"):
        await registry.restore(*_restored(), full)
    assert all(one.metadata.deleting for one in (await kube.list(kinds.VOLUMES)).items), "its protection goes by itself"


@pytest.mark.parametrize(
    "failure", [UnavailableError("the driver went away"), CsiError(Code.DEADLINE_EXCEEDED, "context deadline exceeded")]
)
async def test_a_restore_without_an_answer_is_repeated_over_its_objects(kube: Client, failure: TonnageError) -> None:
    registry, calls = Registry(kube, RealClock()), list[str]()

    async def restore() -> None:
        calls.append("")
        if len(calls) == 1:
            raise failure

    with pytest.raises(type(failure)):
        await registry.restore(*_restored(), restore)
    (before,) = (await kube.list(kinds.VOLUMES)).items
    await registry.restore(*_restored(), restore)
    assert (await kube.get(kinds.VOLUMES, "v")).metadata.uid == before.metadata.uid
    assert (await kube.get(kinds.CLAIMS, "data", "default")).spec.volume_name == "v"
