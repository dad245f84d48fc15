"""What a user reads who asked for something that cannot be: the cause, where kubectl shows it first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
DRIVER = "csi.tonnage.dev"
CLASSES: dict[str, dict[str, Any]] = {
    "bad-pool": {"parameters": {"pool": "nope"}},
    "bad-key": {"parameters": {"colour": "blue"}},
    "bad-fstype": {"parameters": {"csi.storage.k8s.io/fstype": "zfs"}},
    "bad-option": {"mountOptions": ["usrquota"]},
    "bad-pool-now": {"parameters": {"pool": "nope"}, "volumeBindingMode": "Immediate"},
    "theirs": {"provisioner": "csi.example.com"},
}
FAULTY = "0/3 nodes are available: 3 node(s) could not make volumes of the StorageClass."
FULL = "0/3 nodes are available: 3 node(s) did not have enough free storage."
UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
RWX = "access mode MULTI_NODE_MULTI_WRITER (ReadWriteMany) is not possible: one node at a time uses a volume; use ReadWriteOnce"


def claim_spec(size: str = "1Gi", **more: Any) -> dict[str, Any]:
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **more}


def pod(name: str, **volumes: dict[str, Any]) -> dict[str, Any]:
    """A pod; volumes as claim specs (ephemeral) or whole volume sources."""
    sources = [{"name": v, **(s if "csi" in s else ephemeral(s))} for v, s in volumes.items()]
    mounts = [{"name": v, "mountPath": f"/{v}"} for v in volumes]
    container = {"name": "main", "image": "none", "command": ["sleep", "1000"], "volumeMounts": mounts}
    spec = {"containers": [container], "volumes": sources, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def ephemeral(spec: dict[str, Any]) -> dict[str, Any]:
    return {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}


def inline(driver: str = DRIVER, *, fstype: str = "", **attributes: str) -> dict[str, Any]:
    return {"csi": {"driver": driver, "volumeAttributes": attributes, **({"fsType": fstype} if fstype else {})}}


@pytest.fixture(scope="module")
def stage(cluster: Any) -> Iterator[Any]:
    """A cluster with classes that cannot be served."""
    for name, body in CLASSES.items():
        late = {"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer", **body}
        create(cluster, {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, **late})
    yield cluster
    cluster.kubectl("delete", "sc", *CLASSES)


@pytest.fixture
def world(stage: Any) -> Iterator[Any]:
    """The same; no pod or claim is left by a test."""
    yield stage
    stage.kubectl("delete", "pods,pvc", "--all", "--timeout=300s")
    stage.until("all room is back", lambda: set(stage.capacities().values()) == {"30716Mi"})


def create(cluster: Any, *objects: dict[str, Any], fails: bool = False) -> str:
    text = "\n---\n".join(json.dumps(obj) for obj in objects)
    return str(cluster.kubectl("create", "-f", "-", stdin=text, fails=fails))


def shows(cluster: Any, kind: str, name: str, *texts: str) -> None:
    """kubectl describe comes to show all these texts."""

    def all_there() -> bool:
        described = cluster.kubectl("describe", kind, name)
        return all(text in described for text in texts)

    cluster.until(f"describe {kind} {name} shows {texts}", all_there)


@pytest.mark.parametrize(
    ("storage_class", "on_pod"),
    [
        ("bad-pool", f"{FAULTY} StorageClass \"bad-pool\": there is no pool 'nope' (there is scratch)."),
        ("bad-key", f"{FAULTY} StorageClass \"bad-key\": unknown parameter 'colour': pool scratch takes"),
        ("bad-fstype", f"{FAULTY} StorageClass \"bad-fstype\": file system 'zfs' is not offered by pool scratch"),
        ("bad-option", f"{FAULTY} StorageClass \"bad-option\": mount option 'usrquota' is not allowed"),
        ("bad-pool-now", f"{UNBOUND} StorageClass \"bad-pool-now\": there is no pool 'nope' (there is scratch)."),
        ("nosuch", f'{UNBOUND} StorageClass "nosuch": there is no such class.'),
        ("theirs", 'claim app-v: no node has a CSI driver "csi.example.com"; start it, or correct the provisioner'),
        ("tonnage-scratch", FULL),
    ],
)
def test_a_class_that_cannot_serve_a_pod(world: Any, storage_class: str, on_pod: str) -> None:
    size = "100Gi" if storage_class == "tonnage-scratch" else "1Gi"
    create(world, pod("app", v=claim_spec(size, storageClassName=storage_class)))

    shows(world, "pod", "app", on_pod)


@pytest.mark.parametrize("storage_class", ["bad-pool", "bad-key", "bad-fstype", "bad-option", "bad-pool-now"])
def test_the_class_says_it_too_and_once(stage: Any, storage_class: str) -> None:
    shows(stage, "sc", storage_class, "InvalidParameters", "can make no volumes of this class: ")
    events = stage.get("events", "--field-selector", f"involvedObject.name={storage_class}")["items"]

    assert [event["reason"] for event in events] == ["InvalidParameters"]


@pytest.mark.parametrize(
    ("name", "spec", "text"),
    [
        ("unknown", {"storageClassName": "nosuch"}, 'storageclass.storage.k8s.io "nosuch" not found'),
        ("pool", {"storageClassName": "bad-pool-now"}, "no node can make a volume of class bad-pool-now: there is no"),
        ("rwx", {"storageClassName": "tonnage-immediate", "accessModes": ["ReadWriteMany"]}, RWX),
        (
            "large",
            {"storageClassName": "tonnage-immediate", "size": "100Gi"},
            "insufficient storage for 100Gi of class",
        ),
        ("theirs", {"storageClassName": "theirs"}, "waiting for first consumer to be created before binding"),
    ],
)
def test_a_claim_says_why_it_is_pending(world: Any, name: str, spec: dict[str, Any], text: str) -> None:
    body = claim_spec(spec.pop("size", "1Gi"), **spec)
    create(world, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": body})

    shows(world, "pvc", name, text)


def test_one_impossible_volume_of_two(world: Any) -> None:
    create(world, pod("app", good=claim_spec("2Gi"), bad={**claim_spec(), "accessModes": ["ReadWriteMany"]}))

    shows(world, "pod", "app", "claim app-bad: failed to provision volume", RWX)
    shows(world, "pvc", "app-bad", RWX)
    shows(world, "pvc", "app-good", "no volume is made while claim app-bad of the same pod cannot have one")
    world.until("no room is held for it", lambda: set(world.capacities().values()) == {"30716Mi"})
    assert world.get("pv")["items"] == []


@pytest.mark.parametrize(
    ("volume", "text"),
    [
        (inline(), "volumeAttributes: 'size' is missing: an inline volume needs a size, such as \"4Gi\""),
        (inline(size="lots"), "volumeAttributes: size: 'lots' is not a quantity"),
        (inline(size="0"), "volumeAttributes: size='0': want more than 0"),
        (inline(size="1Gi", pool="nope"), "volumeAttributes: there is no pool 'nope' (there is scratch)"),
        (inline(size="1Gi", colour="blue"), "volumeAttributes: unknown parameter 'colour'"),
        (inline(size="1Gi", fstype="zfs"), "file system 'zfs' is not offered by pool scratch: it has ext4"),
        (inline("csi.example.com", size="1Gi"), "not supported by driver csi.example.com (no CSIDriver object)"),
    ],
)
def test_an_inline_volume_that_cannot_be(world: Any, volume: dict[str, Any], text: str) -> None:
    create(world, pod("app", v=volume))

    shows(world, "pod", "app", "FailedMount", 'MountVolume.SetUp failed for volume "v" : ', text)


def test_an_inline_volume_that_is_too_large_for_every_node(world: Any) -> None:
    create(world, pod("app", v=inline(size="100Gi")))

    text = "0/3 nodes are available: 3 node(s) did not have enough free storage for inline volumes."
    shows(world, "pod", "app", "FailedScheduling", text)


@pytest.mark.parametrize(
    ("size", "text"),
    [("0", "must be greater than zero"), ("-1Gi", "must be greater than zero"), ("lots", "quantities must match")],
)
def test_a_size_that_is_none_is_rejected_at_once(stage: Any, size: str, text: str) -> None:
    assert text in create(stage, pod("app", v=claim_spec(size)), fails=True)
