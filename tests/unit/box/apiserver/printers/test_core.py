"""What kubectl get prints, kind by kind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tonnage_box.apiserver.printers import table
from tonnage_box.apiserver.registry.resources import RESOURCES

Obj = dict[str, Any]
NOW = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
META = {"name": "x", "namespace": "ns", "creationTimestamp": "2026-01-01T00:55:00Z"}


def cells(key: str, obj: Obj) -> Obj:
    """Column name -> cell."""
    columns = RESOURCES[key].columns
    made = table.table(columns, [{"metadata": META} | obj], NOW, "Metadata", {})
    return dict(zip([c["name"] for c in made["columnDefinitions"]], made["rows"][0]["cells"], strict=True))


@pytest.mark.parametrize(
    ("key", "names", "wide"),
    [
        pytest.param("pods", "Name Ready Status Restarts Age", "IP|Node|Nominated Node|Readiness Gates", id="pods"),
        pytest.param(
            "nodes",
            "Name Status Roles Age Version",
            "Internal-IP|External-IP|OS-Image|Kernel-Version|Container-Runtime",
            id="nodes",
        ),
        pytest.param("storage.k8s.io/storageclasses", None, "", id="classes have no more when wide"),
        pytest.param("storage.k8s.io/csistoragecapacities", "Name StorageClassName Capacity", "", id="capacities"),
        pytest.param("resourcequotas", "Name Request Limit Age", "", id="quotas"),
    ],
)
def test_column_names(key: str, names: str | None, wide: str) -> None:
    columns = RESOURCES[key].columns
    if names is not None:
        assert [c.name for c in columns if not c.priority] == names.split()
    assert [c.name for c in columns if c.priority] == (wide.split("|") if wide else [])


CLAIM = {
    "spec": {"volumeName": "pv", "storageClassName": "fast", "volumeMode": "Filesystem"},
    "status": {"phase": "Bound", "capacity": {"storage": "4Gi"}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]},
}
VOLUME = {
    "spec": {
        "capacity": {"storage": "4Gi"},
        "accessModes": ["ReadWriteOncePod"],
        "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {"namespace": "ns", "name": "c"},
        "storageClassName": "fast",
    },
    "status": {"phase": "Bound"},
}
NODE = {
    "metadata": META | {"labels": {"node-role.kubernetes.io/worker": ""}},
    "spec": {"unschedulable": True},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "nodeInfo": {"kubeletVersion": "v1"},
    },
}
EVENT = {
    "involvedObject": {"kind": "Pod", "name": "p"},
    "reason": "Withdrawn",
    "type": "Normal",
    "message": "no room\n",
    "firstTimestamp": "2026-01-01T00:00:00Z",
    "lastTimestamp": "2026-01-01T00:59:30Z",
    "count": 3,
    "source": {"component": "tonnage", "host": "n1"},
}
DEFAULT_CLASS = {
    "metadata": META | {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "csi.tonnage.dev",
}


@pytest.mark.parametrize(
    ("key", "obj", "shown"),
    [
        pytest.param(
            "persistentvolumeclaims",
            CLAIM,
            {
                "Name": "x",
                "Status": "Bound",
                "Volume": "pv",
                "Capacity": "4Gi",
                "Access Modes": "RWO,ROX",
                "StorageClass": "fast",
                "VolumeAttributesClass": "<unset>",
                "Age": "5m",
                "VolumeMode": "Filesystem",
            },
            id="bound claim",
        ),
        pytest.param(
            "persistentvolumeclaims",
            {"metadata": META | {"deletionTimestamp": "2026-01-01T00:59:00Z"}, "status": {"phase": "Pending"}},
            {"Status": "Terminating", "Capacity": "", "Access Modes": ""},
            id="claim that goes",
        ),
        pytest.param(
            "persistentvolumes",
            VOLUME,
            {
                "Name": "x",
                "Capacity": "4Gi",
                "Access Modes": "RWOP",
                "Reclaim Policy": "Delete",
                "Status": "Bound",
                "Claim": "ns/c",
                "StorageClass": "fast",
                "VolumeAttributesClass": "<unset>",
                "Reason": "",
                "Age": "5m",
                "VolumeMode": "<unset>",
            },
            id="volume",
        ),
        pytest.param(
            "nodes",
            NODE,
            {
                "Status": "Ready,SchedulingDisabled",
                "Roles": "worker",
                "Version": "v1",
                "Internal-IP": "10.0.0.1",
                "External-IP": "<none>",
                "OS-Image": "<unknown>",
            },
            id="node",
        ),
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
        pytest.param(
            "events",
            EVENT,
            {
                "Last Seen": "30s",
                "Type": "Normal",
                "Reason": "Withdrawn",
                "Object": "pod/p",
                "Subobject": "",
                "Source": "tonnage, n1",
                "Message": "no room",
                "First Seen": "60m",
                "Count": 3,
                "Name": "x",
            },
            id="event",
        ),
        pytest.param(
            "resourcequotas",
            {"status": {"hard": {"pods": "3", "limits.cpu": "2"}, "used": {"pods": "1"}}},
            {"Request": "pods: 1/3", "Limit": "limits.cpu: 0/2"},
            id="quota",
        ),
        pytest.param(
            "secrets", {"type": "Opaque", "data": {"a": "", "b": ""}}, {"Type": "Opaque", "Data": 2}, id="secret"
        ),
        pytest.param("limitranges", {}, {"Created At": "2026-01-01T00:55:00Z"}, id="limit range"),
    ],
)
def test_cells(key: str, obj: Obj, shown: Obj) -> None:
    found = cells(key, obj)
    assert {name: found[name] for name in shown} == shown


def test_events_look_alike_from_both_versions() -> None:
    from tonnage_box.apiserver.request import event_versions

    assert cells("events.k8s.io/events", event_versions.outward(EVENT)) == cells("events", EVENT)
