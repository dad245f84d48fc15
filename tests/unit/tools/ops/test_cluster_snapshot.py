"""Snapshot of a cluster, read from an API server in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.unit.tools.ops.doctor.ward import NOW

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.tools.ops import cluster_snapshot
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store


@pytest.fixture
async def kube() -> AsyncIterator[Client]:
    """A client of a server that serves no policies, no DaemonSets and no reviews about others, as a box."""
    server = ApiServer(Store(extractor()))
    await server.start()
    yield Client(server.transport("system:admin"))
    await server.stop()


async def test_what_is_read(kube: Client) -> None:
    await kube.create(kinds.NODES, {"metadata": {"name": "n1"}})
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": "sys"}})
    labels = {"app.kubernetes.io/name": "tonnage", "app.kubernetes.io/component": "node"}
    for name, text in (("good", "pools: [{name: a, kind: image}]\nscope: all"), ("bad", "pools: 3"), ("worse", "{")):
        body = {"metadata": {"name": name, "labels": labels}, "data": {"node.yaml": text}}
        await kube.create(kinds.CONFIG_MAPS, body, "sys")
    late = {"provisioner": names.DRIVER, "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    await kube.create(kinds.STORAGE_CLASSES, {"metadata": {"name": "fast"}, **late})
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}
    claim = await kube.create(kinds.CLAIMS, {"metadata": {"name": "c"}, "spec": spec}, "sys")
    about = {"kind": "PersistentVolumeClaim", "name": "c", "namespace": "sys", "uid": claim.metadata.uid}
    event = {"metadata": {"name": "e"}, "involvedObject": about, "type": "Warning", "message": "no"}
    await kube.create(kinds.EVENTS, event, "sys")

    found = await cluster_snapshot.read(kube, "sys", now=NOW)

    assert found.node_names == {"n1"}
    assert "storage.k8s.io/v1/csistoragecapacities" in found.served
    assert isinstance(found.files["good"], dict)
    assert found.scopes() == {"all"}
    assert isinstance(found.files["bad"], str)
    assert isinstance(found.files["worse"], str)
    assert [e.message for e in found.events[claim.metadata.uid]] == ["no"]
    assert [c.metadata.name for c in found.our_claims] == ["c"]


async def test_snapshots_are_read_where_they_are_served(kube: Client) -> None:
    made = {"driver": names.DRIVER, "deletionPolicy": "Delete"}
    await kube.create(kinds.SNAPSHOT_CLASSES, {"metadata": {"name": "tonnage"}, **made})
    source = {"persistentVolumeClaimName": "data"}
    await kube.create(kinds.SNAPSHOTS, {"metadata": {"name": "s"}, "spec": {"source": source}}, "default")
    ref = {"name": "s", "namespace": "default"}
    for name, driver in (("c1", names.DRIVER), ("c2", "csi.example.com")):
        spec = {
            "driver": driver,
            "source": {"snapshotHandle": "x"},
            "volumeSnapshotRef": ref,
            "deletionPolicy": "Retain",
        }
        await kube.create(kinds.SNAPSHOT_CONTENTS, {"metadata": {"name": name}, "spec": spec})

    found = await cluster_snapshot.read(kube, "sys", now=NOW)

    assert [one.metadata.name for one in found.snapshot_classes] == ["tonnage"]
    assert [one.metadata.name for one in found.snapshots] == ["s"]
    assert (len(found.contents), [one.metadata.name for one in found.our_contents]) == (2, ["c1"])
    assert not found.unreadable
