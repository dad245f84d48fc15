"""Priorities, preemption that frees storage, budgets and `kubectl drain`: the kubectl that is there, real volumes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
SLEEP = '[sh, -c, "trap exit TERM; sleep infinity & wait"]'
SPEC = f"terminationGracePeriodSeconds: 1, containers: [{{name: main, image: any, command: {SLEEP}}}]"
CLASS = "---\n{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: urgent}, value: 1000}"
BUDGET = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 0, selector: {matchLabels: {app: web}}}
"""
DEPLOYMENT = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 3
  selector: {{matchLabels: {{app: web}}}}
  template: {{metadata: {{labels: {{app: web}}}}, spec: {{{SPEC}}}}}
"""


def scratch(name: str, size: str, *, priority: str = "") -> str:
    """A pod with an ephemeral volume."""
    claim = f"{{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {size}}}}}}}"
    volume = f"{{name: data, ephemeral: {{volumeClaimTemplate: {{spec: {claim}}}}}}}"
    chosen = f"priorityClassName: {priority}, " if priority else ""
    spec = SPEC.replace("image: any", "image: any, volumeMounts: [{name: data, mountPath: /data}]")
    return (
        f"---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{chosen}volumes: [{volume}], {spec}}}}}"
    )


def pods(cluster: Any) -> dict[str, Any]:
    return {pod["metadata"]["name"]: pod for pod in cluster.get("pods")["items"]}


def test_an_urgent_pod_gets_the_storage_of_a_lesser_one(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=CLASS)
    assert cluster.kubectl("get", "pc", "urgent", "--no-headers").split()[:3] == ["urgent", "1000", "false"]
    for name in ("one", "two", "three"):
        cluster.kubectl("apply", "-f", "-", stdin=scratch(name, "20Gi"))
    cluster.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=300s")

    cluster.kubectl("apply", "-f", "-", stdin=scratch("urgent", "20Gi", priority="urgent"))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/urgent", "--timeout=300s")

    left = pods(cluster)
    (gone,) = {"one", "two", "three"} - left.keys()
    assert left["urgent"]["spec"]["priority"] == 1000

    def told() -> str:
        found = cluster.get("events", "--field-selector", f"involvedObject.name={gone},reason=Preempted")["items"]
        return " ".join(event["message"] for event in found)

    cluster.until("it is told", lambda: f"Preempted by pod {left['urgent']['metadata']['uid']} on node" in told())
    cluster.kubectl("delete", "pod", "--all", "--timeout=300s")
    cluster.until("all room is back", lambda: set(cluster.capacities().values()) == {"30716Mi"})


def test_drain_asks_the_budget(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    cluster.kubectl("apply", "-f", "-", stdin=BUDGET)
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=300s")
    cluster.until(
        "the budget counts three pods", lambda: cluster.get("pdb", "web")["status"].get("currentHealthy") == 3
    )
    node = next(iter(pods(cluster).values()))["spec"]["nodeName"]

    rejected = cluster.kubectl("drain", node, "--timeout=3s", fails=True)
    assert "Cannot evict pod as it would violate the pod's disruption budget." in rejected
    assert len(pods(cluster)) == 3

    cluster.kubectl("patch", "pdb", "web", "--type=merge", "-p", '{"spec": {"maxUnavailable": 1}}')
    assert f"node/{node} drained" in cluster.kubectl("drain", node, "--timeout=300s")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=300s")
    assert node not in {pod["spec"].get("nodeName") for pod in pods(cluster).values()}

    cluster.kubectl("uncordon", node)
    cluster.kubectl("delete", "deployment/web", "pdb/web", "--timeout=300s")
