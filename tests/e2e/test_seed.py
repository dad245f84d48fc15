"""tonnage on two real kubelets, its agents a DaemonSet of our own image: a pod's disk from its creation to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml
from cluster.__main__ import BUSYBOX
from tests.e2e.machines import AGENTS, GIB, POOL, POOL_SIZE, SYSTEM, WRITER, Machines, container

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "pod-ephemeral.yaml"


def test_agents_serve_both_nodes(machines: Machines) -> None:
    plane = machines.plane
    assert machines.tainted() == []
    for node in machines.names:
        drivers = plane.get("csinode", node)["spec"]["drivers"]
        assert [(d["name"], d["topologyKeys"]) for d in drivers] == [(names.DRIVER, [names.TOPOLOGY_NODE])]
    assert machines.capacities() == dict.fromkeys(machines.names, to_bytes(POOL_SIZE))
    plane.until("both agents are ready", lambda: set(machines.agents()) == set(machines.names))
    assert [container(pod)[1] for pod in machines.agents().values()] == [0, 0]
    owners = [
        item["metadata"]["ownerReferences"][0]["kind"]
        for item in plane.get("-n", SYSTEM, "csistoragecapacities")["items"]
    ]
    assert owners == ["Node", "Node"]


def test_seed_pod_writes_is_limited_and_leaves_nothing(machines: Machines, tell: Callable[[str], None]) -> None:
    body = yaml.safe_load(EXAMPLE.read_text())
    body["spec"]["containers"][0]["image"] = BUSYBOX
    body["spec"]["terminationGracePeriodSeconds"] = 0
    name = body["metadata"]["name"]
    with machines.removed(name):
        began = time.monotonic()
        machines.plane.apply(body)
        node = machines.wait_ready(name)
        tell(f"e2e: a pod with a 4Gi volume ready {time.monotonic() - began:.1f} s after apply")
        uid = machines.uid(f"{name}-data")
        assert machines.capacities()[node] == to_bytes(POOL_SIZE) - 4 * GIB
        size, used, available = map(int, machines.shell(name, "df -k /data | tail -n 1").split()[1:4])
        assert available >= 4 * 2**20 > size - 64 * 2**10
        assert used < 2**10

        assert "No space left" in machines.shell(name, "busybox fallocate -l 5G /data/large || true")
        fill = f"rm -f /data/large && busybox fallocate -l {(available - 2048) * 1024} /data/large && echo filled"
        assert machines.shell(name, fill).strip() == "filled"
        said = machines.shell(name, "echo kept > /data/small && dd if=/dev/zero of=/data/over bs=1M count=8 || true")
        assert "No space left" in said
        assert machines.shell(name, "cat /data/small").strip() == "kept"

        assert f"{node}: {POOL}/pvc-{uid}.img" in machines.left(uid)
        assert [what for what in machines.left(uid) if what.startswith("loop device")]
        machines.plane.kubectl("delete", "pod", name)
        machines.plane.until("nothing is left", lambda: not machines.left(uid))


def test_capacity_steers_pods(machines: Machines) -> None:
    """4Gi fit once on each node: the second pod goes to the other one, the third waits until there is room."""
    with machines.removed("first", "second", "third", "huge"):
        machines.start("first")
        before = machines.wait_ready("first")
        machines.start("second")
        after = machines.wait_ready("second")
        assert {before, after} == set(machines.names)
        machines.start("third")
        machines.start("huge", "40Gi")
        for name in ("third", "huge"):
            machines.plane.until(f"{name} is told why it waits", partial(_lacks_room, machines, name))
            assert "nodeName" not in machines.plane.get("pod", name)["spec"]
        machines.plane.kubectl("delete", "pod", "first")
        assert machines.wait_ready("third") == before
        assert "nodeName" not in machines.plane.get("pod", "huge")["spec"]


def _lacks_room(machines: Machines, name: str) -> bool:
    conditions = machines.plane.get("pod", name)["status"]["conditions"]
    messages = [c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
    return any("2 node(s) did not have enough free storage" in message for message in messages)


def test_kubelet_is_restarted_under_a_pod(machines: Machines) -> None:
    """Nothing is unmounted, nothing mounted twice, and the pod does not notice."""
    plane = machines.plane
    with machines.removed("under-kubelet", "beside-it"):
        machines.start("under-kubelet", command=WRITER)
        node = machines.wait_ready("under-kubelet")
        uid = machines.uid("under-kubelet-disk")
        before = machines.mounts(node, uid), container(plane.get("pod", "under-kubelet"))
        assert len(before[0]) >= 2  # staged and published
        part = machines.node(node)
        part.stop_kubelet()
        part.start_kubelet()
        plane.until("the kubelet has its pod again", lambda: _answers(machines, "under-kubelet"))
        machines.start(
            "beside-it", "1Gi", node=node
        )  # so its driver is registered again, and its volumes were looked at
        machines.wait_ready("beside-it")
        written = _written(machines, "under-kubelet")
        plane.until("the pod goes on writing", lambda: _written(machines, "under-kubelet") > written + 3)
        assert (machines.mounts(node, uid), container(plane.get("pod", "under-kubelet"))) == before
        plane.kubectl("delete", "pod", "under-kubelet")
        plane.until("nothing is left", lambda: not machines.left(uid))


def _answers(machines: Machines, pod: str) -> bool:
    return machines.plane.try_kubectl("exec", pod, "--", "true").returncode == 0


def _written(machines: Machines, pod: str) -> int:
    """How many lines the pod has written, none of them missing."""
    lines = machines.shell(pod, "cat /data/log").splitlines()
    assert lines == [str(number) for number in range(1, len(lines) + 1)]
    return len(lines)


def test_agents_are_replaced_under_a_pod(machines: Machines) -> None:
    """As an upgrade does: the pod keeps reading and writing, and the new agent goes on with the old one's volume."""
    plane = machines.plane
    with machines.removed("under-agent", "after"):
        machines.start("under-agent", command=WRITER)
        node = machines.wait_ready("under-agent")
        uid = machines.uid("under-agent-disk")
        before = machines.mounts(node, uid), container(plane.get("pod", "under-agent"))
        old = machines.agents()
        plane.kubectl("-n", SYSTEM, "delete", "pod", "-l", AGENTS)

        def replaced() -> bool:
            new = machines.agents()
            return set(new) == set(old) and all(new[n]["metadata"]["uid"] != old[n]["metadata"]["uid"] for n in old)

        plane.until("new agents are ready", replaced)
        written = _written(machines, "under-agent")
        plane.until("the pod goes on writing", lambda: _written(machines, "under-agent") > written + 3)
        assert (machines.mounts(node, uid), container(plane.get("pod", "under-agent"))) == before
        machines.start("after")
        other = machines.wait_ready("after")
        assert other != node  # the new agent knows what the old one's pod has
        plane.kubectl("delete", "pod", "under-agent")
        plane.until("nothing is left", lambda: not machines.left(uid))
