"""Agents that are killed at any moment, started twice, rejected by the API server, and whose numbers others change.

They are `tonnage node` with a node's bound token and a real pool, on a real control plane. Pods are placed by the real
scheduler on nodes that have no kubelet: what is tested is the agent.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cluster.processes import free_port
from tests.e2e.agents import SYSTEM, Nodes
from tests.e2e.control_plane import ControlPlane
from tests.e2e.hollow import Hollow, cpu_seconds, in_pool, measured
from tests.e2e.processes import POOL_SIZE, Agent, Program, agent, events, stays

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
NAMESPACE = "faults-agent"
CAPACITIES = f"/apis/storage.k8s.io/v1/namespaces/{SYSTEM}/csistoragecapacities"
MIB = 2**20
WHOLE = to_bytes(POOL_SIZE)


@pytest.fixture(scope="module")
def nodes(installed: ControlPlane) -> Iterator[Nodes]:
    """Nodes and a namespace of our own."""
    installed.kubectl("create", "namespace", NAMESPACE)
    made = Nodes(installed, "faulty", NAMESPACE)
    yield made
    made.remove()
    installed.kubectl("delete", "csinode", *made.tokens, "--ignore-not-found")
    installed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def hollow(nodes: Nodes) -> Hollow:
    """The node where pods go."""
    return Hollow(nodes, 1)


def kill_often(program: Program, until: Callable[[], bool], choose: random.Random, *, least: int, most: int) -> int:
    """Kill a process at random moments and start it again until something is so, within these bounds; how often."""
    kills = 0
    while kills < least or (kills < most and not until()):
        time.sleep(choose.uniform(0.2, 3.0))
        program.kill()
        program.start()
        kills += 1
    return kills


def test_an_agent_is_killed_at_any_time_during_a_hundred_pods(
    hollow: Hollow, nodes: Nodes, tell: Callable[[str], None]
) -> None:
    plane, choose = nodes.plane, random.Random(1)
    pods = [f"pod-{n}" for n in range(100)]
    with agent(nodes, 1) as served:

        def ask() -> None:
            for n in range(0, 100, 10):
                hollow.run(*pods[n : n + 10])

        asking = Thread(target=ask)
        asking.start()
        kills = kill_often(served.program, lambda: len(hollow.placed()) == 100, choose, least=3, most=15)
        asking.join()
        plane.until("all are placed", lambda: len(hollow.placed()) == 100)
        wanted = sorted(names.volume_name(uid) for uid in hollow.claims().values())
        assert len(wanted) == 100
        assert hollow.volumes() == wanted
        assert sorted(in_pool(served)) == wanted
        assert sum(in_pool(served).values()) == 100 * 32 * MIB
        plane.until("the sum is published", lambda: served.free() == WHOLE - 100 * 32 * MIB)

        hollow.end_pods()
        more = kill_often(served.program, lambda: not hollow.volumes(), choose, least=2, most=10)
        plane.until("no volume is left", lambda: not hollow.volumes() and not hollow.claims())
        plane.until("all room is back", lambda: served.free() == WHOLE)
        assert in_pool(served) == {}
        assert [path.name for path in served.pool.iterdir() if "pvc-" in path.name] == []
        tell(f"faults: 100 pods, the agent killed {kills} times while they came and {more} times while they went")


def test_the_second_agent_of_a_node_rejects(hollow: Hollow, nodes: Nodes) -> None:
    plane = nodes.plane
    with agent(nodes, 1) as served:
        first = served.program.process
        assert first is not None
        inode = _socket(served).stat().st_ino
        other = Program(served.program.arguments, served.folder / "second.log")
        served.others.append(other)
        other.start()
        assert other.process is not None
        assert other.process.wait(timeout=60) != 0
        said = other.said()
        assert "Traceback" not in said
        assert "another process" in said
        assert str(served.folder) in said  # what is taken

        assert first.poll() is None
        assert _socket(served).stat().st_ino == inode
        hollow.run("beside")
        plane.until("the first goes on", lambda: hollow.placed() == ["beside"])
        hollow.end_pods()
        plane.until("all room is back", lambda: served.free() == WHOLE and in_pool(served) == {})


def _socket(served: Agent) -> Path:
    return served.folder / "kubelet" / "plugins" / names.DRIVER / "csi.sock"


def use_token_file(served: Agent, token: str) -> Path:
    """Let an agent read its token from a file, as in a pod; it has to be started anew."""
    file = served.folder / "kubeconfig"
    config = json.loads(file.read_text())
    config["users"][0]["user"] = {"tokenFile": str(served.folder / "token")}
    file.write_text(json.dumps(config))
    (served.folder / "token").write_text(token)
    return served.folder / "token"


def test_the_agents_token_is_no_longer_good(hollow: Hollow, nodes: Nodes, tell: Callable[[str], None]) -> None:
    """Bound to a pod that is deleted, and replaced at last, as the kubelet does it."""
    plane, port = nodes.plane, free_port()
    with agent(nodes, 1, "--metrics", str(port)) as served:
        served.program.kill()
        token = _token(plane, hollow.node, "short-lived")
        file = use_token_file(served, token)
        served.program.start()
        hollow.run("before")
        plane.until("it works", lambda: hollow.placed() == ["before"])
        volumes = in_pool(served)
        flags = ("--grace-period=0", "--force")
        plane.kubectl("-n", SYSTEM, "delete", "pod", "short-lived", *flags)
        plane.until("its token is rejected", lambda: plane.send("GET", CAPACITIES, token=token).status == 401)
        hollow.run("meanwhile")
        rejected = "does not accept our credentials"
        plane.until("it is rejected, and says so", lambda: rejected in served.program.said())
        assert measured(port, "tonnage_credentials_refused") == 1
        process = served.program.process
        assert process is not None
        asked, used = measured(port, "rest_client_requests_total"), cpu_seconds(process)
        hollow.end_pods()
        stays("nothing is removed", lambda: volumes.keys() <= in_pool(served).keys(), seconds=20)
        asked, used = measured(port, "rest_client_requests_total") - asked, cpu_seconds(process) - used
        assert asked < 300
        assert used < 5.0
        assert process.poll() is None
        assert served.program.said().count(rejected) == 1

        file.write_text(_token(plane, hollow.node, "next"))
        plane.until("it is accepted again", lambda: "accepts our credentials again" in served.program.said())
        assert measured(port, "tonnage_credentials_refused") == 0
        hollow.run("after")
        plane.until("it works again", lambda: hollow.placed() == ["after"])
        hollow.end_pods()
        plane.until("nothing is left", lambda: in_pool(served) == {} and not hollow.volumes())
        tell(f"faults: no good token for 20 s and more, the agent asked {asked:.0f} times and used {used:.1f} s")
        plane.kubectl("-n", SYSTEM, "delete", "pod", "next", *flags)


def _token(plane: ControlPlane, node: str, pod: str) -> str:
    """A token as an agent's pod has it."""
    spec = {
        "nodeName": node,
        "serviceAccountName": "tonnage-node",
        "containers": [{"name": "node", "image": "none.invalid/none"}],
        "tolerations": [{"operator": "Exists"}],
    }
    plane.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": SYSTEM}, "spec": spec},
    )
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}")
    return plane.kubectl("-n", SYSTEM, "create", "token", "tonnage-node", *bound).strip()


def test_capacity_objects_are_tampered_with(hollow: Hollow, nodes: Nodes) -> None:
    plane = nodes.plane

    def objects() -> list[Any]:
        found = plane.send("GET", CAPACITIES).body["items"]
        return [o for o in found if o["nodeTopology"]["matchLabels"].get(names.TOPOLOGY_NODE) == hollow.node]

    def told() -> str:
        return "\n".join(text for reason, text in events(plane, "default", hollow.node) if reason == "CapacityTampered")

    with agent(nodes, 1) as served:
        (good,) = objects()
        name, path = good["metadata"]["name"], f"{CAPACITIES}/{good['metadata']['name']}"

        def put_right() -> bool:
            (now,) = objects() or [{}]
            fields = ("capacity", "maximumVolumeSize", "storageClassName", "nodeTopology")
            same = now and all(now[f] == good[f] for f in fields)
            return bool(
                same
                and now["metadata"]["name"] == name
                and now["metadata"].get("labels") == good["metadata"]["labels"]
                and now["metadata"].get("ownerReferences") == good["metadata"]["ownerReferences"]
            )

        def tamper(what: str, body: Any, word: str) -> None:
            assert plane.send("PATCH", path, body).status == 200, what
            plane.until(f"{what}: put right", put_right)
            plane.until(f"{what}: said", lambda: word in told())

        assert put_right()
        tamper("huge", {"capacity": "9Ti", "maximumVolumeSize": "9Ti"}, "capacity 9Ti, was 6Gi")
        tamper("nothing", {"capacity": "0", "maximumVolumeSize": "0"}, "capacity 0, was 6Gi")
        foreign = [{"apiVersion": "v1", "kind": "Node", "name": "other", "uid": nodes.uids[hollow.node]}]
        tamper("of another node", {"metadata": {"ownerReferences": foreign}}, "(owner)")
        tamper("without labels", {"metadata": {"labels": None}}, "removed by somebody")

        assert plane.send("DELETE", path).status == 200
        plane.until("deleted: made again", put_right)
        copy = {key: good[key] for key in ("storageClassName", "nodeTopology")}
        head = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity", "capacity": "9Ti"}
        labels = good["metadata"]["labels"]
        owners = good["metadata"]["ownerReferences"]
        double = {"name": "double", "namespace": SYSTEM, "labels": labels, "ownerReferences": owners}
        plane.create({**head, **copy, "metadata": double})
        plane.until("a second one: removed", lambda: len(objects()) == 1 and put_right())
        plane.until("a second one: said", lambda: "double is a duplicate" in told())

        hollow.run("after")  # the numbers are its own again
        plane.until("placed", lambda: hollow.placed() == ["after"] and served.free() == WHOLE - 32 * MIB)
        hollow.end_pods()
        plane.until("all room is back", lambda: served.free() == WHOLE and in_pool(served) == {})
        said = len([event for event in events(plane, "default", hollow.node) if event[0] == "CapacityTampered"])
        assert 4 <= said <= 8  # what the agent itself writes is no news
