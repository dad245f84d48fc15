"""Python operators on built-in kinds: kopf handles claims and Services, kr8s makes, waits for and reads objects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
OPERATOR = """
import kopf

@kopf.on.create("persistentvolumeclaims")
def created(name, **_):
    print("created", name, flush=True)

@kopf.on.update("persistentvolumeclaims", field="metadata.labels")
def labelled(name, new, **_):
    print("labelled", name, new.get("a"), flush=True)

@kopf.on.delete("persistentvolumeclaims")
def deleted(name, **_):
    print("deleted", name, flush=True)

@kopf.timer("services", interval=0.2)
def ticked(name, **_):
    print("ticked", name, flush=True)
"""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: handled}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
"""
CLIENT = """
import sys
import kr8s
from kr8s.objects import ConfigMap, Deployment, Pod, Service

api = kr8s.api(kubeconfig=sys.argv[1])
assert list(kr8s.get("nodes", api=api))
main = {"name": "main", "image": "busybox", "command": ["sleep", "infinity"]}
spec = {"terminationGracePeriodSeconds": 1, "containers": [main]}
config = ConfigMap({"metadata": {"name": "config"}, "data": {"a": "b"}}, api=api)
config.create()
config.patch({"data": {"a": "c"}})
config.label(x="y")
config.refresh()
assert (config.data.a, config.labels.x) == ("c", "y")
pod = Pod({"metadata": {"name": "pod"}, "spec": spec}, api=api)
pod.create()
pod.wait("condition=Ready", timeout=120)
template = {"metadata": {"labels": {"app": "d"}}, "spec": spec}
deployment = Deployment(
    {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": template}}, api=api
)
deployment.create()
deployment.wait("condition=Available", timeout=120)
deployment.scale(2)
deployment.wait("jsonpath='{.status.readyReplicas}'=2", timeout=120)
assert len(deployment.pods()) == 2
service = Service({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}, api=api)
service.create()
assert service.spec.clusterIP.startswith("10.96.")
names = []
for event, seen in api.watch("services"):
    names.append((event, seen.name))
    if seen.name == "s":
        break
assert sorted(names) == [("ADDED", "kubernetes"), ("ADDED", "s")]
for made in (service, deployment, pod, config):
    made.delete()
pod.wait("delete", timeout=120)
assert not pod.exists()
print("done")
"""


@pytest.fixture
def operator(cluster: Any, tmp_path: Path) -> Iterator[Path]:
    """What a running kopf operator prints."""
    need("kopf")
    program, log = tmp_path / "operator.py", tmp_path / "log"
    program.write_text(OPERATOR)
    command = [sys.executable, "-m", "kopf", "run", str(program), "--all-namespaces", "--standalone"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=cluster.environment)
    yield log
    process.terminate()
    process.wait(60)
    print(log.read_text())  # shown where a test fails


def test_kopf_handles_a_claim_through_its_life(cluster: Any, operator: Path) -> None:
    def until(line: str) -> None:
        cluster.until(f"the operator prints {line}", lambda: line in operator.read_text().splitlines())

    cluster.kubectl("apply", "-f", "-", stdin=CLAIM)
    until("created handled")
    until("ticked web")
    cluster.kubectl("label", "pvc", "handled", "a=b")
    until("labelled handled b")
    finalizers = cluster.get("pvc", "handled")["metadata"]["finalizers"]
    assert "kopf.zalando.org/KopfFinalizerMarker" in finalizers
    cluster.kubectl("delete", "pvc", "handled", "--timeout=300s")
    until("deleted handled")
    cluster.kubectl("delete", "service", "web")


def test_kr8s_makes_waits_and_reads(cluster: Any) -> None:
    need("kr8s")
    command = [sys.executable, "-W", "ignore", "-c", CLIENT, str(cluster.data / "kubeconfig")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=cluster.environment)
    assert ended.stdout.endswith("done\n"), ended.stdout + ended.stderr
