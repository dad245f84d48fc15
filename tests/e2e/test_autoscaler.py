"""Nodes that do not exist yet, judged by the real kube-scheduler as the cluster autoscaler has its filters judge them.

The autoscaler imagines a node with the labels of a group and one of its own, and runs the scheduler's filters on it.
Here such a node is an object for a moment, and a pod that may go nowhere else says what the filters say. When they
admit it, a real node comes up, with its start-up taint and its agent, as the autoscaler would have the cloud do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.e2e import inprocess
from tests.e2e.control_plane import ControlPlane
from tests.e2e.inprocess import add_node, agent_on, node_of, register, scratch_pod, until
from tests.e2e.replicas import Replicas

from tonnage.kubernetes.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE, LABEL = "autoscaler", "example.com/group"
ROOM = 10 << 30
NODES = ("cold-1", "warm-1", "warm-2")
NO_STORAGE = "did not have enough free storage"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"


@pytest.fixture(scope="module")
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """With a namespace of its own."""
    installed.kubectl("create", "namespace", NAMESPACE)
    yield installed
    inprocess.remove(installed, NAMESPACE, *NODES)


@pytest.fixture(scope="module")
def controller(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """It is told of group "cold"; other groups it learns. Made by the first test that asks for it."""
    options = ("--node-group-label", LABEL, "--node-template", f"{LABEL}=cold:{names.SCRATCH_CLASS}=10Gi")
    replicas = Replicas(plane, tmp_path_factory.mktemp("controller"), "controller", *options)
    replicas.start("one")
    try:
        plane.until("it leads", lambda: replicas.leader() == "one", seconds=inprocess.LONG)
        yield
    finally:
        replicas.end()


class Judge:
    """Asks the filters whether a new node of a group would admit a pod with a volume of some size."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self._count = plane, 0

    async def admits(self, group: str, size: str) -> None:
        """Wait until they do. They may have rejected before: what is published reaches the scheduler a moment later."""
        await self._ask(group, size, "admitted", lambda pod, node: self._sent(pod) == node)

    async def rejects(self, group: str, size: str) -> None:
        """Wait until they say that there is no storage, and not before."""

        def rejected(pod: str, node: str) -> bool:
            assert self._sent(pod) != node, f"{size} was admitted to group {group}"
            return NO_STORAGE in self._told(pod)

        await self._ask(group, size, "rejected", rejected)

    async def _ask(self, group: str, size: str, what: str, answered: Callable[[str, str], bool]) -> None:
        self._count += 1
        name = f"judged-{self._count}"
        node = f"template-node-for-{group}-{self._count}"
        labels = {LABEL: group, names.TEMPLATE_NODE: "true"}
        add_node(self._plane, node, labels=labels, taints=["example.com/imagined"])
        tolerations = [*inprocess.TOLERATED, {"key": "example.com/imagined", "operator": "Exists"}]
        self._plane.create(
            scratch_pod(name, NAMESPACE, size, nodeSelector={names.HOSTNAME_LABEL: node}, tolerations=tolerations)
        )
        try:
            await until(self._plane, f"{size} is {what} to group {group}", lambda: answered(name, node))
        finally:
            self._plane.kubectl("-n", NAMESPACE, "delete", "pod", name, "--grace-period=0", "--force")
            self._plane.kubectl("delete", "node", node)

    def _sent(self, name: str) -> str:
        found = self._plane.send("GET", f"{CLAIMS}/{name}-v0")
        notes = found.body["metadata"].get("annotations", {}) if found.status == 200 else {}
        return str(notes.get(names.SELECTED_NODE, ""))

    def _told(self, name: str) -> str:
        found = self._plane.send("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        conditions = found.body["status"].get("conditions", []) if found.status == 200 else []
        return " ".join(c.get("message", "") for c in conditions if c["type"] == "PodScheduled")


@pytest.fixture
def judge(plane: ControlPlane) -> Judge:
    return Judge(plane)


@pytest.fixture
async def grow(plane: ControlPlane) -> Any:
    """grow(name, group): a node comes up, as the autoscaler would have asked for."""
    async with AsyncExitStack() as stack:

        async def make(name: str, group: str) -> Any:
            add_node(plane, name, labels={LABEL: group}, taints=[names.STARTUP_TAINT])
            coming = agent_on(plane, name, room=ROOM, startup_taint=[names.DRIVER])
            agent = await stack.enter_async_context(coming)
            register(plane, name)
            return agent

        yield make
        plane.kubectl("-n", NAMESPACE, "delete", "pods", "--all", "--grace-period=0", "--force")
        await until(plane, "all claims are gone", lambda: not plane.send("GET", CLAIMS).body["items"])


def templates(plane: ControlPlane) -> dict[str, str]:
    """Group -> what is said of its nodes to come."""
    found = plane.get("-n", names.SYSTEM_NAMESPACE, "csistoragecapacities")["items"]
    chosen = [obj for obj in found if names.TEMPLATE_NODE in obj.get("nodeTopology", {}).get("matchLabels", {})]
    return {obj["nodeTopology"]["matchLabels"][LABEL]: obj["capacity"] for obj in chosen}


async def test_without_templates_no_new_node_would_help(judge: Judge) -> None:
    await judge.rejects("cold", "8Gi")


async def test_a_group_that_never_had_a_node_grows(
    plane: ControlPlane, controller: None, judge: Judge, grow: Any
) -> None:
    await until(plane, "the template is there", lambda: templates(plane) == {"cold": "10Gi"})
    plane.create(scratch_pod("work", NAMESPACE, "8Gi", nodeSelector={LABEL: "cold"}))
    await judge.rejects("cold", "11Gi")
    await judge.rejects("unknown", "8Gi")
    await judge.admits("cold", "8Gi")
    assert node_of(plane, NAMESPACE, "work") == ""

    await grow("cold-1", "cold")
    await until(plane, "the pod is placed", lambda: node_of(plane, NAMESPACE, "work") == "cold-1")
    taints = plane.get("node", "cold-1")["spec"].get("taints", [])
    assert names.STARTUP_TAINT not in [taint["key"] for taint in taints]


async def test_what_is_learned_of_a_live_node_outlives_it(
    plane: ControlPlane, controller: None, judge: Judge, grow: Any
) -> None:
    await judge.rejects("warm", "8Gi")
    agent = await grow("warm-1", "warm")
    plane.create(scratch_pod("first", NAMESPACE, "8Gi", nodeSelector={LABEL: "warm"}))
    await until(plane, "the pod is placed", lambda: node_of(plane, NAMESPACE, "first") == "warm-1")
    await until(plane, "what is taken is counted", lambda: templates(plane).get("warm") == "10Gi")
    await judge.admits("warm", "9Gi")

    plane.kubectl("-n", NAMESPACE, "delete", "pod", "first", "--grace-period=0", "--force")
    await until(plane, "its claim is gone", lambda: not plane.send("GET", CLAIMS).body["items"])
    await agent.stop()
    plane.kubectl("delete", "node", "warm-1")
    await judge.admits("warm", "9Gi")

    await grow("warm-2", "warm")
    plane.create(scratch_pod("second", NAMESPACE, "9Gi", nodeSelector={LABEL: "warm"}))
    await until(plane, "the pod is placed", lambda: node_of(plane, NAMESPACE, "second") == "warm-2")
