"""The PV of a created volume: for a claim, and pre-provisioned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tonnage.base.errors import InvalidError
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import CreatedVolume
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.matching import driver_volume
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.provisioning.claims import provisioning
from tonnage.provisioning.claims.node_scope import DriverInfo, NodeScope
from tonnage.provisioning.claims.provisioning import plan

SCOPE = NodeScope("node-1", "cluster-1")
SEGMENT = {names.TOPOLOGY_NODE: "node-1"}
CREATED = CreatedVolume("scratch/pvc-u-1", 5 << 30, {"pool": "scratch"}, (SEGMENT,))
SECRET = {f"{names.CSI_PREFIX}node-stage-secret-name": "${pvc.name}"}
SECRET[f"{names.CSI_PREFIX}node-stage-secret-namespace"] = "ns"
DRIVER = DriverInfo(CsiClient(Path("/nowhere")), "d", "scratch", frozenset(), frozenset(), SEGMENT, "id")


def _claim(**more: Any) -> PersistentVolumeClaim:
    body = {
        "metadata": {"name": "data", "namespace": "ns", "uid": "u-1", **more.pop("metadata", {})},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Gi"}}, **more},
    }
    return msgspec.convert(body, PersistentVolumeClaim)


def _class(parameters: dict[str, str] | None = None, **more: Any) -> StorageClass:
    body = {"metadata": {"name": "c"}, "provisioner": "d", "parameters": parameters or {}, **more}
    return msgspec.convert(body, StorageClass)


def _body(claim: PersistentVolumeClaim, storage_class: StorageClass) -> Any:
    request = plan(claim, storage_class, DRIVER, SCOPE)
    return provisioning.volume_of_claim(request, CREATED, claim, storage_class, DRIVER, SCOPE)


def test_the_pv_of_a_claim() -> None:
    made = _body(_claim(), _class({names.CSI_FSTYPE: "xfs", **SECRET}, mountOptions=["noatime"]))
    assert (made["metadata"]["name"], made["metadata"]["labels"]) == ("pvc-u-1", {names.NODE_LABEL: "node-1"})
    assert made["metadata"]["finalizers"] == [names.PROVISIONER_FINALIZER]
    spec = made["spec"]
    assert spec["capacity"] == {"storage": "5Gi"}, "what the driver made"
    assert (spec["claimRef"]["uid"], spec["claimRef"]["namespace"]) == ("u-1", "ns")
    assert spec["csi"] == {
        "driver": "d",
        "volumeHandle": "scratch/pvc-u-1",
        "volumeAttributes": {"pool": "scratch", names.CSI_PROVISIONER_IDENTITY: "id"},
        "fsType": "xfs",
        "nodeStageSecretRef": {"name": "data", "namespace": "ns"},
    }
    assert (spec["mountOptions"], spec["volumeMode"], spec["storageClassName"]) == (["noatime"], "Filesystem", "c")
    (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": ["node-1"]}]}


LOCALFLEX = "monostream.com/localflex-provisioner"
FLEX = replace(DRIVER, flex=names.FLEX_PROVISIONERS)


def _flex_class(provisioner: str, parameters: dict[str, str] | None = None, **more: Any) -> StorageClass:
    return msgspec.structs.replace(_class(parameters, **more), provisioner=provisioner)


@pytest.mark.parametrize(("provisioner", "driver"), names.FLEX_PROVISIONERS.items())
def test_a_class_of_a_flexvolume_provisioner_gets_a_flexvolume(provisioner: str, driver: str) -> None:
    storage_class = _flex_class(provisioner, {names.CSI_FSTYPE: "xfs", "erase": "zero"})
    request = plan(_claim(), storage_class, FLEX, SCOPE)
    assert request.parameters["erase"] == "zero"
    made = provisioning.volume_of_claim(request, CREATED, _claim(), storage_class, FLEX, SCOPE)
    spec = made["spec"]
    assert "csi" not in spec
    assert spec["flexVolume"] == {"driver": driver, "options": {"volumeHandle": "scratch/pvc-u-1"}, "fsType": "xfs"}
    assert spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert made["metadata"]["annotations"][names.PROVISIONED_BY] == provisioner
    assert made["metadata"]["finalizers"] == [names.PROVISIONER_FINALIZER]
    assert driver_volume(msgspec.convert(made, PersistentVolume)) == (names.DRIVER, "scratch/pvc-u-1")


@pytest.mark.parametrize(
    ("parameters", "fields", "text"),
    [
        ({}, {"mountOptions": ["noatime"]}, "mountOptions: not offered for FlexVolumes"),
        ({}, {"allowVolumeExpansion": True}, "allowVolumeExpansion: not offered"),
        ({names.RECLAIM_FINISHED: "true"}, {}, f"parameter {names.RECLAIM_FINISHED}: not offered"),
        ({names.ON_NODE_GONE: "release-after:1h"}, {}, f"parameter {names.ON_NODE_GONE}: not offered"),
        (SECRET, {}, "node-stage-secret-name: not offered"),
        ({"affinity": "yes"}, {}, ""),
        ({names.ROLLBACK: "true", names.UNDELETE: "1h"}, {}, ""),
    ],
)
def test_what_a_class_of_flexvolumes_cannot_have_is_rejected_by_name(
    parameters: dict[str, str], fields: dict[str, Any], text: str
) -> None:
    storage_class = _flex_class(LOCALFLEX, parameters, **fields)
    if text:
        with pytest.raises(InvalidError, match=text):
            provisioning.parameters_of(storage_class)
    else:
        assert provisioning.parameters_of(storage_class) == {}


@pytest.mark.parametrize(
    ("spec", "text"),
    [({"volumeMode": "Block"}, "volumeMode Block"), ({"volumeAttributesClassName": "fast"}, "VolumeAttributesClass")],
)
def test_what_a_claim_of_flexvolumes_cannot_have_is_rejected_by_name(spec: dict[str, Any], text: str) -> None:
    storage_class = _flex_class("tonnage.dev/flex-provisioner")
    with pytest.raises(InvalidError, match=text):
        plan(_claim(**spec), storage_class, replace(FLEX, controller=frozenset({types.MODIFY_VOLUME})), SCOPE)


def test_parameters_of_localflex_are_its_own() -> None:
    parameters = {"path": "/mnt/disks", "pool": "p"}
    assert provisioning.capacity_parameters(_flex_class(LOCALFLEX, parameters)) == {"pool": "p"}
    for provisioner in ("tonnage.dev/flex-provisioner", names.DRIVER):
        assert provisioning.capacity_parameters(_flex_class(provisioner, parameters)) == parameters


def test_raw_block_has_neither_file_system_nor_options() -> None:
    spec = _body(_claim(volumeMode="Block"), _class({names.CSI_FSTYPE: "xfs"}, mountOptions=["noatime"]))["spec"]
    assert spec["volumeMode"] == "Block"
    assert "fsType" not in spec["csi"]
    assert "mountOptions" not in spec


@pytest.mark.parametrize(
    "owners", [[], [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u", "controller": True}]]
)
@pytest.mark.parametrize(("policy", "has_finalizer"), [("Delete", True), ("Retain", False)])
def test_a_pv_whose_volume_we_delete_waits_for_us(
    policy: str, owners: list[dict[str, Any]], *, has_finalizer: bool
) -> None:
    made = _body(_claim(metadata={"ownerReferences": owners}), _class(reclaimPolicy=policy))
    assert ("finalizers" in made["metadata"]) is has_finalizer


def test_a_pre_provisioned_pv_waits_for_any_claim() -> None:
    disk = replace(CREATED, context={names.DISK: "sdb"})
    made = provisioning.volume_of_disk("disk-1", disk, _class(), DRIVER, SCOPE, fstype="ext4", block=False)
    assert "claimRef" not in made["spec"]
    assert made["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert made["spec"]["csi"]["fsType"] == "ext4"
    assert made["metadata"]["annotations"][names.DISK] == "sdb"
    assert made["metadata"]["labels"] == {names.NODE_LABEL: "node-1", names.POOL_LABEL: "scratch"}


def test_secrets_named_after_a_claim_suit_no_pre_provisioned_pv() -> None:
    provisioning.check_secrets(_class())
    with pytest.raises(InvalidError, match="cannot be filled in"):
        provisioning.check_secrets(_class(SECRET))
