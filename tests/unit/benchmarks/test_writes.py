"""API writes of data services: what of an audit log is counted, and what restore and clone cost beyond a plain claim."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.data_services.writes import CLONE, GOALS, PLAIN, RESTORE, Counted, counted, figures, has_grown
from benchmarks.kubernetes.audit import Audit, Write

from tonnage.kubernetes.api.core import PersistentVolumeClaim, PersistentVolumeClaimStatus

AGENT, SNAPSHOTTER = (
    "system:serviceaccount:tonnage-system:tonnage-node",
    "system:serviceaccount:hostpath:csi-snapshotter",
)
CONTROLLER = "system:serviceaccount:hostpath:snapshot-controller"


def line(verb: str, what: str, user: str, code: int = 200, namespace: str = "") -> str:
    """As kube-apiserver 1.36 writes it, but for fields that are not read."""
    resource, _, sub = what.partition("/")
    ref = {"resource": resource, "namespace": namespace, "name": "x", "apiVersion": "v1", "resourceVersion": "7"}
    return json.dumps(
        {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "stage": "ResponseComplete",
            "verb": verb,
            "user": {"username": user, "uid": "u", "groups": ["system:authenticated"]},
            "sourceIPs": ["127.0.0.1"],
            "userAgent": "csi-snapshotter/v8 (linux/amd64) kubernetes/1",
            "objectRef": ref | ({"subresource": sub} if sub else {}),
            "responseStatus": {"metadata": {}, "code": code},
            "stageTimestamp": "2026-11-24T01:00:00.000000Z",
        }
    )


async def read(tmp_path: Path, lines: Sequence[str]) -> Sequence[Write]:
    (log := tmp_path / "audit").write_text("".join(f"{one}\n" for one in lines))
    return await Audit(log, settled=0).writes()


async def test_writes_of_a_recorded_log_are_counted_by_kind_and_account(tmp_path: Path) -> None:
    lines = [
        line("create", "volumesnapshots", "test-admin", 201),
        line("update", "volumesnapshots", CONTROLLER),
        line("update", "volumesnapshots", CONTROLLER, 409),
        line("patch", "volumesnapshotcontents/status", SNAPSHOTTER),
        line("patch", "volumesnapshotcontents/status", SNAPSHOTTER),
        line("create", "events", SNAPSHOTTER, 201),
        line("patch", "pods/status", "system:node:node-1"),
        line("patch", "csistoragecapacities", AGENT),
        line("patch", "persistentvolumeclaims/status", "system:node:node-1"),
    ]
    assert counted(await read(tmp_path, lines)) == {
        ("update volumesnapshots", "snapshot-controller"): 1,
        ("patch volumesnapshotcontents/status", "csi-snapshotter"): 2,
        ("patch persistentvolumeclaims/status", "node-1"): 1,
    }


async def test_restore_and_clone_are_counted_over_a_plain_claim(tmp_path: Path) -> None:
    plain = [line("create", "persistentvolumes", AGENT), line("patch", "persistentvolumeclaims", AGENT)]
    logs = {
        PLAIN: plain,
        "grow": [line("patch", "persistentvolumes", AGENT), line("patch", "persistentvolumeclaims/status", AGENT)],
        "snapshot": [line("patch", "volumesnapshotcontents/status", AGENT), line("create", "events", AGENT)],
        "delete a snapshot": [line("patch", "volumesnapshotcontents", AGENT)],
        RESTORE: plain,
        CLONE: [*plain, line("update", "persistentvolumeclaims", AGENT)],
    }
    one = Counted(growths=[0.1])
    for flow, lines in logs.items():
        one.add(flow, await read(tmp_path, lines))
    assert [one.total(flow) for flow in GOALS] == [2, 1, 1, 0, 1]
    assert one.total_events("snapshot") == 1
    assert one.kinds("grow") == {
        ("patch persistentvolumeclaims/status", "tonnage-node"): 1,
        ("patch persistentvolumes", "tonnage-node"): 1,
    }
    found = {figure.name: figure for figure in figures({"tonnage": one, "upstream": one})}
    assert not found["grow: writes, tonnage"].missed
    assert found[f"{CLONE}: writes, tonnage"].missed
    assert found["snapshot, upstream: patch volumesnapshotcontents/status by tonnage-node"].value == 1


@pytest.mark.parametrize(
    ("status", "holds"),
    [
        (PersistentVolumeClaimStatus(capacity={"storage": "2Gi"}), True),
        (PersistentVolumeClaimStatus(capacity={"storage": "1Gi"}), False),
        (
            PersistentVolumeClaimStatus(capacity={"storage": "2Gi"}, conditions=[{"type": "FileSystemResizePending"}]),
            False,
        ),
        (
            PersistentVolumeClaimStatus(
                capacity={"storage": "2Gi"}, allocated_resource_statuses={"storage": "NodeResizePending"}
            ),
            False,
        ),
    ],
)
def test_a_growth_is_over_when_nothing_is_left_to_do(status: PersistentVolumeClaimStatus, holds: bool) -> None:
    assert has_grown(PersistentVolumeClaim(status=status)) == holds
