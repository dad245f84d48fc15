"""A class with limits of IO in a whole cluster: a pod writes to its volume no faster than the class says."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from tonnage.base.errors import UnsupportedError
from tonnage_box.kubelet.pod_cgroups import PodCgroups

pytestmark = pytest.mark.real
WRITES, RATE = 80, 20
CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "slow"},
    "provisioner": "csi.tonnage.dev",
    "volumeBindingMode": "WaitForFirstConsumer",
    "parameters": {"iops": str(RATE), "bandwidth": "100Mi"},
}
CLAIM = {
    "spec": {
        "storageClassName": "slow",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "64Mi"}},
    }
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "writer"},
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": "any",
                "command": ["dd", "if=/dev/zero", "of=/data/file", "bs=4096", f"count={WRITES}", "oflag=direct"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": CLAIM}}],
    },
}


def test_a_pod_writes_no_faster_than_its_class_says(make_cluster: Callable[..., Any]) -> None:
    uid = str(uuid4())
    try:
        PodCgroups().make_pod(uid)
    except (UnsupportedError, OSError) as failure:
        pytest.skip(f"no cgroup that limits IO can be made: {failure}")
    finally:
        PodCgroups().remove_pod(uid)
    cluster = make_cluster("--nodes", "1", "--pool", "image,name=scratch,size=1Gi,sparse=yes,overcommit=yes")
    cluster.up()
    for thing in (CLASS, POD):
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(thing))
    ended: dict[str, Any] = {}

    def is_over() -> bool:
        statuses = cluster.get("pod", "writer")["status"].get("containerStatuses", [])
        ended.update(statuses[0]["state"].get("terminated", {}) if statuses else {})
        return bool(ended)

    cluster.until("the pod has written", is_over)
    assert ended["exitCode"] == 0, cluster.kubectl("logs", "writer")
    began, done = (datetime.fromisoformat(ended[key]) for key in ("startedAt", "finishedAt"))
    # Told in whole seconds; without a limit it is a matter of milliseconds.
    assert (done - began).total_seconds() >= WRITES / RATE - 2
    group = PodCgroups().own_pod(cluster.get("pod", "writer")["metadata"]["uid"])
    cluster.kubectl("delete", "pod", "writer")
    assert group is None or not group.path.exists()
    cluster.down("--purge")
