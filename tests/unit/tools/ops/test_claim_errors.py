"""What is wrong with a claim or its class, whatever node is looked at."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.json import encode

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Event, PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import (
    CAPACITIES,
    CLAIMS,
    EVENTS,
    SNAPSHOT_CONTENTS,
    SNAPSHOTS,
    STORAGE_CLASSES,
    VOLUMES,
)
from tonnage.kubernetes.api.origin import Origin, origin_of
from tonnage.kubernetes.api.snapshot import MANAGED_BY
from tonnage.kubernetes.api.storage import CSIStorageCapacity, StorageClass
from tonnage.tools.ops.claim_errors import ClaimObjects, faults_of, said_of

SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
COPY = {"kind": "PersistentVolumeClaim", "name": "a"}


def claim(name: str = "c", size: str = "1Gi", *, node: str = "", bound: str = "", **spec: Any) -> PersistentVolumeClaim:
    notes = {names.SELECTED_NODE: node} if node else {}
    notes |= {names.BIND_COMPLETED: "yes"} if bound else {}
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": notes}
    spec = {"storageClassName": "late", "accessModes": ["ReadWriteOnce"], "volumeName": bound, **spec}
    spec["resources"] = {"requests": {"storage": size}}
    status = {"phase": "Bound" if bound else "Pending"}
    return CLAIMS.decode(encode({"metadata": meta, "spec": spec, "status": status}))


def volume(name: str, size: str = "1Gi", *, claimed: str = "", **spec: Any) -> PersistentVolume:
    spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "late", **spec}
    spec.setdefault("csi", {"driver": names.DRIVER, "volumeHandle": name})
    if claimed:
        spec["claimRef"] = {"namespace": "ns", "name": claimed}
    status = {"phase": "Bound" if claimed else "Available"}
    return VOLUMES.decode(encode({"metadata": {"name": name}, "spec": spec, "status": status}))


def classes(**parameters: str) -> dict[str, StorageClass]:
    """late and now are ours, theirs is not; wrong has these parameters."""
    late = {"volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    bodies: dict[str, Any] = {
        "late": {"provisioner": names.DRIVER, **late},
        "now": {"provisioner": names.DRIVER, "volumeBindingMode": "Immediate"},
        "theirs": {"provisioner": "csi.example.com", **late},
        "by-hand": {"provisioner": names.NO_PROVISIONER, **late},
        "wrong": {"provisioner": names.DRIVER, "parameters": parameters, **late},
    }
    made = [{"metadata": {"name": name, "uid": f"uid-{name}"}, **body} for name, body in bodies.items()]
    return {c.metadata.name: c for c in (STORAGE_CLASSES.decode(encode(body)) for body in made)}


def capacity(storage_class: str, reason: str) -> CSIStorageCapacity:
    notes = {names.REASON: reason} if reason else {}
    body = {"metadata": {"annotations": notes}, "storageClassName": storage_class, "nodeTopology": {}}
    return CAPACITIES.decode(encode(body))


def event(reason: str, message: str, *, second: int = 0, type_: str = "Warning") -> Event:
    at = f"2026-01-01T00:00:{second:02}Z"
    return EVENTS.decode(encode({"type": type_, "reason": reason, "message": message, "lastTimestamp": at}))


def objects(*claims: PersistentVolumeClaim, **more: Any) -> ClaimObjects:
    known = {c.key: c for c in claims}
    registered = more.pop("registered", (names.DRIVER,))
    found = more.pop("classes", classes())
    volumes = {v.metadata.name: v for v in more.get("volumes", [])}
    snapshots = {s.key: s for s in more.pop("snapshots", ())}
    contents = {c.key: c for c in more.pop("contents", ())}

    def origin(of: PersistentVolumeClaim) -> Origin | None:
        return origin_of(of, known.get, volumes.get, snapshots.get, contents.get)

    return ClaimObjects(
        origin, more.pop("volumes", []), found.get, more.pop("capacities", []), registered.__contains__, **more
    )


def texts(*claims: PersistentVolumeClaim, **more: Any) -> list[str]:
    found = faults_of(claims, more.pop("objects", None) or objects(*claims, **more))
    assert all(lack.todo for lack in found)
    return [lack.text for lack in found]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"accessModes": ["ReadWriteMany"]}, "access mode ReadWriteMany is not possible: local volumes live on one node"),
        ({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}, "access mode ReadOnlyMany is not possible: local volumes"),
        ({"storageClassName": "theirs"}, 'StorageClass theirs: no node has a CSI driver "csi.example.com"'),
        ({"storageClassName": "nosuch"}, "there is no StorageClass nosuch"),
        ({"dataSourceRef": SNAPSHOT}, "it is to restore a snapshot, and snapshot s does not exist"),
        ({"dataSourceRef": {**SNAPSHOT, "namespace": "far"}}, "its data source, snapshot s, is in namespace far"),
        ({"dataSourceRef": {**COPY, "namespace": "far"}}, "its data source, claim a, is in namespace far"),
        ({"dataSourceRef": COPY}, "it is to be a copy, and claim a does not exist"),
        ({"dataSourceRef": {"apiGroup": "x.org", "kind": "Hello", "name": "h"}}, "a volume populator for Hello.x.org"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "spec.selector is not supported"),
    ],
)  # fmt: skip
def test_faults_of_a_claim(spec: dict[str, Any], text: str) -> None:
    (found,) = texts(claim(**spec))
    assert found.startswith(f"claim c: {text}")


@pytest.mark.parametrize(
    "spec",
    [{}, {"storageClassName": "now"}, {"storageClassName": "by-hand"}, {"accessModes": ["ReadWriteOncePod"]}],
)
def test_a_claim_without_fault(spec: dict[str, Any]) -> None:
    assert texts(claim(**spec)) == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (volume("v", "2Gi", claimed="a"), "requested size 1Gi is smaller than the source volume v (2Gi)"),
        (
            volume("v", claimed="a", volumeMode="Block"),
            "requested volume mode Filesystem differs from that of the source volume v",
        ),
        (volume("v", claimed="a", csi={"driver": "d", "volumeHandle": "v"}), "the source volume v is not of driver"),
        (volume("v", claimed="a"), ""),
    ],
)
def test_faults_of_a_copy(source: PersistentVolume, text: str) -> None:
    copy, original = claim(dataSource=COPY), claim("a", bound="v")
    found = texts(copy, objects=objects(copy, original, volumes=[source]))
    if not text:
        assert found == []
    else:
        assert found[0].startswith(f"claim c: {text}")


def test_a_copy_of_a_claim_of_the_same_pod_waits_for_it() -> None:
    copy, original = claim(dataSource=COPY), claim("a")
    world = objects(copy, original)
    assert texts(copy, original, objects=world) == []
    assert texts(copy, objects=world) == ["claim c: it is to be a copy, and claim a is not bound yet"]


@pytest.mark.parametrize(
    ("content", "nodes", "text"),
    [
        ({}, ["n3"], ""),
        ({}, ["n1"], "snapshot ns/s lies on node n3, which is gone"),
        ({"ready": False}, ["n3"], "it is to restore a snapshot, and snapshot s is not ready yet"),
        ({"size": 2 << 30}, ["n3"], "requested volume size 1Gi is less than the size 2Gi for the source snapshot s"),
        ({"driver": "other.example"}, ["n3"], "snapshot s is of driver other.example"),
        ({"mode": "Block"}, ["n3"], "requested volume ns/c modifies the mode of the source volume"),
    ],
)
def test_faults_of_a_restored_snapshot(content: dict[str, Any], nodes: list[str], text: str) -> None:
    more = {"size": 1 << 30, "driver": names.DRIVER, "mode": "Filesystem", "ready": True, **content}
    body = {
        "metadata": {"name": "snapcontent-u", "labels": {MANAGED_BY: "n3"}},
        "spec": {
            "driver": more["driver"],
            "source": {"volumeHandle": "p/v"},
            "sourceVolumeMode": more["mode"],
            "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "u"},
        },
        "status": {"readyToUse": more["ready"], "restoreSize": more["size"], "snapshotHandle": "p/s"},
    }
    snapshot = {"metadata": {"name": "s", "namespace": "ns", "uid": "u"}, "status": {"readyToUse": more["ready"]}}
    found = texts(
        claim(dataSourceRef=SNAPSHOT),
        snapshots=[SNAPSHOTS.decode(encode(snapshot))],
        contents=[SNAPSHOT_CONTENTS.decode(encode(body))],
        nodes=nodes,
    )
    assert found == [] if not text else found[0].startswith(f"claim c: {text}")


@pytest.mark.parametrize(
    ("parameters", "reasons", "text"),
    [
        ({names.PARAMETER_PREFIX + "nope": "x"}, [], "unknown parameter"),
        ({"colour": "blue"}, ["unknown parameter 'colour'"] * 2, "unknown parameter 'colour'"),
        ({"pool": "a"}, ["there is no pool 'a'", ""], ""),
        ({"pool": "disks"}, [names.AHEAD], ""),
        ({}, [], ""),
    ],
)
def test_faults_of_a_class(parameters: dict[str, str], reasons: list[str], text: str) -> None:
    published = [capacity("wrong", reason) for reason in reasons]
    found = texts(claim(storageClassName="wrong"), classes=classes(**parameters), capacities=published)
    if not text:
        assert found == []
    else:
        assert found[0].startswith(f"claim c: StorageClass wrong: {text}")


def test_a_claim_that_a_volume_can_serve_has_no_fault() -> None:
    """Its class need not exist, and its access mode is the volume's affair."""
    manual = {"storageClassName": "manual"}
    assert texts(claim(**manual), volumes=[volume("v", **manual)]) == []
    assert texts(claim(**manual), volumes=[volume("v", claimed="c", **manual)]) == []
    small = [volume("v", "1Mi", **manual)]
    assert texts(claim(**manual), volumes=small) == [
        "claim c: no PersistentVolume of class manual fits it, and there is no such StorageClass"
    ]
    shared: dict[str, Any] = {"accessModes": ["ReadWriteMany"]}
    assert texts(claim(**shared), volumes=[volume("v", **shared)]) == []
    assert texts(claim(bound="v", **shared)) == []


def test_what_events_say_counts_where_nothing_else_does() -> None:
    """The last word, on a claim that was sent to a node or whose class binds at once."""
    told = {"uid-c": [event("ProvisioningFailed", "no\nluck", second=2), event("Provisioning", "x", second=1)]}
    assert texts(claim(node="n"), events=told) == ["claim c: no luck"]
    assert texts(claim(storageClassName="now"), events=told) == ["claim c: no luck"]
    assert texts(claim(), events=told) == [], "a scheduler chooses, by what nodes have now"
    waits = {"uid-c": [*told["uid-c"], event("ExternalProvisioning", "waiting", second=4, type_="Normal")]}
    assert texts(claim(node="n"), events=waits) == ["claim c: no luck"]
    later = {"uid-c": [*told["uid-c"], event("Provisioning", "at work", second=3, type_="Normal")]}
    assert texts(claim(node="n"), events=later) == []
    (fault,) = texts(claim(node="n", accessModes=["ReadWriteMany"]), events=told)
    assert "ReadWriteMany" in fault


def test_events_of_claims_and_classes_are_shown() -> None:
    told = {
        "uid-c": [event("ProvisioningFailed", "old", second=1), event("ProvisioningFailed", "new", second=2)],
        "uid-wrong": [event("InvalidParameters", "no such pool")],
        "uid-b": [event("ProvisioningFailed", "bound since")],
    }
    waiting, bound = claim(storageClassName="wrong"), claim("b", bound="v")
    found = said_of([waiting, bound], objects(waiting, bound, events=told))
    assert [(said.about, said.reason, said.message) for said in found] == [
        ("claim c", "ProvisioningFailed", "new"),
        ("class wrong", "InvalidParameters", "no such pool"),
    ]
