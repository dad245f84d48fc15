"""Objects for tests."""

from __future__ import annotations

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.client.client import Client
from tonnage_box.testing.objects import Objects


async def test_a_scratch_pod_owns_the_claims_of_its_volumes(kube: Client) -> None:
    pod = await Objects(kube).scratch_pod("app", "1Gi", "2Gi")
    claims = (await kube.list(kinds.CLAIMS)).items
    assert {c.metadata.name: c.spec.resources.requests["storage"] for c in claims} == {"app-v0": "1Gi", "app-v1": "2Gi"}
    assert {owner.uid for c in claims for owner in c.metadata.owner_references} == {pod.metadata.uid}
    assert [volume.name for volume in pod.spec.volumes] == ["v0", "v1"]


async def test_fields_that_are_given_replace_those_that_are_filled_in(kube: Client) -> None:
    objects = Objects(kube)
    claim = await objects.claim("data", accessModes=["ReadOnlyMany"], storageClassName="late")
    volume = await objects.volume("pv", "2Gi", labels={"a": "b"}, persistentVolumeReclaimPolicy="Retain")
    pod = await objects.pod("app", claims=["data"], nodeName="node-1")
    assert (claim.spec.access_modes, claim.spec.storage_class_name) == (["ReadOnlyMany"], "late")
    assert (volume.metadata.labels, volume.spec.capacity) == ({"a": "b"}, {"storage": "2Gi"})
    assert pod.spec.node_name == "node-1"
