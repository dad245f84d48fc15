from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]
KEY = "persistentvolumes"
CSI = {"driver": "csi.tonnage.dev", "volumeHandle": "h"}
ON_NODE = {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "In", "values": ["a"]}]}]}}


def volume(**spec: Any) -> Obj:
    wanted = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "csi": CSI, "nodeAffinity": ON_NODE}
    return {"metadata": {"name": "v"}, "spec": {k: v for k, v in (wanted | spec).items() if v is not None}}


def test_a_good_volume_passes(faults: Faults) -> None:
    assert faults(KEY, volume()) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(volume(accessModes=None), "spec.accessModes: Required value", id="no access mode"),
        pytest.param(volume(capacity=None), "spec.capacity: Required value", id="no capacity"),
        pytest.param(
            volume(capacity={"storage": "0"}),
            'spec.capacity[storage]: Invalid value: "0": must be greater than zero',
            id="capacity 0",
        ),
        pytest.param(
            volume(persistentVolumeReclaimPolicy="Burn"),
            'spec.persistentVolumeReclaimPolicy: Unsupported value: "Burn": supported values: "Delete", "Recycle", '
            '"Retain"',
            id="unknown reclaim policy",
        ),
        pytest.param(volume(csi=None), "spec: Required value: must specify a volume type", id="no source"),
        pytest.param(
            volume(hostPath={"path": "/x"}),
            "spec.hostPath: Forbidden: may not specify more than 1 volume type",
            id="two sources",
        ),
        pytest.param(volume(csi={"driver": "d"}), "spec.csi.volumeHandle: Required value", id="csi without a handle"),
        pytest.param(
            volume(csi=None, local={"path": "/mnt"}, nodeAffinity=None),
            "spec.nodeAffinity: Required value: Local volume requires node affinity",
            id="local on no node",
        ),
        pytest.param(
            volume(nodeAffinity={}),
            "spec.nodeAffinity.required: Required value: must specify required node constraints",
            id="affinity of nothing",
        ),
    ],
)
def test_a_wrong_volume_is_told_what_is_wrong(faults: Faults, wrong: Obj, said: str) -> None:
    assert any(said in fault for fault in faults(KEY, wrong))


def test_a_volume_type_of_another_system_is_accepted(faults: Faults) -> None:
    assert faults(KEY, volume(csi=None, nfs={"server": "s", "path": "/p"})) == []


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(volume(claimRef={"namespace": "n", "name": "c", "uid": "u"}), id="claimRef"),
        pytest.param(volume(capacity={"storage": "2Gi"}), id="capacity"),
        pytest.param(volume(persistentVolumeReclaimPolicy="Delete"), id="reclaim policy"),
        pytest.param(
            volume(csi=CSI | {"controllerExpandSecretRef": {"name": "s", "namespace": "n"}}), id="expand secret added"
        ),
    ],
)
def test_what_may_change(faults: Faults, new: Obj) -> None:
    assert faults(KEY, new, volume()) == []


def test_node_affinity_may_be_set_once(faults: Faults) -> None:
    assert faults(KEY, volume(), volume(nodeAffinity=None)) == []


@pytest.mark.parametrize(
    ("new", "said"),
    [
        pytest.param(
            volume(csi=CSI | {"volumeHandle": "other"}),
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation",
            id="handle",
        ),
        pytest.param(volume(volumeMode="Block"), "volumeMode: Invalid value", id="volumeMode"),
        pytest.param(volume(nodeAffinity=None), "nodeAffinity: Invalid value: null: field is immutable", id="affinity"),
    ],
)
def test_what_may_not_change(faults: Faults, new: Obj, said: str) -> None:
    assert any(fault.startswith(said) for fault in faults(KEY, new, volume()))
