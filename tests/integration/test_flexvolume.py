"""FlexVolume manifests in the box, by kubectl: inline and of PersistentVolumes, our driver's name and its aliases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import Cluster, verb

from tonnage.host import mount
from tonnage.kubernetes.api.names import FLEX_PROVISIONERS

pytestmark = pytest.mark.real
EXAMPLES = Path(__file__).parents[2] / "examples" / "flexvolume"


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
    return [path.name for path in box.images()]


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
    box.kubectl("apply", "-f", str(EXAMPLES / "pod.yaml"))
    assert "condition met" in box.kubectl("wait", "--for=condition=Ready", "pod/flexvolume", "--timeout=60s")
    end(box, "flexvolume")


def test_the_example_of_a_class_runs(box: Cluster) -> None:
    example = str(EXAMPLES / "class.yaml")
    box.kubectl("apply", "-f", example)
    assert "condition met" in box.kubectl("wait", "--for=condition=Ready", "pod/flex", "--timeout=60s")
    end(box, "flex")
    box.kubectl("delete", "-f", example, "--ignore-not-found", "--timeout=60s")


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
    assert "flex-" not in verb("volumes", "orphans", "--data", str(box.data)).stdout
    assert any("flex-" in volume for volume in volumes(box))
    box.kubectl("delete", "pvc", f"{name}-claim")
    box.kubectl("delete", "pv", name)


@pytest.mark.parametrize("last", ["Delete", "Retain"])
def test_its_policy_at_the_end_decides(box: Cluster, last: str) -> None:
    there = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}}
    spec = {"persistentVolumeReclaimPolicy": "Delete", "nodeAffinity": affinity}
    apply(box, *persistent("ends", {"driver": "tonnage.dev/local"}, **spec))
    run(box, pod("p", claimed("ends")))
    volume = f"flex-{box.kubectl('get', 'pv', 'ends', '-o', 'jsonpath={.metadata.uid}')}"
    end(box, "p")
    policy = json.dumps({"spec": {"persistentVolumeReclaimPolicy": last}})
    box.kubectl("patch", "pv", "ends", "-p", policy)
    box.kubectl("delete", "pvc", "ends-claim", "--timeout=60s")
    if last == "Delete":
        box.kubectl("wait", "--for=delete", "pv/ends", "--timeout=60s")
        assert volume not in str(volumes(box))
        return
    box.kubectl("delete", "pv", "ends", "--timeout=60s")
    assert volume in str(volumes(box)), "an orphan"


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
def test_a_rejection_names_what_to_change(box: Cluster, options: dict[str, str], message: str) -> None:
    apply(box, pod("rejected", inline(**options)))
    box.until("the rejection", said(box, message))
    end(box, "rejected")


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


# Claims by class


def flex_class(name: str, provisioner: str, **fields: Any) -> dict[str, Any]:
    head = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    return {**head, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer", **fields}


def flex_claim(name: str, storage_class: str, size: str = "64Mi") -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": f"{name}-claim"}}
    return {**head, "spec": {**spec, "resources": {"requests": {"storage": size}}}}


def volume_of(box: Cluster, name: str) -> dict[str, Any]:
    """The PersistentVolume of a claim."""
    volume = box.kubectl("get", "pvc", f"{name}-claim", "-o", "jsonpath={.spec.volumeName}")
    found: dict[str, Any] = json.loads(box.kubectl("get", "pv", volume, "-o", "json"))
    return found


def is_gone(box: Cluster, volume: str) -> bool:
    """Whether neither the PersistentVolume nor the volume of that name is there."""
    known = box.kubectl("get", "pv", "-o", "name")
    return volume not in known and not any(volume in file for file in volumes(box))


@pytest.mark.parametrize(
    ("provisioner", "driver", "parameters"),
    [
        ("flex.tonnage.dev", "tonnage.dev/local", {"fsType": "ext4"}),
        ("tonnage.dev/flex-provisioner", "tonnage.dev/local", {}),
        (
            "monostream.com/localflex-provisioner",
            "monostream.com/localflex",
            {"path": "/var/lib/localflex", "affinity": "yes"},
        ),
        ("volumes.k8s.elastic.co/elastic-local", "volumes.k8s.elastic.co/elastic-local", {}),
    ],
)
def test_a_claim_gets_a_flexvolume_by_its_class(
    box: Cluster, provisioner: str, driver: str, parameters: dict[str, str]
) -> None:
    apply(box, flex_class("flex", provisioner, parameters=parameters), flex_claim("made", "flex"))
    run(box, pod("first", claimed("made")))
    volume = volume_of(box, "made")
    name, spec = volume["metadata"]["name"], volume["spec"]
    assert spec["flexVolume"]["driver"] == driver
    assert spec["flexVolume"]["options"] == {"volumeHandle": f"image/{name}"}
    assert "csi" not in spec
    (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert [one["key"] for one in term["matchExpressions"]] == ["topology.tonnage.dev/node"]
    assert "volume.alpha.kubernetes.io/node-affinity" not in volume["metadata"]["annotations"]
    kib = int(sh(box, "first", "df -k /data | tail -1 | awk '{print $2}'"))
    assert 64 << 10 <= kib < 70 << 10
    assert "No space left on device" in sh(box, "first", "dd if=/dev/zero of=/data/full bs=1M count=100 2>&1 || true")
    sh(box, "first", "rm /data/full; echo kept > /data/file && sync")
    end(box, "first")
    assert mounted(box) == []
    run(box, pod("second", claimed("made")))
    assert sh(box, "second", "cat /data/file") == "kept"
    assert name not in verb("volumes", "orphans", "--data", str(box.data)).stdout
    end(box, "second")
    box.kubectl("delete", "pvc", "made-claim", "--timeout=60s")
    box.until("volume and PersistentVolume are gone", lambda: is_gone(box, name))
    box.kubectl("delete", "storageclass", "flex")


def test_a_retained_volume_stays_until_a_person_purges_it(box: Cluster) -> None:
    made = flex_class("retained", "tonnage.dev/flex-provisioner", reclaimPolicy="Retain")
    apply(box, made, flex_claim("retained", "retained"))
    run(box, pod("p", claimed("retained")))
    name = volume_of(box, "retained")["metadata"]["name"]
    end(box, "p")
    box.kubectl("delete", "pvc", "retained-claim", "--timeout=60s")
    box.kubectl("delete", "pv", name, "--timeout=60s")
    assert any(name in file for file in volumes(box))
    assert name in verb("volumes", "orphans", "--data", str(box.data)).stdout
    box.kubectl("delete", "storageclass", "retained")


@pytest.mark.parametrize("provisioner", ["flex.tonnage.dev", "tonnage.dev/flex-provisioner"])
def test_a_claim_that_fits_no_node_waits_and_says_so(box: Cluster, provisioner: str) -> None:
    apply(box, flex_class("large", provisioner))
    box.until("its capacity is published", lambda: "large" in box.kubectl("get", "csistoragecapacities", "-A"))
    apply(box, flex_claim("large", "large", "8Gi"), pod("large", claimed("large")))
    box.until("it waits", said(box, "did not have enough free storage"))
    assert box.kubectl("get", "pvc", "large-claim", "-o", "jsonpath={.spec.volumeName}") == ""
    end(box, "large")
    box.kubectl("delete", "pvc", "large-claim")
    box.kubectl("delete", "storageclass", "large")


@pytest.mark.parametrize("provisioner", ["flex.tonnage.dev", "monostream.com/localflex-provisioner"])
def test_a_claim_that_binds_at_once_gets_a_volume_too(box: Cluster, provisioner: str) -> None:
    made = flex_class("at-once", provisioner)
    apply(box, made | {"volumeBindingMode": "Immediate"}, flex_claim("at-once", "at-once"))
    box.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc/at-once-claim", "--timeout=60s")
    assert volume_of(box, "at-once")["spec"]["flexVolume"]["driver"] == FLEX_PROVISIONERS[provisioner]
    box.kubectl("delete", "pvc", "at-once-claim", "--timeout=60s")
    box.kubectl("delete", "storageclass", "at-once")


def test_what_a_flexvolume_cannot_have_is_rejected_by_name(box: Cluster) -> None:
    apply(box, flex_class("options", "tonnage.dev/flex-provisioner", mountOptions=["noatime"]))
    box.until("the class says so", said(box, "mountOptions: not offered for FlexVolumes"))
    box.kubectl("delete", "storageclass", "options")
