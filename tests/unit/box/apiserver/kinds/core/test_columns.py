"""What kubectl get prints, kind by kind."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.kinds.printed import META, cells, check_columns

Obj = dict[str, Any]


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
        pytest.param("resourcequotas", "Name Request Limit Age", "", id="quotas"),
    ],
)
def test_column_names(key: str, names: str | None, wide: str) -> None:
    check_columns(key, names, wide)


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
