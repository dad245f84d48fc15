"""Deployments, StatefulSets, DaemonSets and Jobs as a user handles them: the kubectl that is there, real volumes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
SLEEP = '[sh, -c, "trap exit TERM; while :; do sleep 0.2; done"]'
POD = f"{{name: main, image: 'any:1', command: {SLEEP}}}"
DEPLOYMENT = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, annotations: {{kubernetes.io/change-cause: first}}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{terminationGracePeriodSeconds: 1, containers: [{POD}]}}
"""


def images(cluster: Any, selector: str) -> set[str]:
    found = cluster.get("pods", "-l", selector)["items"]
    return {c["image"] for p in found if "deletionTimestamp" not in p["metadata"] for c in p["spec"]["containers"]}


def test_deployment_rollout_scale_history_and_undo(cluster: Any) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    assert "successfully rolled out" in cluster.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
    assert "unchanged" in cluster.kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    cluster.kubectl("scale", "deployment/web", "--replicas=3")
    cluster.kubectl("wait", "--for=jsonpath={.status.readyReplicas}=3", "deployment/web", "--timeout=90s")
    shown = cluster.kubectl("get", "deploy,rs").split()
    assert "3/3" in shown

    cluster.kubectl(
        "apply", "-f", "-", stdin=DEPLOYMENT.replace("any:1", "any:2").replace("cause: first", "cause: second")
    )
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
    assert images(cluster, "app=web") == {"any:2"}
    history = cluster.kubectl("rollout", "history", "deployment/web")
    assert [line.split() for line in history.splitlines()[2:] if line] == [["1", "first"], ["2", "second"]]

    cluster.kubectl("rollout", "undo", "deployment/web")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
    assert images(cluster, "app=web") == {"any:1"}
    assert cluster.get("deployment", "web")["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"

    described = cluster.kubectl("describe", "deployment", "web")
    assert "Scaled up replica set web-" in described
    assert "MinimumReplicasAvailable" in described
    cluster.kubectl("delete", "deployment", "web", "--timeout=60s")
    cluster.until("nothing is left", lambda: not _left(cluster, "web"))


def _left(cluster: Any, app: str) -> list[Any]:
    found: list[Any] = cluster.get("pods,rs", "-l", f"app={app}")["items"]
    return found
