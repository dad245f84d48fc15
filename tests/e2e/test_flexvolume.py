"""FlexVolume manifests on real kubelets: the kubelet runs the program that the agent installs on its node."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from cluster.node import PLUGINS
from tests.e2e import pods
from tests.e2e.machines import SYSTEM, Machines
from tests.e2e.processes import until

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1200)]
DRIVER = "tonnage.dev/local"
MIB = 1 << 20


def _pod(name: str, volume: dict[str, Any], *, node: str = "") -> Any:
    body = pods.pod(name, "none", command=pods.LOOP, node=node)
    body["spec"]["volumes"] = [{"name": "disk", **volume}]
    body["spec"]["terminationGracePeriodSeconds"] = 1  # with 0, its containers may write after its deletion
    return body


def _inline(driver: str = DRIVER, **options: str) -> dict[str, Any]:
    return {"flexVolume": {"driver": driver, "options": options}}


def _persistent(name: str, node: str) -> list[dict[str, Any]]:
    """A PersistentVolume of 256Mi on a node, and its claim."""
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "old"}
    there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    volume = {
        **common,
        "capacity": {"storage": "256Mi"},
        "persistentVolumeReclaimPolicy": "Delete",
        "flexVolume": {"driver": DRIVER, "options": {"size": "256Mi"}},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
    }
    claim = {**common, "resources": {"requests": {"storage": "256Mi"}}, "volumeName": name}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim},
    ]


@pytest.mark.parametrize(
    "volume",
    [
        _inline(size="256Mi"),
        _inline("volumes.k8s.elastic.co/elastic-local", sizeBytes=str(256 * MIB)),
        _inline("monostream.com/localflex", size="256Mi", path="/etc", directory="x", name="y"),
    ],
    ids=["ours", "elastic-local", "localflex"],
)
def test_an_inline_volume_has_its_size_and_goes_with_its_pod(machines: Machines, volume: dict[str, Any]) -> None:
    with pods.removed(machines, "pod/flexed"):
        machines.plane.apply(_pod("flexed", volume))
        pods.wait_ready(machines, "flexed")
        size = int(machines.shell("flexed", "df -B1 /data | tail -n 1").split()[1])
        assert 256 * MIB <= size <= 280 * MIB, "usable in full"
        assert "No space left" in machines.shell("flexed", "dd if=/dev/zero of=/data/much bs=1M count=300 || true")
        assert min(machines.capacities().values()) <= pods.WHOLE - 256 * MIB


def test_a_persistent_volume_outlives_pods_and_the_kubelet(machines: Machines) -> None:
    plane, node = machines.plane, machines.names[0]
    plane.apply(*_persistent("kept", node))
    with pods.removed(machines, "pod/second", "pod/first", "pvc/kept", "pv/kept"):
        volume = {"persistentVolumeClaim": {"claimName": "kept"}}
        plane.apply(_pod("first", volume))
        assert pods.wait_ready(machines, "first") == node
        machines.node(node).stop_kubelet(signal.SIGKILL)
        machines.node(node).start_kubelet()
        until(plane, "the kubelet has its pod again", lambda: _answers(machines, "first"))
        pods.goes_on(machines, "first")
        lines = pods.written(machines, "first")
        plane.kubectl("delete", "pod", "first", "--timeout=120s")  # unmounts what another kubelet mounted
        plane.apply(_pod("second", volume))
        pods.wait_ready(machines, "second")
        assert pods.written(machines, "second") >= lines
        plane.kubectl("delete", "pod", "second", "--timeout=120s")
        assert machines.capacities()[node] == pods.WHOLE - 256 * MIB
        plane.kubectl("delete", "pvc/kept", "pv/kept", "--timeout=120s")
        until(plane, "the agent deletes the volume", lambda: machines.capacities()[node] == pods.WHOLE)
        assert PLUGINS not in machines.inside(node, "cat /proc/self/mountinfo"), "agents leave no mount there"


def _class(name: str, provisioner: str) -> dict[str, Any]:
    head = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    return {**head, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}


def _claim(name: str, storage_class: str, size: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
    return {**head, "spec": {**spec, "resources": {"requests": {"storage": size}}}}


@pytest.mark.parametrize("provisioner", ["flex.tonnage.dev", "monostream.com/localflex-provisioner"])
def test_a_claim_of_a_class_gets_a_volume_that_ends_with_it(machines: Machines, provisioner: str) -> None:
    plane = machines.plane
    plane.apply(_class("flex", provisioner), _claim("made", "flex", "256Mi"))
    with pods.removed(machines, "pod/second", "pod/first", "pvc/made", "storageclass/flex"):
        volume = {"persistentVolumeClaim": {"claimName": "made"}}
        plane.apply(_pod("first", volume))
        node = pods.wait_ready(machines, "first")
        name = plane.get("pvc/made")["spec"]["volumeName"]
        made = plane.get(f"pv/{name}")["spec"]
        assert made["flexVolume"]["options"]["volumeHandle"].endswith(f"/{name}")
        (term,) = made["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert [one["values"] for one in term["matchExpressions"]] == [[node]]
        assert machines.capacities()[node] == pods.WHOLE - 256 * MIB
        pods.goes_on(machines, "first")
        lines = pods.written(machines, "first")
        plane.kubectl("delete", "pod", "first", "--timeout=120s")
        plane.apply(_pod("second", volume))
        assert pods.wait_ready(machines, "second") == node
        assert pods.written(machines, "second") >= lines
        assert "No space left" in machines.shell("second", "dd if=/dev/zero of=/data/much bs=1M count=300 || true")
        plane.kubectl("delete", "pod", "second", "--timeout=120s")
        plane.kubectl("delete", "pvc", "made", "--timeout=120s")
        until(plane, "volume and PersistentVolume are gone", lambda: _is_over(machines, name, node))


@pytest.mark.parametrize("provisioner", ["flex.tonnage.dev", "tonnage.dev/flex-provisioner"])
def test_a_claim_that_fits_no_node_waits(machines: Machines, provisioner: str) -> None:
    """kube-scheduler counts for a name without a slash; for another, the agent of the node reschedules the claim."""
    plane, counts = machines.plane, "/" not in provisioner
    plane.apply(_class("flex", provisioner), _claim("large", "flex", "900Gi"))
    with pods.removed(machines, "pod/large", "pvc/large", "storageclass/flex"):
        plane.apply(_pod("large", {"persistentVolumeClaim": {"claimName": "large"}}))
        text = "did not have enough free storage" if counts else "insufficient storage on node"
        about = ("--field-selector", "involvedObject.name=large", "-o", "jsonpath={.items[*].message}")
        until(plane, "it says why", lambda: text in plane.kubectl("get", "events", *about))
        assert not plane.get("pvc/large")["spec"].get("volumeName")
        assert set(machines.capacities().values()) == {pods.WHOLE}


def _is_over(machines: Machines, volume: str, node: str) -> bool:
    known = machines.plane.kubectl("get", "pv", "-o", "name")
    return volume not in known and machines.capacities()[node] == pods.WHOLE


def test_a_pod_waits_while_the_agents_are_away(machines: Machines) -> None:
    with pods.removed(machines, "pod/waits"):
        _choose(machines, {"nobody": "here"})
        until(machines.plane, "no agent runs", lambda: not machines.agents())
        try:
            machines.plane.apply(_pod("waits", _inline(size="256Mi"), node=machines.names[0]))
            until(machines.plane, "the kubelet has asked", lambda: _asked(machines))
            assert not machines.is_ready("waits")
        finally:
            _choose(machines, {"nobody": None})
        pods.wait_ready(machines, "waits")
        pods.goes_on(machines, "waits")


def _answers(machines: Machines, name: str) -> bool:
    return machines.plane.try_kubectl("exec", name, "--", "true").returncode == 0


def _choose(machines: Machines, labels: dict[str, str | None]) -> None:
    """Have the agents run on nodes with those labels; None takes one away."""
    patch = {"spec": {"template": {"spec": {"nodeSelector": labels}}}}
    machines.plane.kubectl("-n", SYSTEM, "patch", "daemonset", "tonnage-node", "--type=merge", "-p", json.dumps(patch))


def _asked(machines: Machines) -> bool:
    """Whether a call of the kubelet waits for the agent."""
    return bool(machines.inside(machines.names[0], "ls /run/tonnage/flex/ | grep '^q\\.' || true").strip())
