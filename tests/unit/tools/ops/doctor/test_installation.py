"""The installation's objects: healthy, and one thing broken at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.tools.ops.doctor.broken import Break, Broken, assert_found, findings, setting
from tests.unit.tools.ops.doctor.ward import NOW, Ward

from tonnage.kubernetes.api.storage import CSIDriver
from tonnage.tools.ops.doctor import installation
from tonnage.tools.ops.doctor.finding import Level

FAIL, WARN = Level.FAIL, Level.WARN


def _driver(**fields: Any) -> Break:
    def change(ward: Ward) -> None:
        spec = {**msgspec.to_builtins(ward.view.driver)["spec"], **fields}
        ward.view.driver = msgspec.convert({"spec": spec}, CSIDriver)

    return change


def _pool(kind: str) -> Break:
    def change(ward: Ward) -> None:
        ward.view.files = {
            **ward.view.files,
            "tonnage-node-hdd": {"pools": [{"name": "data", "kind": kind, "path": "/data"}]},
        }

    return change


_CRASH = {"containerStatuses": [{"name": "node", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}

BROKEN: tuple[Broken, ...] = (
    ("rights", lambda w: w.view.rejected.update(daemonsets="no"), WARN, "permission denied: daemonsets", "administrator"),
    ("api", setting("served", frozenset()), FAIL, "does not serve", "1.24"),
    ("api", setting("version", "v1.29.9"), WARN, "v1.29.9 is older than the tested releases, 1.30 to 1.36", "test cluster"),
    ("api", setting("version", "v2.0.0"), WARN, "v2.0.0 is newer than the tested releases, 1.30 to 1.36", "test cluster"),
    ("csidriver", setting("driver", None), FAIL, "CSIDriver not found", "kubectl apply"),
    ("csidriver", _driver(storageCapacity=False), FAIL, "storageCapacity is false, must be true", "delete"),
    ("csidriver", _pool("quota"), WARN, "pool data (quota) share a file system", "drain"),
    ("csidriver", _pool("static"), WARN, "seLinuxMount is true, must be false", "drain"),
    ("csidriver", _driver(volumeLifecycleModes=["Ephemeral"]), FAIL, "lacks Persistent", "delete"),
    ("agents", lambda w: w.agent("n1", **_CRASH), FAIL, "agent of n1 is not ready: CrashLoopBackOff", "logs"),
    ("agents", lambda w: w.agent("n1", phase="Pending"), FAIL, "agent of n1 is not ready: Pending", "describe"),
    ("agents", setting("daemon_sets", []), WARN, "no DaemonSet of agents", "--namespace"),
    ("controller", lambda w: w.lead(NOW - 600), FAIL, "none is leader", "logs"),
    ("controller", setting("lease", None), FAIL, "none is leader", "logs"),
    ("controller", setting("deployments", []), WARN, "no controller runs", "apply"),
    ("scheduler", lambda w: w.schedule(NOW - 600), FAIL, "none is leader", "component=scheduler"),
    ("scheduler", lambda w: w.schedule(NOW, ready=1), WARN, "1 of 2 replicas", "component=scheduler"),
    ("scheduler", lambda w: w.schedule(NOW, ready=0), FAIL, "0 of 2 replicas", "component=scheduler"),
)  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken[3])
def test_one_thing_is_broken(ward: Ward, broken: Broken) -> None:
    assert_found(ward, broken)


@pytest.mark.parametrize("version", ["v1.30.14", "v1.36.3+k3s1", "unknown"])
def test_no_finding_about_a_tested_release(ward: Ward, version: str) -> None:
    ward.view.version = version

    assert [f.level for f in installation.check(ward.view) if f.check == "api"] == [Level.OK]


@pytest.mark.parametrize("kind", ["image", "quota"])
def test_labels_by_the_container_runtime_are_right_for_any_pool(ward: Ward, kind: str) -> None:
    _driver(seLinuxMount=False)(ward)
    _pool(kind)(ward)

    assert {found.level for found in installation.check(ward.view)} == {Level.OK}


def test_an_agent_without_a_pod(ward: Ward) -> None:
    ward.view.agents = ward.view.agents[:1]

    assert "1 of 2 agents have a pod" in [f.text for f in installation.check(ward.view)]


def test_agents_of_another_version(ward: Ward) -> None:
    ward.view.agents[0].metadata.labels["app.kubernetes.io/version"] = "0.0.1"

    (found,) = [f for f in installation.check(ward.view) if f.level is not Level.OK]
    assert (found.check, found.level) == ("agents", WARN)
    assert "agents of version 0.0.1 run" in found.text


def test_nothing_is_installed(ward: Ward) -> None:
    ward.view.daemon_sets, ward.view.agents, ward.view.csi_nodes = [], [], []

    assert {f.check for f in findings(ward) if f.level is FAIL} == {"agents", "registration", "capacity"}
