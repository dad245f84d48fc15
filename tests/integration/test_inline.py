"""Inline drivers in the box, by kubectl: a pod sees its node's labels, and they follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from tests.clusters import Cluster, verb

from tonnage.host import mount

pytestmark = pytest.mark.real

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "labelled"},
    "spec": {
        "securityContext": {"fsGroup": 2000},
        "containers": [
            {
                "name": "c",
                "image": "busybox",
                "command": ["sleep", "1000"],
                "volumeMounts": [{"name": "labels", "mountPath": "/labels"}],
            }
        ],
        "volumes": [
            {
                "name": "labels",
                "csi": {
                    "driver": "node-labels.tonnage.dev",
                    "readOnly": True,
                    "volumeAttributes": {"prefix": "kubernetes.io/"},
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    cluster = make_cluster("--nodes", "1", "--pool", "fake,size=1Gi", "--inline", "node-labels,memory=2Mi")
    cluster.up()
    yield cluster
    cluster.down("--purge")


def test_a_pod_sees_its_nodes_labels_and_nothing_is_left_of_them(box: Cluster) -> None:
    box.kubectl("apply", "-f", "-", stdin=json.dumps(POD))
    box.kubectl("wait", "--for=condition=Ready", "pod/labelled", "--timeout=30s")
    assert box.kubectl("exec", "labelled", "--", "cat", "/labels/kubernetes.io_hostname") == "node-1"
    assert "2000" in box.kubectl("exec", "labelled", "--", "stat", "-Lc", "%g", "/labels/kubernetes.io_hostname")
    driver = json.loads(box.kubectl("get", "csidriver", "node-labels.tonnage.dev", "-o", "json"))
    assert driver["spec"]["volumeLifecycleModes"] == ["Ephemeral"]
    shown = [one for one in mount.mounts() if one.target.startswith(str(box.data)) and "labels/mount" in one.target]
    assert len(shown) == 1
    listed = json.loads(verb("volumes", "list", "--data", str(box.data), "-o", "json").stdout)["volumes"]
    assert [(one["driver"], one["pod"], one["node"]) for one in listed] == [
        ("node-labels.tonnage.dev", "default/labelled", "node-1")
    ]
    box.kubectl("delete", "pod", "labelled", "--grace-period=0", "--force")
    box.kubectl("wait", "--for=delete", "pod/labelled", "--timeout=30s")


def test_a_rejection_names_what_to_change(box: Cluster) -> None:
    pod = json.loads(json.dumps(POD))
    pod["metadata"]["name"] = "rejected"
    pod["spec"]["volumes"][0]["csi"]["volumeAttributes"] = {"prefixx": "a"}
    box.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    wanted = "'prefixx' is unknown to driver node-labels.tonnage.dev; it takes prefix"
    said = lambda: wanted in box.kubectl("get", "events", "-o", "jsonpath={.items[*].message}")  # noqa: E731
    box.until("the rejection", said)
    box.kubectl("delete", "pod", "rejected", "--grace-period=0", "--force")
