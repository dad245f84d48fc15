"""FlexVolume manifests in the box, by kubectl: inline and of PersistentVolumes, our driver's name and its aliases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Cluster, tonnage

from tonnage.host import mount

pytestmark = pytest.mark.real
EXAMPLE = Path(__file__).parents[2] / "examples" / "flexvolume" / "pod.yaml"


def pod(name: str, volume: dict[str, Any], *, namespace: str = "default") -> dict[str, Any]:
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["sleep", "1000"],
        "volumeMounts": [{"name": volume["name"], "mountPath": "/data"}],
    }
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 1}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def inline(driver: str = "tonnage.dev/local", name: str = "data", **options: str) -> dict[str, Any]:
    return {"name": name, "flexVolume": {"driver": driver, "options": options}}


def persistent(name: str, flex: dict[str, Any], **spec: Any) -> list[dict[str, Any]]:
    """A PersistentVolume as these drivers' provisioners wrote it, and a claim that has it."""
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "old"}
    capacity = {"storage": "64Mi"}
    volume = {**common, "capacity": capacity, "flexVolume": flex, **spec}
    claim = {**common, "resources": {"requests": capacity}, "volumeName": name}
    head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": f"{name}-claim"}, "spec": claim}
    return [{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume}, head]


def claimed(name: str) -> dict[str, Any]:
    return {"name": "data", "persistentVolumeClaim": {"claimName": f"{name}-claim"}}


def apply(box: Cluster, *objects: dict[str, Any]) -> None:
    box.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def run(box: Cluster, body: dict[str, Any]) -> None:
    apply(box, body)
    meta = body["metadata"]
    box.kubectl("wait", "-n", meta["namespace"], "--for=condition=Ready", f"pod/{meta['name']}", "--timeout=60s")


def sh(box: Cluster, name: str, script: str, namespace: str = "default") -> str:
    return box.kubectl("exec", "-n", namespace, name, "--", "sh", "-c", script).strip()


def end(box: Cluster, *names: str, namespace: str = "default") -> None:
    box.kubectl("delete", "pod", "-n", namespace, *names, "--grace-period=1", "--timeout=60s")


def said(box: Cluster, text: str) -> Callable[[], bool]:
    return lambda: text in box.kubectl("get", "events", "-A", "-o", "jsonpath={.items[*].message}")


def mounted(box: Cluster) -> list[str]:
    return [one.target for one in mount.mounts() if str(box.data) in one.target and "flexvolume" in one.target]


def volumes(box: Cluster) -> list[str]:
    """Files of the pool's volumes."""
    return sorted(path.name for path in box.data.rglob("*.img"))


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    cluster = make_cluster("--nodes", "1", "--pool", "image,size=1Gi,sparse=yes", "--compat", "flexvolume")
    cluster.up()
    yield cluster
    cluster.down("--purge")


def test_an_inline_volume_has_its_size_and_ends_with_its_pod(box: Cluster) -> None:
    run(box, pod("p", inline(size="64Mi")))
    assert "No space left on device" in sh(box, "p", "dd if=/dev/zero of=/data/full bs=1M count=100 2>&1 || true")
    kib = int(sh(box, "p", "df -k /data | tail -1 | awk '{print $2}'"))
    assert 64 << 10 <= kib < 70 << 10
    end(box, "p")
    run(box, pod("p", inline(size="64Mi")))
    assert sh(box, "p", "ls /data") in ("", "lost+found")
    end(box, "p")
    assert not [one for one in mount.mounts() if "tonnage.dev~local" in one.target and str(box.data) in one.target]


def test_the_example_runs(box: Cluster) -> None:
    box.kubectl("apply", "-f", str(EXAMPLE))
    box.kubectl("wait", "--for=condition=Ready", "pod/flexvolume", "--timeout=60s")
    end(box, "flexvolume")


@pytest.mark.parametrize(
    ("name", "flex", "spec"),
    [
        (
            "localflex",
            {
                "driver": "monostream.com/localflex",
                "options": {"path": "/var/lib/localflex", "directory": "x", "name": "localflex"},
            },
            {"persistentVolumeReclaimPolicy": "Delete"},
        ),
        (
            "elastic",
            {"driver": "volumes.k8s.elastic.co/elastic-local", "fsType": "ext4", "options": {"sizeBytes": "67108864"}},
            {},
        ),
    ],
)
def test_a_persistent_volume_keeps_its_data(
    box: Cluster, name: str, flex: dict[str, Any], spec: dict[str, Any]
) -> None:
    apply(box, *persistent(name, flex, **spec))
    run(box, pod("first", claimed(name)))
    sh(box, "first", "echo kept > /data/file && sync")
    run(box, pod("second", claimed(name)))
    assert sh(box, "second", "cat /data/file") == "kept"
    end(box, "first")
    assert sh(box, "second", "cat /data/file") == "kept"
    end(box, "second")
    assert mounted(box) == []
    run(box, pod("third", claimed(name)))
    assert sh(box, "third", "cat /data/file") == "kept"
    end(box, "third")
    assert "flex-" not in tonnage("volumes", "orphans", "--data", str(box.data)).stdout
    assert any("flex-" in volume for volume in volumes(box))
    box.kubectl("delete", "pvc", f"{name}-claim")
    box.kubectl("delete", "pv", name)


def test_an_inline_volume_never_gets_the_volume_of_another_namespace(box: Cluster) -> None:
    apply(box, *persistent("theirs", {"driver": "tonnage.dev/local"}))
    run(box, pod("owner", claimed("theirs")))
    sh(box, "owner", "echo secret > /data/file && sync")
    box.kubectl("create", "namespace", "other")
    run(box, pod("thief", inline(name="theirs", size="64Mi"), namespace="other"))
    assert "file" not in sh(box, "thief", "ls /data", "other")
    end(box, "thief", namespace="other")
    assert sh(box, "owner", "cat /data/file") == "secret"
    end(box, "owner")
    box.kubectl("delete", "pvc", "theirs-claim")
    box.kubectl("delete", "pv", "theirs")


def test_another_volume_of_the_same_name_is_empty(box: Cluster) -> None:
    for _ in range(2):
        apply(box, *persistent("again", {"driver": "tonnage.dev/local"}))
        run(box, pod("p", claimed("again")))
        assert "file" not in sh(box, "p", "ls /data")
        sh(box, "p", "echo old > /data/file && sync")
        end(box, "p")
        box.kubectl("delete", "pvc", "again-claim")
        box.kubectl("delete", "pv", "again")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, '"size" is missing'),
        ({"size": "64Mi", "colour": "red"}, "unknown parameter 'colour'"),
        ({"size": "64Mi", "pool": "nowhere"}, "there is no pool 'nowhere'"),
        ({"size": "64Mi", "tonnage.dev/cluster": "x"}, "option 'tonnage.dev/cluster' is reserved"),
        ({"size": "soon"}, "soon"),
    ],
)
def test_a_refusal_names_what_to_change(box: Cluster, options: dict[str, str], message: str) -> None:
    apply(box, pod("refused", inline(**options)))
    box.until("the refusal", said(box, message))
    end(box, "refused")


def test_the_scheduler_counts_inline_volumes(box: Cluster) -> None:
    apply(box, pod("large", inline(size="2Gi")))
    box.until("it waits", said(box, "did not have enough free storage for inline volumes"))
    end(box, "large")


def test_a_restart_of_node_and_kubelet_keeps_volumes(box: Cluster) -> None:
    apply(box, *persistent("restarted", {"driver": "tonnage.dev/local"}))
    run(box, pod("p", claimed("restarted")))
    sh(box, "p", "echo kept > /data/file && sync")
    box.down()
    box.up()
    box.kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")
    box.until("it runs again", lambda: sh(box, "p", "cat /data/file") == "kept")
    end(box, "p")
    box.kubectl("delete", "pvc", "restarted-claim")
    box.kubectl("delete", "pv", "restarted")
    assert mounted(box) == []
