"""A VolumeAttributesClass in the box: what a running pod may do on its volume, by the kernel's own files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import Cluster

from tonnage.base.errors import UnsupportedError
from tonnage.host.iolimits import ROOT, Cgroups

pytestmark = pytest.mark.real
_CLASSES = Path(__file__).parents[2] / "examples" / "attributes-classes.yaml"
_SECONDS = 60.0


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """One node with the example classes and a pod `app` whose claim `notes` is slow."""
    try:
        Cgroups().top()
    except UnsupportedError as reason:
        pytest.skip(str(reason))
    cluster = make_cluster("--nodes", "1", "--pool", "image,name=scratch,size=1Gi,sparse=yes")
    cluster.up()
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "64Mi"}},
        "volumeAttributesClassName": "tonnage-slow",
    }
    mounts = [{"name": "data", "mountPath": "/data"}]
    main = {"name": "main", "image": "x", "command": ["sleep", "1000"], "volumeMounts": mounts}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "notes"}}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [main], "volumes": [volume]}
    objects: list[dict[str, Any]] = [
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "notes"}, "spec": claim},
        {"kind": "Pod", "metadata": {"name": "app"}, "spec": spec},
    ]
    cluster.kubectl("apply", "-f", str(_CLASSES))
    for each in objects:
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", **each}))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/app", "--timeout=60s")
    yield cluster
    cluster.down("--purge")


def _limits(box: Cluster) -> set[str]:
    """Operations per second that the pod's cgroup allows its writes."""
    uid = box.kubectl("get", "pod", "app", "-o", "jsonpath={.metadata.uid}").strip()
    found: set[str] = set()
    for file in [*ROOT.rglob("io.max"), *ROOT.rglob("blkio.throttle.write_iops_device")]:
        if uid in str(file.parent):
            for line in file.read_text().splitlines():
                words = line.split()[1:]
                found |= {word.partition("=")[2] or word for word in words if "=" not in word or "wiops" in word}
    return found - {"max"}


def _until(box: Cluster, wanted: set[str]) -> None:
    deadline = time.monotonic() + _SECONDS
    while (found := _limits(box)) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def _ask(box: Cluster, name: str) -> None:
    body = json.dumps({"spec": {"volumeAttributesClassName": name}})
    box.kubectl("patch", "pvc", "notes", "--type", "merge", "-p", body)
    wanted = f"jsonpath={{.status.currentVolumeAttributesClassName}}={name}"
    box.kubectl("wait", f"--for={wanted}", "pvc/notes", "--timeout=60s")


def test_a_running_pod_gets_other_limits_at_once_and_keeps_them_over_a_restart(box: Cluster) -> None:
    assert _limits(box) == {"200"}
    _ask(box, "tonnage-fast")
    assert _limits(box) == {"5000"}
    volume = box.kubectl("get", "pvc", "notes", "-o", "jsonpath={.spec.volumeName}").strip()
    assert "tonnage-fast" in box.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.volumeAttributesClassName}")
    box.down()
    box.up()
    box.kubectl("wait", "--for=condition=Ready", "pod/app", "--timeout=60s")
    _until(box, {"5000"})
    _ask(box, "tonnage-default")
    assert _limits(box) == set()


def test_a_class_in_use_stays_and_none_is_not_offered(box: Cluster) -> None:
    _ask(box, "tonnage-slow")
    box.kubectl("delete", "vac", "tonnage-slow", "--wait=false")
    assert "tonnage-slow" in box.kubectl("get", "vac")
    body = json.dumps({"spec": {"volumeAttributesClassName": None}})
    assert "update to nil is forbidden" in box.kubectl(
        "patch", "pvc", "notes", "--type", "merge", "-p", body, fails=True
    )
    _ask(box, "tonnage-default")
    box.kubectl("wait", "--for=delete", "vac/tonnage-slow", "--timeout=60s")
