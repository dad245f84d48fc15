"""Undelete on a real box: a claim that was deleted by mistake returns with its data, and trash rejects no pod."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from tests.clusters import Cluster, verb

from tonnage_box.data_dir import DataFolder

CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "careful"},
    "provisioner": "csi.tonnage.dev",
    "volumeBindingMode": "WaitForFirstConsumer",
    "parameters": {"tonnage.dev/undelete": "24h"},
}


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    cluster = make_cluster("--nodes", "1", "--pool", "image,name=scratch,size=700Mi,sparse=yes")
    cluster.up()
    _apply(cluster, CLASS)
    yield cluster
    cluster.down("--purge")


def _apply(box: Cluster, *bodies: Any) -> None:
    for body in bodies:
        box.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(body))


def _claim(name: str, size: str, storage_class: str = "careful") -> Any:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {**spec, "resources": {"requests": {"storage": size}}},
    }


def _pod(name: str, claim: str, command: str) -> Any:
    container: dict[str, Any] = {"name": "main", "image": "busybox", "command": ["sh", "-c", command]}
    container["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _run(box: Cluster, name: str, claim: str, command: str) -> str:
    _apply(box, _pod(name, claim, command))
    box.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=120s")
    said = box.kubectl("logs", name)
    box.kubectl("delete", "pod", name)
    return said


def _volumes(box: Cluster, *arguments: str, code: int = 0) -> str:
    ended = verb("volumes", *arguments, "--data", str(box.data))
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.real
def test_a_claim_that_was_deleted_returns_with_its_data(box: Cluster) -> None:
    _apply(box, _claim("data", "300Mi"))
    _run(box, "writer", "data", "echo mine > /v/file")
    (volume,) = box.get("pv")["items"]
    box.kubectl("delete", "pvc", "data")
    box.until("its PersistentVolume is gone", lambda: not box.get("pv")["items"])
    box.until("its bytes are free", lambda: box.capacities("careful") == {"node-1": "700Mi"})
    vid = volume["spec"]["csi"]["volumeHandle"]
    listed = _volumes(box, "trash")
    assert vid in listed
    assert "claim default/data" in listed
    assert vid not in _volumes(box, "list")
    assert vid not in _volumes(box, "orphans")

    shown = _volumes(box, "restore", vid)
    assert "nothing was restored" in shown
    assert not box.get("pv")["items"]
    full = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}}
    _apply(box, {**full, "spec": {"hard": {"persistentvolumeclaims": "0"}}})
    rejected = _volumes(box, "restore", vid, "--yes", "--storage-class", "careful", code=1)
    assert "exceeded quota" in rejected
    assert vid not in _volumes(box, "trash"), "it is a volume again, and has a PersistentVolume and no claim"
    box.kubectl("delete", "quota", "full")
    _volumes(box, "restore", vid, "--yes", "--storage-class", "careful")
    box.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=60s")
    assert _run(box, "reader", "data", "cat /v/file") == "mine\n"
    (restored,) = box.get("pv")["items"]
    assert restored["spec"]["claimRef"]["namespace"] == "default"
    said = f"there is no volume in the trash {vid!r}; `tonnage volumes trash` shows those there are"
    assert said in _volumes(box, "restore", vid, "--yes", code=1)


@pytest.mark.real
def test_its_class_may_be_gone_and_only_an_administrator_restores_it(box: Cluster) -> None:
    _apply(box, {**CLASS, "metadata": {"name": "brief"}}, _claim("left", "100Mi", "brief"))
    _run(box, "left-writer", "left", "echo mine > /v/file")
    (vid,) = (
        v["spec"]["csi"]["volumeHandle"] for v in box.get("pv")["items"] if v["spec"]["claimRef"]["name"] == "left"
    )
    box.kubectl("delete", "pvc", "left")
    box.until("it is trash", lambda: vid in _volumes(box, "trash"))
    box.kubectl("delete", "storageclass", "brief")
    box.kubectl("create", "serviceaccount", "editor")
    box.kubectl("create", "rolebinding", "editor", "--clusterrole=edit", "--serviceaccount=default:editor")
    token = box.kubectl("create", "token", "editor").strip()
    config = yaml.safe_load((box.data / "kubeconfig").read_text())
    config["users"][0]["user"] = {"token": token}
    other = box.home / "editor.conf"
    other.write_text(yaml.safe_dump(config))
    other.chmod(0o600)
    endpoint = f"unix://{DataFolder(box.data).sockets() / 'node-1' / 'csi.tonnage.dev.sock'}"
    rejected = verb("volumes", "restore", vid, "--yes", "--endpoint", endpoint, "--kubeconfig", str(other))
    assert rejected.returncode == 1
    assert "forbidden" in rejected.stderr
    assert vid in _volumes(box, "trash")
    _volumes(box, "restore", vid, "--yes")
    assert _run(box, "left-reader", "left", "cat /v/file") == "mine\n"
    box.kubectl("delete", "pvc", "left")
    (left,) = (v["metadata"]["name"] for v in box.get("pv")["items"] if v["spec"]["claimRef"]["name"] == "left")
    box.kubectl("delete", "pv", left)
    assert f"in the trash for a while, as their classes say: {vid}" in _volumes(box, "purge", vid, "--yes")


@pytest.mark.real
def test_trash_makes_way_for_a_pod_and_cannot_be_restored_then(box: Cluster) -> None:
    _apply(box, _claim("old", "300Mi"))
    _run(box, "old", "old", "echo old > /v/file")
    box.kubectl("delete", "pvc", "old")
    box.until("it is trash", lambda: "claim default/old" in _volumes(box, "trash"))
    box.until("its bytes are free", lambda: box.capacities("careful") == {"node-1": "400Mi"})
    _apply(box, _claim("big", "400Mi"))
    _run(box, "big", "big", "echo big > /v/file")
    assert "default/old" not in _volumes(box, "trash")


@pytest.mark.real
def test_a_class_that_cannot_have_it_is_rejected_by_name(box: Cluster) -> None:
    bad = {**CLASS, "metadata": {"name": "bad"}, "parameters": {"tonnage.dev/undelete": "24h", "erase": "zero"}}
    _apply(box, bad, _claim("never", "10Mi", "bad"), _pod("never", "never", "true"))
    text = "erase=zero erases it: choose one"
    box.until(
        "an Event says why", lambda: text in box.kubectl("get", "events", "-A", "-o", "jsonpath={.items[*].message}")
    )
    box.kubectl("delete", "pod", "never")
