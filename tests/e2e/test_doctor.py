"""`tonnage doctor` on a real control plane: all green where a real agent and controller work, then five breakages.

The control plane is one of its own: others' nodes would be faults here, and what is broken here would be theirs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import programs
from cluster.__main__ import down, up
from tests.e2e.control_plane import ControlPlane, release

from tonnage.base.aio.clock import RealClock, rfc3339
from tonnage.kubernetes.api import names
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NODE, SYSTEM = "doctor-1", names.SYSTEM_NAMESPACE
POOL = {"name": "scratch", "kind": "fake", "size": "10Gi"}
CAPACITIES = f"/apis/storage.k8s.io/v1/namespaces/{SYSTEM}/csistoragecapacities"


class Patient:
    """An installation whose agent and controller are processes of ours with their accounts' tokens. What a kubelet
    would write (CSINode, label, pods' status, heartbeat) is written here."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.file = folder / "node.yaml"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def install(self) -> None:
        """The objects, the node with its file, the processes."""
        self.apply()
        (self.folder / "kubelet" / "plugins_registry").mkdir(parents=True)
        self.file.write_text(json.dumps({"pools": [POOL], "kubelet": str(self.folder / "kubelet")}))
        labels = {names.TOPOLOGY_NODE: NODE, "kubernetes.io/os": "linux"}
        made = self.plane.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}})
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": made["metadata"]["uid"]}
        entry = {"name": names.DRIVER, "nodeID": NODE, "topologyKeys": [names.TOPOLOGY_NODE]}
        csi: dict[str, Any] = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "spec": {"drivers": [entry]}}
        self.plane.create({**csi, "metadata": {"name": NODE, "ownerReferences": [owner]}})
        room = {"cpu": "8", "memory": "8Gi", "pods": "100"}
        self.plane.send("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": room, "allocatable": room}})
        self.plane.until("the agent has its pod", lambda: self._is_placed())
        self.plane.until("controllers have their pods", lambda: len(self.pods("controller")) == 2)
        self.start_agent()
        token = self.plane.kubectl("-n", SYSTEM, "create", "token", "tonnage-controller").strip()
        self._start("controller", token, "--identity", "one", "--namespace", SYSTEM)

    def apply(self) -> None:
        """`tonnage manifests | kubectl apply -f -`"""
        text = manifests.render(Installation(pools=[POOL], kubernetes=release()))
        self.plane.kubectl("apply", "--validate=strict", "-f", "-", stdin=text)

    def _is_placed(self) -> bool:
        found = self.plane.get("-n", SYSTEM, "pods", "-l", "app.kubernetes.io/component=node")["items"]
        return [pod["spec"].get("nodeName") for pod in found] == [NODE]

    def pods(self, component: str) -> list[str]:
        found = self.plane.get("-n", SYSTEM, "pods", "-l", f"app.kubernetes.io/component={component}")["items"]
        return [pod["metadata"]["name"] for pod in found]

    def start_agent(self) -> None:
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={self.pods('node')[0]}")
        token = self.plane.kubectl("-n", SYSTEM, "create", "token", "tonnage-node", *bound).strip()
        self._start("node", token, "--config", str(self.file), "--node-name", NODE, "--namespace", SYSTEM)

    def stop_agent(self) -> None:
        process = self.processes.pop("node")
        process.kill()
        process.wait()

    def _start(self, verb: str, token: str, *options: str) -> None:
        file = self.folder / f"{verb}.kubeconfig"
        self.plane.write_kubeconfig(file, token)
        command = [sys.executable, "-m", "tonnage", verb, "--kubeconfig", str(file), *options]
        with (self.folder / f"{verb}.log").open("ab") as log:
            self.processes[verb] = subprocess.Popen(command, stderr=log)

    def beat(self, *, agent: bool = True) -> None:
        """What the node's kubelet says every few seconds: it is there, and so are the pods."""
        now = rfc3339(RealClock().time(), micro=True)
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NODE}}
        spec = {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": now}
        if self.plane.send("PATCH", f"{path}/{NODE}", {"spec": spec}).status == 404:
            self.plane.send("POST", path, {**lease, "spec": spec})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now[:19] + "Z"}
        self.plane.send("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"conditions": [ready]}})
        for component in ("node", "controller"):
            for pod in self.pods(component):
                good = agent or component != "node"
                state = {"running": {}} if good else {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
                container = {"name": component, "ready": good, "restartCount": 0, "image": "x", "imageID": "x"}
                status = {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": str(good)}],
                    "containerStatuses": [{**container, "state": state}],
                }
                path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod}/status"
                answer = self.plane.send("PATCH", path, {"status": status})
                assert answer.status == 200, answer.message

    def look(self, *options: str, agent: bool = True) -> tuple[int, list[dict[str, str]]]:
        """Exit code and findings."""
        self.beat(agent=agent)
        command = [sys.executable, "-m", "tonnage", "doctor", "--kubeconfig", str(self.plane.kubeconfig)]
        command += ["--namespace", SYSTEM, "-o", "json", *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert not ended.stderr, ended.stderr
        return ended.returncode, json.loads(ended.stdout)["findings"]

    def on_node(self, *, agent: bool = True, kubeconfig: str = "") -> tuple[int, list[dict[str, str]]]:
        """The same, run on the node, as the administrator or by that file."""
        given = ["--kubeconfig", str(self.folder / kubeconfig)] if kubeconfig else []
        return self.look("--config", str(self.file), "--node-name", NODE, *given, agent=agent)

    def faults(self, *, agent: bool = True, node: bool = False) -> dict[str, str]:
        """What is wrong by now: check -> text and what to do. The exit code says the same."""
        code, found = self.on_node(agent=agent) if node else self.look(agent=agent)
        bad = {f["check"]: f"{f['about']}: {f['text']} -> {f['todo']}" for f in found if f["level"] == "FAIL"}
        assert code == (1 if bad else 0)
        return bad

    def until_green(self) -> list[dict[str, str]]:
        """Wait until nothing is wrong, on the node too; all findings."""
        last: list[dict[str, str]] = []

        def green() -> bool:
            nonlocal last
            code, last = self.on_node()
            return code == 0 and all(finding["level"] == "ok" for finding in last)

        try:
            self.plane.until("all is well", green)
        except AssertionError:
            pytest.fail("\n".join(str(finding) for finding in last if finding["level"] != "ok"))
        return last

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """A healthy installation."""
    folder = tmp_path_factory.mktemp("doctor")
    with contextlib.ExitStack() as cleanup:
        try:
            kubectl = programs.kubectl()
            found = up(folder / "cluster", 0)
        except programs.Missing as reason:
            pytest.skip(f"no real Kubernetes: {reason}")
        cleanup.callback(down, folder / "cluster")
        plane = ControlPlane(folder / "cluster", Path(str(found["kubeconfig"])), str(found["server"]), kubectl)
        made = Patient(plane, folder)
        cleanup.callback(made.end)
        made.install()
        made.until_green()
        yield made


def test_all_is_green(patient: Patient) -> None:
    findings = patient.until_green()

    assert {f["check"] for f in findings} >= {
        *("api", "csidriver", "agents", "controller", "registration", "access", "node-labels", "node-restriction"),
        *("classes", "capacity", "claims", "volumes", "driver", "node", "published", "orphans"),
    }
    code, from_afar = patient.look()
    assert code == 0
    assert {f["check"] for f in from_afar} < {f["check"] for f in findings}


def test_with_the_rights_of_an_agent(patient: Patient) -> None:
    """As `kubectl exec` into its pod: what it may not see is told, and no fault is made of it."""
    code, found = patient.on_node(kubeconfig="node.kubeconfig")

    told = {f["check"]: f for f in found if f["level"] != "ok"}
    assert code == 0
    assert set(told) == {"rights", "node-labels"}
    assert {"csidrivers", "daemonsets"} <= set(told["rights"]["text"].replace(",", "").split())
    assert {(f["check"], f["about"]) for f in found if f["level"] == "ok"} > {
        *(("access", "tonnage-node"), ("published", NODE), ("driver", NODE)),
    }


def test_the_csi_driver_is_deleted(patient: Patient) -> None:
    patient.plane.kubectl("delete", "csidriver", names.DRIVER)

    faults = patient.faults()

    assert list(faults) == ["csidriver"]
    assert names.DRIVER in faults["csidriver"]
    assert "kubectl apply" in faults["csidriver"]
    patient.apply()
    patient.until_green()


def test_a_field_of_the_csi_driver_is_wrong(patient: Patient) -> None:
    patient.plane.kubectl("patch", "csidriver", names.DRIVER, "-p", '{"spec": {"storageCapacity": false}}')

    faults = patient.faults()

    assert list(faults) == ["csidriver"]
    assert "storageCapacity is false, must be true" in faults["csidriver"]
    patient.apply()
    patient.until_green()


def test_a_class_asks_for_a_pool_that_is_not_there(patient: Patient) -> None:
    storage_class = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "wrong"}}
    late = {"volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    patient.plane.apply({**storage_class, **late, "provisioner": names.DRIVER, "parameters": {"pool": "nope"}})
    patient.plane.until("its capacity is told", lambda: len(patient.plane.send("GET", CAPACITIES).body["items"]) == 2)

    faults = patient.faults()

    assert list(faults) == ["classes"]
    assert "wrong: " in faults["classes"]
    assert "'nope'" in faults["classes"]
    assert "scratch" in faults["classes"]
    patient.plane.kubectl("delete", "storageclass", "wrong")
    patient.until_green()


def test_a_rule_is_missing(patient: Patient) -> None:
    role = patient.plane.get("clusterrole", "tonnage-node")
    rules = [
        rule for rule in role["rules"] if "create" not in rule["verbs"] or "persistentvolumes" not in rule["resources"]
    ]
    assert len(rules) == len(role["rules"]) - 1
    patient.plane.send("PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/tonnage-node", {"rules": rules})
    patient.plane.until("it is noticed", lambda: "access" in patient.faults())

    faults = patient.faults()

    assert list(faults) == ["access"]
    assert "tonnage-node: it lacks permission to " in faults["access"]
    assert "create persistentvolumes" in faults["access"]
    patient.apply()
    patient.until_green()


def test_the_scoping_policy_is_deleted(patient: Patient) -> None:
    patient.plane.kubectl("delete", "mutatingadmissionpolicy", names.SCOPE_POLICY)

    faults = patient.faults()

    assert list(faults) == ["node-labels"]
    assert f"no MutatingAdmissionPolicy {names.SCOPE_POLICY}" in faults["node-labels"]
    assert "the controller labels claims" in faults["node-labels"]
    patient.apply()
    patient.until_green()


def test_an_agent_is_down_and_its_number_was_changed(patient: Patient) -> None:
    patient.stop_agent()
    found = patient.plane.send("GET", CAPACITIES).body["items"]
    assert [(c["nodeTopology"]["matchLabels"], c["capacity"]) for c in found] == [({names.TOPOLOGY_NODE: NODE}, "10Gi")]
    name = found[0]["metadata"]["name"]
    patch = '{"capacity": "1Ti", "maximumVolumeSize": "1Ti"}'
    patient.plane.kubectl("-n", SYSTEM, "patch", "csistoragecapacity", name, "--type=merge", "-p", patch)

    faults = patient.faults(agent=False)

    assert set(faults) == {"agents", "capacity"}
    assert f"the agent of {NODE} is not ready: CrashLoopBackOff back-off" in faults["agents"]
    assert name in faults["capacity"]
    assert "its numbers were written by kubectl-patch, not by the agent" in faults["capacity"]
    on_node = patient.faults(agent=False, node=True)
    assert "its socket does not answer" in on_node["driver"]

    patient.start_agent()
    patient.until_green()
    assert patient.plane.send("GET", f"{CAPACITIES}/{name}").body["capacity"] == "10Gi"


def test_an_object_that_no_agent_writes(patient: Patient) -> None:
    found = patient.plane.send("GET", CAPACITIES).body["items"][0]
    head = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity"}
    patient.plane.create({**found, **head, "metadata": {"name": "forged", "namespace": "default"}})

    faults = patient.faults()

    assert list(faults) == ["capacity"]
    assert f"default/forged: no agent of namespace {SYSTEM} writes it" in faults["capacity"]
    patient.plane.kubectl("-n", "default", "delete", "csistoragecapacity", "forged")
    patient.until_green()
