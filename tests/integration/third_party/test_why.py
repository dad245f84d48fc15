"""`tonnage why` of a box that kubectl works on: it says what the pod is told, and what it says to do helps."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tonnage.tools.cli.main import main

LARGE = """
apiVersion: v1
kind: Pod
metadata: {name: large}
spec:
  containers:
  - {name: main, image: any, volumeMounts: [{name: data, mountPath: /data}]}
  volumes:
  - name: data
    ephemeral:
      volumeClaimTemplate:
        spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 3Gi}}}
"""


@pytest.mark.real
def test_with_kubectl(
    make_cluster: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster("--pool", "fake,size=2Gi", "--runtime", "none")
    cluster.up()
    cluster.kubectl("apply", "-f", "-", stdin=LARGE)

    def message() -> str:
        found = cluster.get("pod", "large")["status"].get("conditions", [])
        return str(next((c.get("message", "") for c in found if c["type"] == "PodScheduled"), ""))

    cluster.until("the pod is told", lambda: "free storage" in message())
    monkeypatch.setenv("KUBECONFIG", str(cluster.data / "kubeconfig"))
    assert main(["why", "large", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["message"] == message()
    assert "ask for at most 2Gi in large-data" in found["todo"]

    cluster.kubectl("delete", "pod", "large", "--grace-period=0", "--force")
    cluster.kubectl("apply", "-f", "-", stdin=LARGE.replace("3Gi", "2Gi"))
    cluster.until("it has done what it was told", lambda: cluster.get("pod", "large")["spec"].get("nodeName", "") != "")
    assert main(["why", "large"]) == 0
    assert "To do: nothing: it is on node node-1" in capsys.readouterr().out
