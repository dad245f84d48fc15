"""Nodes that go and come, and pods placed by hand: two real kubelets, agents from our own image."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import yaml
from tests.e2e.machines import AGENTS, GIB, POOL, SYSTEM, Machines, container
from tests.e2e.pods import (
    LOOP,
    WHOLE,
    claim,
    goes_on,
    is_ready,
    is_there,
    phase,
    pod,
    removed,
    told,
    wait_ready,
    written,
)
from tests.e2e.processes import until

from tonnage.kubernetes.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
LATE, AT_ONCE, RELEASED = "faults-late", "faults-at-once", "faults-released"


@pytest.fixture(scope="module")
def cluster(machines: Machines) -> Iterator[Machines]:
    """With classes for claims that outlive their pods."""
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": names.DRIVER}
    late = {**body, "volumeBindingMode": "WaitForFirstConsumer"}
    released = {names.ON_NODE_GONE: "release-after:1m"}
    machines.plane.apply(
        {**late, "metadata": {"name": LATE}},
        {**late, "metadata": {"name": RELEASED}, "parameters": released},
        {**body, "metadata": {"name": AT_ONCE}, "volumeBindingMode": "Immediate"},
    )
    yield machines
    machines.plane.kubectl("-n", SYSTEM, "delete", "pod", "-l", AGENTS)  # some were lost with their node: new ones
    until(machines.plane, "all agents are ready", lambda: set(machines.agents()) == set(machines.names))
    machines.plane.kubectl("delete", "storageclass", LATE, AT_ONCE, RELEASED)
    until(machines.plane, "their capacity is gone", lambda: _classes(machines) == {names.SCRATCH_CLASS})


def _classes(machines: Machines) -> set[str]:
    return {c["storageClassName"] for c in machines.plane.get("-n", SYSTEM, "csistoragecapacities")["items"]}


# A pod whose node was set by hand


@pytest.mark.parametrize("storage_class", [LATE, AT_ONCE])
def test_a_pod_whose_node_was_set_by_hand(cluster: Machines, storage_class: str) -> None:
    """Upstream such a pod waits for ever: nobody tells the provisioner where it is."""
    with removed(cluster, "pod/hand", "pvc/hand"):
        uid = claim(cluster, "hand", storage_class)
        node = "node-2"
        if storage_class == AT_ONCE:
            until(cluster.plane, "it is bound", lambda: phase(cluster, "pvc", "hand") == "Bound")
            node = cluster.plane.get("pv", f"pvc-{uid}")["metadata"]["labels"][names.NODE_LABEL]
        cluster.plane.apply(pod("hand", "hand", hand=node, command=LOOP))
        assert wait_ready(cluster, "hand") == node
        goes_on(cluster, "hand")
    assert cluster.left(uid) == []


def test_a_pod_set_by_hand_on_a_node_without_room_waits_for_it(cluster: Machines) -> None:
    plane = cluster.plane
    with removed(cluster, "pod/filler", "pod/small", "pod/placed", "pvc/hand"):
        cluster.start("filler", "5Gi", node="node-1")
        wait_ready(cluster, "filler")
        claim(cluster, "hand", LATE, "4Gi")
        plane.apply(pod("placed", "hand", hand="node-1"))
        until(plane, "the claim is told", partial(told, cluster, "hand", "node-1", "pod needs 4Gi, 1Gi free"))
        until(plane, "so is the pod", partial(told, cluster, "placed", "node-1", "for claim hand", "pre-assigned"))
        cluster.start("small", "1Gi", node="node-1")  # nobody else waits for it
        wait_ready(cluster, "small")
        assert phase(cluster, "pvc", "hand") == "Pending"
        plane.kubectl("delete", "pod", "filler")
        assert wait_ready(cluster, "placed") == "node-1"


@pytest.mark.parametrize("storage_class", [LATE, AT_ONCE])
def test_a_claim_that_no_node_can_hold(cluster: Machines, storage_class: str) -> None:
    """Its pod waits and is told, by the scheduler or by us; others do not wait."""
    plane = cluster.plane
    with removed(cluster, "pod/vast", "pod/small", "pvc/vast"):
        claim(cluster, "vast", storage_class, "2Ei")
        plane.apply(pod("vast", "vast"))
        if storage_class == LATE:
            until(
                plane, "the pod is told", partial(told, cluster, "vast", "2 node(s) did not have enough free storage")
            )
        else:
            until(plane, "the claim is told", partial(told, cluster, "vast", "insufficient storage for 2Ei", "6Gi"))
        plane.apply(pod("small"))
        wait_ready(cluster, "small")
        assert phase(cluster, "pvc", "vast") == "Pending"


# A node that is deleted, and one that is lost


def stateful_set(name: str, storage_class: str, node: str = "") -> dict[str, Any]:
    """One replica with a claim, `data-<name>-0`, at /data. node: where it must go, if anywhere."""
    spec = pod(name, "data", command=LOOP, node=node)["spec"]
    del spec["volumes"]
    spec["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    claims = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "serviceName": name,
            "replicas": 1,
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claims}],
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    }


def drivers(machines: Machines, node: str) -> list[str]:
    """What the kubelet has registered."""
    found = machines.plane.try_kubectl("get", "csinode", node, "-o", "json")
    return [d["name"] for d in json.loads(found.stdout)["spec"].get("drivers") or []] if found.returncode == 0 else []


def pod_uid(machines: Machines, name: str) -> str:
    return machines.plane.try_kubectl("get", "pod", name, "-o", "jsonpath={.metadata.uid}").stdout


@contextmanager
def registering_with_taint(machines: Machines, node: str) -> Iterator[None]:
    """Its kubelet gives a new Node object the start-up taint, as those of a careful cluster do."""
    file = machines.plane.folder / node / "kubelet.yaml"
    before = file.read_text()
    taint = {"key": names.STARTUP_TAINT, "effect": "NoSchedule"}
    file.write_text(yaml.safe_dump({**yaml.safe_load(before), "registerWithTaints": [taint]}))
    try:
        yield
    finally:
        file.write_text(before)


def test_a_node_is_deleted_and_comes_back(cluster: Machines) -> None:
    """What pods have of claims stays, what they had of their own goes; capacity, labels and taints are as they were."""
    plane, node = cluster.plane, "node-2"
    part = cluster.node(node)
    with removed(cluster, "statefulset/stays", "pvc/data-stays-0", "pod/brief"):
        plane.apply(stateful_set("stays", LATE, node), pod("brief", node=node))
        for name in ("stays-0", "brief"):
            wait_ready(cluster, name)
        kept, brief = cluster.uid("data-stays-0"), cluster.uid("brief-disk")
        volume, old = plane.get("pv", f"pvc-{kept}")["spec"], pod_uid(cluster, "stays-0")
        lines = written(cluster, "stays-0")

        plane.kubectl("delete", "node", node)
        until(plane, "its capacity is gone", lambda: node not in cluster.capacities())
        gone = partial(is_there, cluster, "pod", "brief")
        until(plane, "Kubernetes has given up its pods", lambda: not gone())
        until(plane, "another pod waits", lambda: pod_uid(cluster, "stays-0") not in ("", old))
        assert phase(cluster, "pvc", "data-stays-0") == "Bound"
        assert plane.get("pv", f"pvc-{kept}")["spec"] == volume

        # A deleted node forces its pods' deletion, so Kubernetes no longer promises that one pod at a time writes.
        until(
            plane, "the old pod has ended", lambda: old not in cluster.inside(node, "cat /proc/[0-9]*/cgroup || true")
        )
        with registering_with_taint(cluster, node):
            part.stop_kubelet()
            part.start_kubelet()
            until(plane, "the node is there again", lambda: is_there(cluster, "node", node))
        assert wait_ready(cluster, "stays-0") == node
        assert written(cluster, "stays-0") >= lines
        goes_on(cluster, "stays-0")
        assert drivers(cluster, node) == [names.DRIVER]
        until(plane, "the start-up taint is off", lambda: not cluster.tainted())
        assert plane.get("node", node)["metadata"]["labels"][names.TOPOLOGY_NODE] == node
        assert plane.get("pv", f"pvc-{kept}")["spec"] == volume
        until(plane, "what was only the pod's is gone", lambda: not cluster.left(brief))
        until(plane, "its capacity is back", lambda: cluster.capacities().get(node) == WHOLE - GIB)
    assert cluster.left(kept) == []


def test_a_node_is_deleted_and_registers_at_once(cluster: Machines) -> None:
    """Before Kubernetes gives up its pods: they go on, and do not notice."""
    plane, node = cluster.plane, "node-2"
    part, old = cluster.node(node), plane.get("node", "node-2")["metadata"]["uid"]
    with removed(cluster, "pod/unaware", "pod/after"):
        plane.apply(pod("unaware", command=LOOP, node=node))
        wait_ready(cluster, "unaware")
        uid = cluster.uid("unaware-disk")
        before = cluster.mounts(node, uid), container(plane.get("pod", "unaware"))
        part.stop_kubelet()
        plane.kubectl("delete", "node", node)
        part.start_kubelet()
        until(plane, "the node is another", lambda: _uid_of_node(cluster, node) not in ("", old))
        owned = partial(_capacity_owners, cluster, node)
        until(plane, "its capacity belongs to it", lambda: owned() == {_uid_of_node(cluster, node)})
        assert cluster.capacities()[node] == WHOLE - GIB
        plane.apply(pod("after", node=node))
        wait_ready(cluster, "after")
        goes_on(cluster, "unaware")
        assert (cluster.mounts(node, uid), container(plane.get("pod", "unaware"))) == before
        assert plane.get("node", node)["metadata"]["labels"][names.TOPOLOGY_NODE] == node
    assert cluster.left(uid) == []


def _uid_of_node(machines: Machines, node: str) -> str:
    return machines.plane.try_kubectl("get", "node", node, "-o", "jsonpath={.metadata.uid}").stdout


def _capacity_owners(machines: Machines, node: str) -> set[str]:
    found = machines.plane.get("-n", SYSTEM, "csistoragecapacities")["items"]
    mine = [item for item in found if item["nodeTopology"]["matchLabels"][names.TOPOLOGY_NODE] == node]
    return {owner["uid"] for item in mine for owner in item["metadata"]["ownerReferences"]}


@contextmanager
def out_of_service(machines: Machines, node: str) -> Iterator[None]:
    """The node is lost, and a person has said so; afterwards it is back."""
    plane, part = machines.plane, machines.node(node)
    part.lose()
    plane.kubectl("taint", "node", node, f"{names.OUT_OF_SERVICE_TAINT}=nodeshutdown:NoExecute")
    try:
        yield
    finally:
        part.start_kubelet()
        plane.kubectl("taint", "node", node, f"{names.OUT_OF_SERVICE_TAINT}-")


def test_a_node_is_lost_for_good(cluster: Machines, tell: Callable[[str], None]) -> None:
    """A StatefulSet's pod goes elsewhere with a new volume if its class says so, and waits for its data if not."""
    plane, node = cluster.plane, "node-2"
    sets = ("statefulset/moves", "statefulset/waits", "pvc/data-moves-0", "pvc/data-waits-0")
    with removed(cluster, *sets):
        plane.kubectl("cordon", "node-1")
        plane.apply(stateful_set("moves", RELEASED), stateful_set("waits", LATE))
        for name in ("moves-0", "waits-0"):
            wait_ready(cluster, name)
        plane.kubectl("uncordon", "node-1")
        old, kept = cluster.uid("data-moves-0"), cluster.uid("data-waits-0")
        lines = written(cluster, "waits-0")
        began = time.monotonic()
        with out_of_service(cluster, node):
            moved = partial(_runs_elsewhere, cluster, "moves-0", node)
            until(plane, "one runs elsewhere", moved, seconds=400)
            tell(
                f"e2e: {time.monotonic() - began:.0f} s from the loss of a node to the pod's next life (1m by its class)"
            )
            new = cluster.uid("data-moves-0")
            assert new != old
            goes_on(cluster, "moves-0")
            assert phase(cluster, "pv", f"pvc-{old}") == "Released", "the erase is remembered"
            assert f"{node}: {POOL}/pvc-{old}.img" in cluster.left(old)
            assert not is_ready(cluster, "waits-0")
            assert (phase(cluster, "pvc", "data-waits-0"), cluster.uid("data-waits-0")) == ("Bound", kept)
        until(plane, "the other has its data again", lambda: is_ready(cluster, "waits-0"))
        assert plane.get("pod", "waits-0")["spec"]["nodeName"] == node
        assert written(cluster, "waits-0") >= lines
        until(plane, "what was released is erased", lambda: not cluster.left(old))
        assert cluster.uid("data-moves-0") == new
    assert cluster.left(kept) == []


def _runs_elsewhere(machines: Machines, name: str, node: str) -> bool:
    return is_ready(machines, name) and machines.plane.get("pod", name)["spec"]["nodeName"] != node
