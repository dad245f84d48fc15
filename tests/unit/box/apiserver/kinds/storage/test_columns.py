"""What kubectl get prints, kind by kind."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.printed import META, cells, check_columns

Obj = dict[str, Any]


@pytest.mark.parametrize(
    ("key", "names", "wide"),
    [
        pytest.param("storage.k8s.io/storageclasses", None, "", id="classes have no more when wide"),
        pytest.param("storage.k8s.io/csistoragecapacities", "Name StorageClassName Capacity", "", id="capacities"),
    ],
)
def test_column_names(key: str, names: str | None, wide: str) -> None:
    check_columns(key, names, wide)


DEFAULT_CLASS = {
    "metadata": META | {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "csi.tonnage.dev",
}


@pytest.mark.parametrize(
    ("key", "obj", "shown"),
    [
        pytest.param(
            "storage.k8s.io/storageclasses",
            DEFAULT_CLASS,
            {
                "Name": "x (default)",
                "Provisioner": "csi.tonnage.dev",
                "ReclaimPolicy": "Delete",
                "VolumeBindingMode": "Immediate",
                "AllowVolumeExpansion": False,
                "Age": "5m",
            },
            id="default class",
        ),
        pytest.param(
            "storage.k8s.io/csidrivers",
            {"spec": {"attachRequired": False, "volumeLifecycleModes": ["Persistent", "Ephemeral"]}},
            {
                "Name": "x",
                "AttachRequired": False,
                "PodInfoOnMount": False,
                "StorageCapacity": False,
                "TokenRequests": "<unset>",
                "RequiresRepublish": False,
                "Modes": "Persistent,Ephemeral",
                "Age": "5m",
            },
            id="driver",
        ),
        pytest.param(
            "storage.k8s.io/csistoragecapacities",
            {"storageClassName": "fast", "capacity": "26620Mi"},
            {"Name": "x", "StorageClassName": "fast", "Capacity": "26620Mi"},
            id="capacity",
        ),
        pytest.param("storage.k8s.io/csinodes", {"spec": {"drivers": [{}, {}]}}, {"Drivers": 2}, id="csi node"),
    ],
)
def test_cells(key: str, obj: Obj, shown: Obj) -> None:
    found = cells(key, obj)
    assert {name: found[name] for name in shown} == shown
