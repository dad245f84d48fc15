"""helm 3 and 4 install, upgrade, roll back and uninstall a chart with Services, a StatefulSet, a budget and RBAC."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.programs, pytest.mark.timeout(900)]
CHART = Path(__file__).parent / "chart"
CLIENT_SIDE = {"helm": (), "helm4": ("--server-side=false",)}
PROTOBUF = "unknown format (application/vnd.kubernetes.protobuf)"


@dataclass
class Helm:
    """One helm and the cluster that it talks to."""

    program: Path
    cluster: Any
    flags: tuple[str, ...]

    def run(self, *arguments: str, fails: bool = False) -> str:
        """What it prints, with its complaints; skips where the API server does not take what it sends."""
        ended = subprocess.run(
            [self.program, *arguments], capture_output=True, text=True, timeout=400, check=False,
            env=self.cluster.environment,
        )  # fmt: skip
        if PROTOBUF in ended.stderr:
            pytest.skip("the API server takes no protobuf, which helm writes its releases in")
        assert (ended.returncode != 0) == fails, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def write(self, *arguments: str) -> str:
        """A command that changes the cluster and waits for it."""
        return self.run(*arguments, "--wait", "--timeout", "300s", *self.flags)

    def chart(self, *values: str) -> tuple[str, ...]:
        """The chart with values; its RBAC where the cluster serves that."""
        rbac = "rbac.authorization.k8s.io/v1" in self.cluster.kubectl("api-versions").split()
        given = (f"rbac={str(rbac).lower()}", *values)
        return (str(CHART), *(word for value in given for word in ("--set", value)))

    def greeting(self) -> str:
        """What both pods were started with; they must be ready."""
        pods = self.cluster.get("pods", "-l", "app=shop")["items"]
        assert len(pods) == 2
        for pod in pods:
            assert {"type": "Ready", "status": "True"}.items() <= next(
                c for c in pod["status"]["conditions"] if c["type"] == "Ready"
            ).items()
        [value] = {pod["spec"]["containers"][0]["env"][0]["value"] for pod in pods}
        return str(value)


@pytest.fixture(params=CLIENT_SIDE)
def helm(request: pytest.FixtureRequest, cluster: Any, go_program: Callable[[str], Path]) -> Helm:
    return Helm(go_program(request.param), cluster, CLIENT_SIDE[request.param])


def test_a_chart_through_its_life(helm: Helm) -> None:
    said = helm.write("install", "shop", *helm.chart())
    assert "services: stored, not acted on" in said
    assert helm.greeting() == "hello"
    services = {s["metadata"]["name"]: s["spec"]["clusterIP"] for s in helm.cluster.get("services")["items"]}
    assert services["shop-nodes"] == "None"
    assert services["shop"].startswith("10.96.")

    helm.write("upgrade", "shop", *helm.chart("greeting=bye"))
    assert helm.greeting() == "bye"
    helm.write("rollback", "shop", "1")
    assert helm.greeting() == "hello"
    history = json.loads(helm.run("history", "shop", "-o", "json"))
    assert [(entry["revision"], entry["status"]) for entry in history] == [
        (1, "superseded"),
        (2, "superseded"),
        (3, "deployed"),
    ]
    assert helm.cluster.get("services", "shop")["spec"]["clusterIP"] == services["shop"]

    helm.run("uninstall", "shop", "--wait", "--timeout", "300s")
    left = helm.cluster.get("all,configmaps,secrets,poddisruptionbudgets,networkpolicies")["items"]
    assert {item["metadata"]["name"] for item in left} <= {"kubernetes", "kube-root-ca.crt"}  # every cluster's own
    helm.cluster.kubectl("delete", "pvc", "--all", "--timeout=300s")


def test_server_side_apply_is_rejected_with_what_to_do(cluster: Any, go_program: Callable[[str], Path]) -> None:
    helm = Helm(go_program("helm4"), cluster, ())
    said = helm.run("install", "other", *helm.chart(), "--server-side=true", fails=True)
    assert "--server-side=false" in said
    helm.run("uninstall", "other", "--ignore-not-found")
