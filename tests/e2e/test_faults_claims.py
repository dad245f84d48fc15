"""Claims that go while their volumes are made, and claims of impossible sizes: a real control plane, agents as processes.

Each agent is `tonnage node` with its node's bound token and a real pool; there are no kubelets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.e2e.agents import Nodes
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import POOL_SIZE, Agent, Program, agent, pool_text, until
from tests.e2e.scenes import all_room_is_back, bound, claim_path, claim_phase, delete, note, told, volume_path

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
NAMESPACE = "claims"


@pytest.fixture(scope="module")
def nodes(installed: ControlPlane) -> Iterator[Nodes]:
    """A node without a kubelet."""
    installed.kubectl("create", "namespace", NAMESPACE)
    made = Nodes(installed, "claims", NAMESPACE)
    made.add(1)
    yield made
    made.remove()
    installed.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def served(nodes: Nodes) -> Iterator[Agent]:
    """The node's agent."""
    with agent(nodes, 1) as made:
        yield made


@pytest.fixture(autouse=True)
def no_claim_left(nodes: Nodes) -> Iterator[None]:
    """A scene that failed must not be the next one's trouble."""
    yield
    nodes.plane.kubectl("-n", NAMESPACE, "delete", "pvc", "--all", "--wait=false")


# A claim that goes while its volume is being made


@contextmanager
def slow(nodes: Nodes) -> Iterator[tuple[Agent, Program]]:
    """An agent whose driver is a process of its own, so that a CreateVolume can be made to take as long as we like.

    The agent's own driver has another name here and no part in this.
    """
    with agent(
        nodes, 2, "--driver-name", "spare.tonnage.dev", "--pool", "fake,name=spare,size=1Gi", driver=False
    ) as made:
        socket = f"unix://{made.folder}/slow.sock"
        made.program.arguments += ("--csi-endpoint", socket)
        flags = ("--endpoint", socket, "--node-name", made.node, "--state", f"{made.folder}/state")
        driver = Program(("driver", *flags, "--pool", pool_text(made.pool)), made.folder / "driver.log")
        made.others.append(driver)
        driver.start()
        made.program.start()
        until(nodes.plane, "its room is published", lambda: made.free() == to_bytes(POOL_SIZE))
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
    until(nodes.plane, "its volume is being made", told(nodes, name, "is provisioning volume"))
    return uid


def test_claim_deleted_while_its_volume_is_made(nodes: Nodes, slow_driver: tuple[Agent, Program]) -> None:
    plane, (made, driver) = nodes.plane, slow_driver
    uid = under_way(nodes, driver, "gone")
    delete(nodes, "gone")
    until(plane, "the claim is gone", lambda: claim_phase(nodes, "gone") == "")
    assert made.files(uid) == []
    driver.thaw()
    until(
        plane,
        "the volume was deleted",
        lambda: f"pvc-{uid} " in _taken_back(made),
    )
    assert made.files(uid) == []
    assert plane.send("GET", volume_path(uid)).status == 404
    all_room_is_back(made)


def test_claim_made_again_while_the_first_ones_volume_is_made(nodes: Nodes, slow_driver: tuple[Agent, Program]) -> None:
    plane, (made, driver) = nodes.plane, slow_driver
    first = under_way(nodes, driver, "again")
    delete(nodes, "again")
    until(plane, "the claim is gone", lambda: claim_phase(nodes, "again") == "")
    second = str(nodes.claim("again", nodes.name(2))["metadata"]["uid"])
    assert second != first
    driver.thaw()
    until(plane, "the second is served", lambda: claim_phase(nodes, "again") == "Bound")
    until(plane, "the first one's volume is gone", lambda: f"pvc-{first} " in _taken_back(made))
    assert made.files(first) == []
    assert made.files(second) != []
    assert plane.send("GET", volume_path(first)).status == 404
    assert plane.send("GET", volume_path(second)).body["spec"]["claimRef"]["uid"] == second
    delete(nodes, "again")
    all_room_is_back(made)
    assert made.files(second) == []


def test_claim_deleted_and_its_driver_killed_while_its_volume_is_made(
    nodes: Nodes, slow_driver: tuple[Agent, Program]
) -> None:
    """Nobody knows whether there is a volume: it is asked for until that is known, though nobody wants it any more."""
    plane, (made, driver) = nodes.plane, slow_driver
    uid = under_way(nodes, driver, "unknown")
    delete(nodes, "unknown")
    until(plane, "the claim is gone", lambda: claim_phase(nodes, "unknown") == "")
    driver.kill()
    driver.start()
    until(plane, "the volume was deleted", lambda: f"pvc-{uid} " in _taken_back(made))
    assert made.files(uid) == []
    assert plane.send("GET", volume_path(uid)).status == 404
    all_room_is_back(made)


def _taken_back(made: Agent) -> str:
    return "\n".join(line for line in made.program.said().splitlines() if "deleted what=volume" in line)


# Sizes that nobody can have


@pytest.mark.parametrize("size", ["2Ei", "7Ei", "9E", "100Ei", "6145Mi"])
def test_claim_that_is_too_large(nodes: Nodes, served: Agent, size: str) -> None:
    plane, name = nodes.plane, f"large-{size.lower()}"
    made = nodes.claim(name, nodes.name(1), resources={"requests": {"storage": size}})
    until(plane, "it is told that there is no room", told(nodes, name, nodes.name(1), "6Gi free"))
    until(plane, "it is sent back", lambda: note(nodes, name, names.SELECTED_NODE) is None)
    bound(nodes, f"after-{size.lower()}")  # the queue goes on
    assert served.files(made["metadata"]["uid"]) == []
    delete(nodes, name, f"after-{size.lower()}")
    all_room_is_back(served)
    assert "Traceback" not in served.program.said()


@pytest.mark.parametrize(
    ("size", "given"),
    [("1", "1Mi"), ("1m", "1Mi"), ("1.5Gi", "1536Mi"), ("1e9", "976564Ki"), ("1000000001", "976564Ki")],
)
def test_claim_of_an_odd_size(nodes: Nodes, served: Agent, size: str, given: str) -> None:
    """At least what was asked for, in whole blocks."""
    plane, name = nodes.plane, f"odd-{size.lower()}"
    uid = bound(nodes, name, resources={"requests": {"storage": size}})
    capacity = plane.send("GET", volume_path(uid)).body["spec"]["capacity"]["storage"]
    assert (capacity, to_bytes(capacity) >= to_bytes(size)) == (given, True)
    delete(nodes, name)
    all_room_is_back(served)


def test_claim_of_all_there_is(nodes: Nodes, served: Agent) -> None:
    plane = nodes.plane
    bound(nodes, "all", resources={"requests": {"storage": POOL_SIZE}})
    until(plane, "nothing is left", lambda: served.free() == 0)
    nodes.claim("more", nodes.name(1), resources={"requests": {"storage": "1"}})
    until(plane, "it is told that there is no room", told(nodes, "more", "0 free"))
    delete(nodes, "all", "more")
    all_room_is_back(served)


@pytest.mark.parametrize("size", ["0", "-1Gi"])
def test_claim_of_nothing_is_rejected_by_kubernetes(nodes: Nodes, size: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "none"}, "spec": spec}
    answer = nodes.plane.send("POST", claim_path(nodes, ""), body)
    assert answer.status == 422
    assert "must be greater than zero" in answer.message
