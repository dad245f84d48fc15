"""An emptyDir with a limit that the kernel holds, in a labelled namespace of a real box."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from tests.clusters import Cluster

SCRIPT = "dd if=/dev/zero of=/d/big bs=1M count=200 2>&1 | grep -o 'No space left on device'; df -m /d | tail -1"


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    cluster = make_cluster("--nodes", "1", "--pool", "image,name=scratch,size=700Mi,sparse=yes")
    cluster.up()
    yield cluster
    cluster.down("--purge")


@pytest.mark.real
def test_a_pod_of_a_labelled_namespace_has_its_limit(box: Cluster) -> None:
    box.kubectl("create", "namespace", "team")
    box.kubectl("label", "namespace", "team", "tonnage.dev/empty-dir=limited")
    container: dict[str, Any] = {"name": "main", "image": "busybox", "command": ["sh", "-c", SCRIPT]}
    container["volumeMounts"] = [{"name": "d", "mountPath": "/d"}]
    spec = {"restartPolicy": "Never", "containers": [container]}
    spec["volumes"] = [{"name": "d", "emptyDir": {"sizeLimit": "100Mi"}}]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"}, "spec": spec}
    box.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(body))
    box.kubectl("-n", "team", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/p", "--timeout=120s")
    full, usage = box.kubectl("-n", "team", "logs", "p").splitlines()
    assert full == "No space left on device"
    assert int(usage.split()[1]) == pytest.approx(100, abs=10)
    (claim,) = box.get("pvc", "-n", "team")["items"]
    assert claim["metadata"]["name"] == "p-d"
    box.kubectl("-n", "team", "delete", "pod", "p")
    box.until("the claim goes with its pod", lambda: not box.get("pvc", "-n", "team")["items"])
