"""Distributed provisioning: an external-provisioner with --node-deployment beside the driver of each node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.third_party.sidecar_stack import (
    DRIVER,
    OBJECTS,
    SPACE,
    TOPOLOGY,
    SidecarStack,
    claim,
    of_claim,
    pod,
)

pytestmark = [pytest.mark.real, pytest.mark.programs, pytest.mark.timeout(900)]
ROOM = {"node-1": 1, "node-2": 2}
"""GiB that the driver has on each node."""


@pytest.fixture(scope="module")
def stack(make_cluster: Callable[..., Any], go_program: Callable[[str], Path]) -> Iterator[SidecarStack]:
    """Two nodes, each with a driver, whose volumes need no attaching, and a provisioner."""
    for name in ("hostpath", "csi-provisioner"):
        go_program(name)
    made = SidecarStack(make_cluster("--nodes", "2"), go_program)
    made.cluster.up()
    made.cluster.kubectl("apply", "-f", "-", stdin=OBJECTS.replace("ATTACH", "false"))
    try:
        for node, room in ROOM.items():
            made.add_driver(node, "-capacity", f"fast={room}Gi")
            made.add_sidecar(
                "csi-provisioner", node, "--node-deployment", "--node-deployment-base-delay=1s", "--enable-capacity",
                "--node-deployment-max-delay=2s", "--capacity-ownerref-level=-1", "--capacity-poll-interval=1s",
                "--capacity-for-immediate-binding", NODE_NAME=node, NAMESPACE=SPACE,
            )  # fmt: skip
        yield made
    finally:
        made.cluster.down("--purge")
        made.close()


@pytest.fixture(autouse=True)
def swept(stack: SidecarStack) -> Iterator[None]:
    """After each test nothing is left."""
    yield
    stack.cluster.kubectl("delete", "pod,pvc", "--all", "--timeout=300s")
    stack.cluster.until("no volume is left", lambda: not stack.cluster.get("pv")["items"])
    assert not any(map(stack.state, ROOM))


def published(stack: SidecarStack) -> dict[tuple[str, str], str]:
    """Room by node and class."""
    items = stack.cluster.get("csistoragecapacities", "-n", SPACE)["items"]
    return {(i["nodeTopology"]["matchLabels"][TOPOLOGY], i["storageClassName"]): i["capacity"] for i in items}


def place(stack: SidecarStack, name: str) -> str:
    """The node of a claim's volume."""
    volume = stack.cluster.get("pv", stack.cluster.get("pvc", name)["spec"]["volumeName"])
    assert volume["spec"]["csi"]["driver"] == DRIVER
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    return str(term["matchExpressions"][0]["values"][0])


def test_each_node_publishes_its_room(stack: SidecarStack) -> None:
    room = {(node, name): f"{gib}Gi" for node, gib in ROOM.items() for name in ("late", "at-once")}
    stack.cluster.until("all room is there", lambda: published(stack) == room)


def test_a_pod_goes_where_its_volume_fits(stack: SidecarStack) -> None:
    stack.cluster.until("the room is there", lambda: published(stack).get(("node-2", "late")) == "2Gi")
    stack.cluster.kubectl("apply", "-f", "-", stdin=claim("large", "late", "1500Mi"))
    stack.run(pod("large", "exec sleep 1000", of_claim("large")))
    assert place(stack, "large") == "node-2"
    assert stack.cluster.get("pod", "large")["spec"]["nodeName"] == "node-2"
    assert len(stack.state("node-2")) == 1
    stack.cluster.until("there is less room", lambda: published(stack)["node-2", "late"] == "548Mi")


def test_a_claim_that_is_bound_at_once_has_one_owner(stack: SidecarStack) -> None:
    for number in range(3):
        stack.cluster.kubectl("apply", "-f", "-", stdin=claim(f"now-{number}", "at-once", "300Mi"))
    for number in range(3):
        stack.run(pod(f"now-{number}", "exec sleep 1000", of_claim(f"now-{number}")))
    assert sum(len(stack.state(node)) for node in ROOM) == 3


def test_a_killed_provisioner_goes_on(stack: SidecarStack) -> None:
    many = [f"many-{number}" for number in range(4)]
    for name in many:
        stack.cluster.kubectl("apply", "-f", "-", stdin=claim(name, "late", "200Mi"))
        stack.cluster.kubectl("apply", "-f", "-", stdin=pod(name, "exec sleep 1000", of_claim(name)))
    for node in ROOM:
        stack.processes[f"csi-provisioner {node}"].kill()
    stack.cluster.kubectl("wait", "--for=condition=Ready", *(f"pod/{name}" for name in many), "--timeout=300s")
    assert sum(len(stack.state(node)) for node in ROOM) == 4
