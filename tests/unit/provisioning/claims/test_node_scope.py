"""Objects of a node, the pool of a class, and the claim of a volume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tonnage.base.errors import PreconditionError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import CreatedVolume
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.provisioning.claims.node_scope import (
    CapacitySource,
    DriverInfo,
    NodeScope,
    check_owner,
    claim_uid,
    is_ephemeral,
    pod_owner,
    provisioner_of,
)

SCOPE = NodeScope("node-1", "cluster-1")
POOLS = {"scratch": "image", "disks": "static", "fast": "lvm"}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "app", "uid": "pod-1", "controller": True}


def _driver(default_pool: str = "scratch") -> DriverInfo:
    nowhere = CsiClient(Path("/nowhere"))
    nothing = frozenset[str]()
    return DriverInfo(nowhere, "d", default_pool, nothing, nothing, {names.TOPOLOGY_NODE: "node-1"}, "id", POOLS)


def _class(**parameters: str) -> StorageClass:
    return msgspec.convert({"metadata": {"name": "c"}, "provisioner": "d", "parameters": parameters}, StorageClass)


def _claim(**metadata: Any) -> PersistentVolumeClaim:
    body = {"metadata": {"name": "app-data", "namespace": "ns", "uid": "u-1", **metadata}}
    return msgspec.convert(body, PersistentVolumeClaim)


@pytest.mark.parametrize(
    ("parameters", "pool"),
    [({}, "scratch"), ({"pool": "fast"}, "fast"), ({"kind": "lvm"}, "fast"), ({"kind": "image"}, "scratch")],
)
def test_the_pool_of_a_class(parameters: dict[str, str], pool: str) -> None:
    driver = _driver()
    assert driver.pool(_class(**parameters)) == pool
    assert driver.source(_class(**parameters)) == CapacitySource("d", "c", f"pool/{pool}")
    assert not driver.publishes_ahead(_class(**parameters))


def test_a_driver_without_named_pools_is_one_pool() -> None:
    assert _driver("").source(_class(pool="fast")) == CapacitySource("d", "c", "driver/d")
    assert _driver().publishes_ahead(_class(pool="disks"))


def test_claims_by_selected_node_and_volumes_by_label() -> None:
    assert SCOPE.has_claim(_claim(annotations={names.SELECTED_NODE: "node-1"}).metadata)
    assert not SCOPE.has_claim(_claim(annotations={names.SELECTED_NODE: "node-2"}).metadata)
    assert SCOPE.has_volume(_claim(labels={names.NODE_LABEL: "node-1"}).metadata)
    assert not SCOPE.has_volume(_claim().metadata)
    assert SCOPE.selector == f"{names.NODE_LABEL}=node-1"


@pytest.mark.parametrize(("value", "reached"), [("node-1", True), ("node-2", False)])
def test_a_pv_of_the_same_name_may_be_another_nodes(value: str, reached: bool) -> None:
    term = {"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": [value]}]}
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    volume = msgspec.convert({"metadata": {"name": "pvc-u-1"}, "spec": spec}, PersistentVolume)
    assert _driver().reaches(volume) is reached
    assert _driver().reaches(msgspec.convert({"metadata": {"name": "v"}}, PersistentVolume))


def test_the_driver_that_shall_provision() -> None:
    assert provisioner_of(_claim()) == ""
    assert provisioner_of(_claim(annotations={names.BETA_STORAGE_PROVISIONER: "old"})) == "old"
    both = {names.STORAGE_PROVISIONER: "new", names.BETA_STORAGE_PROVISIONER: "old"}
    assert provisioner_of(_claim(annotations=both)) == "new"


def test_an_ephemeral_claim_has_a_pod() -> None:
    pod = msgspec.convert({"metadata": {"name": "app", "namespace": "ns", "uid": "pod-1"}}, Pod)
    ours, plain = _claim(ownerReferences=[OWNER]), _claim()
    assert (is_ephemeral(ours), is_ephemeral(plain)) == (True, False)
    owner = pod_owner(ours)
    assert owner is not None
    assert owner.uid == "pod-1"
    check_owner(ours, pod)
    with pytest.raises(PreconditionError, match="was not created for pod ns/app"):
        check_owner(plain, pod)
    with pytest.raises(PreconditionError, match="pod is not owner"):
        check_owner(_claim(ownerReferences=[{**OWNER, "uid": "pod-0"}]), pod)


@pytest.mark.parametrize(("name", "uid"), [("pvc-u-1", "u-1"), ("by-hand", ""), ("", "")])
def test_the_claim_that_a_volume_was_created_for(name: str, uid: str) -> None:
    assert claim_uid(CreatedVolume("scratch/x", 1, {names.CSI_PV_NAME: name})) == uid
