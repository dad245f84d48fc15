"""A program in a container reaches the API server as in any cluster: with its token, as its account."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.programs import needs_containers

from tonnage.kubernetes.api.kinds import CLUSTER_ROLE_BINDINGS, PODS, SERVICE_ACCOUNTS
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.api.wait import until
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

pytestmark = [
    pytest.mark.real,
    needs_containers,
]


@pytest.fixture
async def box(tmp_path: Path, kubectl_program: str) -> AsyncIterator[Box]:
    """A box of one node with containers, and an account that may list pods."""
    data = DataFolder(tmp_path / "d")
    made = Box(data, plan(data, Settings(nodes=1, pools=["fake,size=1Gi"])))
    await made.start()
    try:
        await made.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "reader"}}, "default")
        subjects = [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
        body = {"metadata": {"name": "reads"}, "roleRef": ref, "subjects": subjects}
        await made.client.create(CLUSTER_ROLE_BINDINGS, body)
        yield made
    finally:
        await made.stop()


def ended(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


async def run(box: Box, program: str, name: str, *arguments: str, **spec: Any) -> tuple[str, str]:
    """Phase and output of a pod that runs kubectl."""
    container = {
        "name": "c",
        "image": "none",
        "command": [f"/opt/programs/{os.path.basename(program)}", "--cache-dir=/tmp/cache", *arguments],
        "volumeMounts": [{"name": "programs", "mountPath": "/opt/programs"}],
    }
    volumes = [{"name": "programs", "hostPath": {"path": os.path.dirname(os.path.realpath(program))}}]
    body = {
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes, **spec},
    }
    await box.client.create(PODS, body, "default")
    pod = await until(box.client, PODS, name, ended, namespace="default")
    log = await box.client.read(f"/api/v1/namespaces/default/pods/{name}/log")
    return pod.status.phase, log.decode()


async def test_kubectl_in_a_pod_is_its_account(box: Box, kubectl_program: str) -> None:
    phase, text = await run(box, kubectl_program, "p", "get", "pods", "-o", "json", serviceAccountName="reader")
    assert phase == "Succeeded", text
    assert [pod["metadata"]["name"] for pod in json.loads(text)["items"]] == ["p"]
    phase, text = await run(box, kubectl_program, "q", "get", "pods")
    assert phase == "Failed"
    assert 'User "system:serviceaccount:default:default" cannot list resource "pods"' in text
    phase, text = await run(box, kubectl_program, "r", "get", "pods", automountServiceAccountToken=False)
    assert phase == "Failed"


async def test_the_token_is_private_to_the_pods_user(box: Box) -> None:
    spec: dict[str, Any] = {
        "containers": [{"name": "c", "image": "none", "command": ["/bin/sleep", "1000"]}],
        "securityContext": {"runAsUser": 1234, "fsGroup": 77},
    }
    await box.client.create(PODS, {"metadata": {"name": "s"}, "spec": spec}, "default")
    pod = await until(box.client, PODS, "s", lambda pod: pod.status.phase == "Running", namespace="default")
    (volume,) = pod.spec.volumes
    folder = next(box.data.path.glob(f"nodes/*/kubelet/pods/{pod.metadata.uid}/volumes/kubernetes.io~projected"))
    files = {path.name: path.stat() for path in (folder / volume.name).iterdir() if not path.name.startswith(".")}
    assert set(files) == {"token", "ca.crt", "namespace"}
    token = files["token"]
    assert (token.st_uid, token.st_gid, stat.S_IMODE(token.st_mode)) == (1234, 77, 0o640)
    assert (folder / volume.name / "namespace").read_text() == "default"
