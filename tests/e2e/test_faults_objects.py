"""Objects that go at the wrong moment, and claims that ask for the impossible: a real control plane, agents as processes.

Each agent is `tonnage node` with its node's bound token and a real pool; there are no kubelets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.e2e.agents import Nodes
from tests.e2e.conftest import ControlPlane
from tests.e2e.processes import POOL_SIZE, Agent, Program, agent, events, pool_text

from tonnage.api import names
from tonnage.api.quantity import to_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
NAMESPACE = "objects"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
KEPT = "objects-kept"
"""A class whose volumes are retained."""


@pytest.fixture(scope="module")
def nodes(installed: ControlPlane) -> Iterator[Nodes]:
    """A node without a kubelet, and a class of our own."""
    installed.kubectl("create", "namespace", NAMESPACE)
    installed.apply(storage_class(KEPT, reclaimPolicy="Retain"))
    made = Nodes(installed, "objects", NAMESPACE)
    made.add(1)
    yield made
    made.remove()
    installed.kubectl("delete", "storageclass", KEPT)
    installed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def storage_class(name: str, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": names.DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
        **more,
    }


@pytest.fixture(scope="module")
def served(nodes: Nodes) -> Iterator[Agent]:
    """The node's agent."""
    with agent(nodes, 1) as made:
        yield made


def phase(plane: ControlPlane, path: str) -> str:
    """Of a claim or a PersistentVolume; "" when it is gone."""
    found = plane.send("GET", path)
    return str(found.body.get("status", {}).get("phase", "")) if found.status == 200 else ""


def claim_phase(plane: ControlPlane, name: str) -> str:
    return phase(plane, f"{CLAIMS}/{name}")


def bound(nodes: Nodes, name: str, *, node: int = 1, **more: Any) -> str:
    """A claim that has its volume; its uid."""
    uid = str(nodes.claim(name, nodes.name(node), **more)["metadata"]["uid"])
    nodes.plane.until(f"{name} is bound", lambda: claim_phase(nodes.plane, name) == "Bound")
    return uid


def delete(plane: ControlPlane, *names_: str) -> None:
    plane.kubectl("-n", NAMESPACE, "delete", "pvc", "--wait=false", "--ignore-not-found", *names_)


def volume_path(uid: str) -> str:
    return f"/api/v1/persistentvolumes/pvc-{uid}"


def told(plane: ControlPlane, name: str, *words: str) -> Callable[[], bool]:
    """Whether an Event about the claim has all those words."""
    return lambda: any(all(w in text for w in words) for _, text in events(plane, NAMESPACE, name))


def all_room_is_back(plane: ControlPlane, node: Agent) -> None:
    plane.until("all room is back", lambda: node.free() == to_bytes(POOL_SIZE))


# A claim that goes while its volume is being made


@contextmanager
def slow(nodes: Nodes) -> Iterator[tuple[Agent, Program]]:
    """An agent whose driver is a process of its own, so that a CreateVolume can be made to take as long as we like.

    The agent's own driver has another name here and no part in this.
    """
    with agent(
        nodes, 2, "--driver-name", "spare.tonnage.dev", "--pool", "memory,name=spare,size=1Gi", driver=False
    ) as made:
        socket = f"unix://{made.folder}/slow.sock"
        made.program.arguments += ("--csi-endpoint", socket)
        flags = ("--endpoint", socket, "--node-name", made.node, "--state", f"{made.folder}/state")
        driver = Program(("driver", *flags, "--pool", pool_text(made.pool)), made.folder / "driver.log")
        made.others.append(driver)
        driver.start()
        made.program.start()
        nodes.plane.until("its room is published", lambda: made.free() == to_bytes(POOL_SIZE))
        yield made, driver


@pytest.fixture(scope="module")
def slow_driver(nodes: Nodes) -> Iterator[tuple[Agent, Program]]:
    """One for this module."""
    nodes.add(2)
    with slow(nodes) as made:
        yield made


def under_way(nodes: Nodes, driver: Program, name: str) -> str:
    """A claim whose CreateVolume has been called and is not answered; its uid."""
    driver.freeze()
    uid = str(nodes.claim(name, nodes.name(2))["metadata"]["uid"])
    # Written in the same step as the call: who can read it comes later.
    nodes.plane.until("its volume is being made", told(nodes.plane, name, "is provisioning volume"))
    return uid


def test_claim_deleted_while_its_volume_is_made(nodes: Nodes, slow_driver: tuple[Agent, Program]) -> None:
    plane, (made, driver) = nodes.plane, slow_driver
    uid = under_way(nodes, driver, "gone")
    delete(plane, "gone")
    plane.until("the claim is gone", lambda: claim_phase(plane, "gone") == "")
    assert made.files(uid) == []
    driver.thaw()
    plane.until(
        "the volume was taken back", lambda: f"volume taken back volume=scratch/pvc-{uid}" in made.program.said()
    )
    assert made.files(uid) == []
    assert plane.send("GET", volume_path(uid)).status == 404
    all_room_is_back(plane, made)


def test_claim_made_again_while_the_first_ones_volume_is_made(nodes: Nodes, slow_driver: tuple[Agent, Program]) -> None:
    plane, (made, driver) = nodes.plane, slow_driver
    first = under_way(nodes, driver, "again")
    delete(plane, "again")
    plane.until("the claim is gone", lambda: claim_phase(plane, "again") == "")
    second = str(nodes.claim("again", nodes.name(2))["metadata"]["uid"])
    assert second != first
    driver.thaw()
    plane.until("the second is served", lambda: claim_phase(plane, "again") == "Bound")
    plane.until("the first one's volume is gone", lambda: f"pvc-{first} " in _taken_back(made))
    assert made.files(first) == []
    assert made.files(second) != []
    assert plane.send("GET", volume_path(first)).status == 404
    assert plane.send("GET", volume_path(second)).body["spec"]["claimRef"]["uid"] == second
    delete(plane, "again")
    all_room_is_back(plane, made)
    assert made.files(second) == []


def test_claim_deleted_and_its_driver_killed_while_its_volume_is_made(
    nodes: Nodes, slow_driver: tuple[Agent, Program]
) -> None:
    """Nobody knows whether there is a volume: it is asked for until that is known, though nobody wants it any more."""
    plane, (made, driver) = nodes.plane, slow_driver
    uid = under_way(nodes, driver, "unknown")
    delete(plane, "unknown")
    plane.until("the claim is gone", lambda: claim_phase(plane, "unknown") == "")
    driver.kill()
    driver.start()
    plane.until("the volume was taken back", lambda: f"pvc-{uid} " in _taken_back(made))
    assert made.files(uid) == []
    assert plane.send("GET", volume_path(uid)).status == 404
    all_room_is_back(plane, made)


def _taken_back(made: Agent) -> str:
    return "\n".join(line for line in made.program.said().splitlines() if "volume taken back" in line)
