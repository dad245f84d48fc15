"""Controller and scheduler run where the pod security profile `restricted` is enforced; agents do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.control_plane import release
from tests.e2e.machines import Machines
from tests.yaml_texts import read_all

from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.tools.ops.install.manifests import render
from tonnage.tools.ops.install.options import Installation

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
NAMESPACE = "restricted"
PROFILE = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
LOOK = """
import os
fields = dict(line.split(":", 1) for line in open("/proc/1/status"))
print(*(fields[name].split()[0] for name in ("Uid", "Gid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")))
try:
    open("/written", "w")
except OSError as failure:
    print(os.strerror(failure.errno))
"""


def made(kind: str) -> dict[str, Any]:
    """Objects of that kind as the manifests have them, by name."""
    chosen = Installation(namespace=NAMESPACE, kubernetes=release(), scheduler=ScoringStrategy.MOST_FREE)
    found = [one for one in read_all(render(chosen)) if one and one["kind"] == kind]
    return {one["metadata"]["name"]: one for one in found}


@pytest.fixture
def restricted(machines: Machines) -> Iterator[Machines]:
    """A namespace that enforces the profile, with accounts that may do what those of the installation may."""
    accounts = [one for name, one in made("ServiceAccount").items() if name != "tonnage-node"]
    subjects = [{"kind": "ServiceAccount", "name": one["metadata"]["name"], "namespace": NAMESPACE} for one in accounts]
    rights = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": subjects,
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": PROFILE}}
    machines.plane.apply(namespace, rights, *accounts)
    yield machines
    machines.plane.kubectl("delete", "namespace", NAMESPACE)
    machines.plane.kubectl("delete", "clusterrolebinding", NAMESPACE)


def test_controller_and_scheduler_run_without_rights(restricted: Machines) -> None:
    plane = restricted.plane
    deployments = made("Deployment")
    assert set(deployments) == {"tonnage-controller", "tonnage-scheduler"}
    plane.apply(*deployments.values())
    for name in deployments:
        plane.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{name}", "--timeout=300s")
        said = plane.kubectl("-n", NAMESPACE, "exec", f"deployment/{name}", "--", "python3", "-c", LOOK).splitlines()
        assert said == ["65532 65532 0000000000000000 0000000000000000 1 2", "Read-only file system"], name

    def leases() -> set[str]:
        return {lease["metadata"]["name"] for lease in plane.get("-n", NAMESPACE, "leases")["items"]}

    plane.until("both have a leader", lambda: leases() == set(deployments))


def test_an_agent_is_rejected_there(restricted: Machines) -> None:
    template = made("DaemonSet")["tonnage-node"]["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"}, "spec": template["spec"]}
    pod["spec"]["serviceAccountName"] = "default"
    answer = restricted.plane.send("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)
    assert answer.status == 403, answer.body
    assert "violates PodSecurity" in answer.message
    assert "privileged" in answer.message
