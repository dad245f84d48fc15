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
from tests.e2e.processes import POOL_SIZE, Agent, Program, agent, events, pool_text, stays, until

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


@pytest.fixture(autouse=True)
def no_claim_left(nodes: Nodes) -> Iterator[None]:
    """A scene that failed must not be the next one's trouble."""
    yield
    nodes.plane.kubectl("-n", NAMESPACE, "delete", "pvc", "--all", "--wait=false")


def phase(plane: ControlPlane, path: str) -> str:
    """Of a claim or a PersistentVolume; "" when it is gone."""
    found = plane.send("GET", path)
    return str(found.body.get("status", {}).get("phase", "")) if found.status == 200 else ""


def claim_phase(plane: ControlPlane, name: str) -> str:
    return phase(plane, f"{CLAIMS}/{name}")


def bound(nodes: Nodes, name: str, *, node: int = 1, **more: Any) -> str:
    """A claim that has its volume; its uid."""
    uid = str(nodes.claim(name, nodes.name(node), **more)["metadata"]["uid"])
    until(nodes.plane, f"{name} is bound", lambda: claim_phase(nodes.plane, name) == "Bound")
    return uid


def delete(plane: ControlPlane, *names_: str) -> None:
    plane.kubectl("-n", NAMESPACE, "delete", "pvc", "--wait=false", "--ignore-not-found", *names_)


def volume_path(uid: str) -> str:
    return f"/api/v1/persistentvolumes/pvc-{uid}"


def told(plane: ControlPlane, name: str, *words: str) -> Callable[[], bool]:
    """Whether an Event about the claim has all those words."""
    return lambda: any(all(w in text for w in words) for _, text in events(plane, NAMESPACE, name))


def all_room_is_back(plane: ControlPlane, node: Agent) -> None:
    until(plane, "all room is back", lambda: node.free() == to_bytes(POOL_SIZE))


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
    until(nodes.plane, "its volume is being made", told(nodes.plane, name, "is provisioning volume"))
    return uid


def test_claim_deleted_while_its_volume_is_made(nodes: Nodes, slow_driver: tuple[Agent, Program]) -> None:
    plane, (made, driver) = nodes.plane, slow_driver
    uid = under_way(nodes, driver, "gone")
    delete(plane, "gone")
    until(plane, "the claim is gone", lambda: claim_phase(plane, "gone") == "")
    assert made.files(uid) == []
    driver.thaw()
    until(
        plane, "the volume was taken back", lambda: f"volume taken back volume=scratch/pvc-{uid}" in made.program.said()
    )
    assert made.files(uid) == []
    assert plane.send("GET", volume_path(uid)).status == 404
    all_room_is_back(plane, made)


def test_claim_made_again_while_the_first_ones_volume_is_made(nodes: Nodes, slow_driver: tuple[Agent, Program]) -> None:
    plane, (made, driver) = nodes.plane, slow_driver
    first = under_way(nodes, driver, "again")
    delete(plane, "again")
    until(plane, "the claim is gone", lambda: claim_phase(plane, "again") == "")
    second = str(nodes.claim("again", nodes.name(2))["metadata"]["uid"])
    assert second != first
    driver.thaw()
    until(plane, "the second is served", lambda: claim_phase(plane, "again") == "Bound")
    until(plane, "the first one's volume is gone", lambda: f"pvc-{first} " in _taken_back(made))
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
    until(plane, "the claim is gone", lambda: claim_phase(plane, "unknown") == "")
    driver.kill()
    driver.start()
    until(plane, "the volume was taken back", lambda: f"pvc-{uid} " in _taken_back(made))
    assert made.files(uid) == []
    assert plane.send("GET", volume_path(uid)).status == 404
    all_room_is_back(plane, made)


def _taken_back(made: Agent) -> str:
    return "\n".join(line for line in made.program.said().splitlines() if "volume taken back" in line)


# A PersistentVolume that is deleted before its claim


def vanish(plane: ControlPlane, uid: str) -> None:
    """What nobody should do: a PersistentVolume in use deleted by force, finalizers and all."""
    plane.kubectl("delete", "pv", f"pvc-{uid}", "--wait=false")
    assert plane.send("PATCH", volume_path(uid), {"metadata": {"finalizers": None}}).status == 200
    until(plane, "the PersistentVolume is gone", lambda: phase(plane, volume_path(uid)) == "")


def test_volume_deleted_before_its_claim(nodes: Nodes, served: Agent) -> None:
    """It stays while the claim has it. Then both go, and the data."""
    plane = nodes.plane
    uid = bound(nodes, "first")
    plane.kubectl("delete", "pv", f"pvc-{uid}", "--wait=false")
    assert plane.send("GET", volume_path(uid)).body["metadata"]["deletionTimestamp"]
    stays("the claim has its volume", lambda: claim_phase(plane, "first") == "Bound", seconds=1)
    assert served.files(uid) != []
    delete(plane, "first")
    until(plane, "the PersistentVolume is gone", lambda: phase(plane, volume_path(uid)) == "")
    assert served.files(uid) == []
    all_room_is_back(plane, served)
    assert served.orphans() == []


def test_volume_of_an_ephemeral_claim_deleted_before_it(nodes: Nodes, served: Agent) -> None:
    """It has no finalizer of ours: its volume may outlive it for a moment."""
    plane = nodes.plane
    owner = plane.create(_idle_pod("short"))
    uid = bound(nodes, "short-disk", owners=[_owner(owner)])
    plane.kubectl("delete", "pv", f"pvc-{uid}", "--wait=false")
    plane.kubectl("-n", NAMESPACE, "delete", "pod", "short")
    until(plane, "the claim is gone", lambda: claim_phase(plane, "short-disk") == "")
    until(plane, "the PersistentVolume is gone", lambda: phase(plane, volume_path(uid)) == "")
    until(plane, "the volume is gone", lambda: served.files(uid) == [])
    all_room_is_back(plane, served)


def test_volume_of_an_ephemeral_claim_removed_by_force(nodes: Nodes, served: Agent) -> None:
    """The claim is Lost. When it goes with its pod, the volume goes, once it is old enough to be judged."""
    plane = nodes.plane
    owner = plane.create(_idle_pod("forced"))
    uid = bound(nodes, "forced-disk", owners=[_owner(owner)])
    vanish(plane, uid)
    until(plane, "the claim is lost", lambda: claim_phase(plane, "forced-disk") == "Lost")
    assert served.files(uid) != []
    plane.kubectl("-n", NAMESPACE, "delete", "pod", "forced")
    until(plane, "the claim is gone", lambda: claim_phase(plane, "forced-disk") == "")
    until(plane, "the volume is gone", lambda: served.files(uid) == [])
    all_room_is_back(plane, served)


def test_volume_removed_by_force_is_an_orphan(nodes: Nodes, served: Agent) -> None:
    """Somebody's data: kept and told, whatever the class says; a person purges it."""
    plane = nodes.plane
    uid = bound(nodes, "lost")
    vanish(plane, uid)
    until(plane, "the claim is lost", lambda: claim_phase(plane, "lost") == "Lost")
    delete(plane, "lost")
    until(plane, "the claim is gone", lambda: claim_phase(plane, "lost") == "")
    assert served.orphans() == [f"pvc-{uid}"]
    refused = served.volumes("purge", f"pvc-{uid}", "--yes")
    assert refused.returncode != 0, "nobody has asked the cluster"
    assert served.files(uid) != []
    purged = served.volumes("purge", f"pvc-{uid}", "--yes", "--kubeconfig", str(plane.kubeconfig))
    assert purged.returncode == 0, purged.stderr
    assert served.files(uid) == []
    all_room_is_back(plane, served)


def test_retained_volume_deleted_before_its_claim_is_an_orphan(nodes: Nodes, served: Agent) -> None:
    """Its data stays, is told of, and can be had again."""
    plane = nodes.plane
    uid = bound(nodes, "kept", storageClassName=KEPT)
    plane.kubectl("delete", "pv", f"pvc-{uid}", "--wait=false")
    stays("the claim has its volume", lambda: claim_phase(plane, "kept") == "Bound", seconds=1)
    assert served.orphans() == []
    delete(plane, "kept")
    until(plane, "the PersistentVolume is gone", lambda: phase(plane, volume_path(uid)) == "")
    _is_kept_and_adopted(nodes, served, uid)


def test_retained_volume_deleted_by_hand_is_an_orphan(nodes: Nodes, served: Agent) -> None:
    plane = nodes.plane
    uid = bound(nodes, "let-go", storageClassName=KEPT)
    delete(plane, "let-go")
    until(plane, "it is released", lambda: phase(plane, volume_path(uid)) == "Released")
    assert served.orphans() == []
    plane.kubectl("delete", "pv", f"pvc-{uid}", "--timeout=30s")
    assert served.files(uid) != []
    _is_kept_and_adopted(nodes, served, uid)


def _is_kept_and_adopted(nodes: Nodes, served: Agent, uid: str) -> None:
    plane, before = nodes.plane, served.files(uid)
    assert before != []
    assert served.orphans() == [f"pvc-{uid}"]
    flags = ("--kubeconfig", str(plane.kubeconfig), "--storage-class", KEPT, "--as", f"back-{uid}")
    adopted = served.volumes("adopt", f"pvc-{uid}", "--yes", *flags)
    assert adopted.returncode == 0, adopted.stderr
    assert served.orphans() == []
    nodes.claim(f"takes-{uid}", storageClassName=KEPT, volumeName=f"back-{uid}")
    until(plane, "it is had again", lambda: claim_phase(plane, f"takes-{uid}") == "Bound")
    assert served.files(uid) == before
    delete(plane, f"takes-{uid}")
    until(plane, "it is released", lambda: phase(plane, f"/api/v1/persistentvolumes/back-{uid}") == "Released")
    plane.kubectl("delete", "pv", f"back-{uid}", "--timeout=30s")
    purged = served.volumes("purge", f"pvc-{uid}", "--yes", "--kubeconfig", str(plane.kubeconfig))
    assert purged.returncode == 0, purged.stderr
    all_room_is_back(plane, served)


def test_orphans_are_told_on_the_node(nodes: Nodes, served: Agent) -> None:
    """By the agent itself, when the volume is old enough to be judged."""
    plane, node = nodes.plane, nodes.name(1)
    uid = bound(nodes, "told", storageClassName=KEPT)
    delete(plane, "told")
    until(plane, "it is released", lambda: phase(plane, volume_path(uid)) == "Released")
    plane.kubectl("delete", "pv", f"pvc-{uid}", "--timeout=30s")
    until(plane, "it is told", lambda: _has_event(plane, node, "OrphanedVolumes", f"pvc-{uid}"))
    assert served.files(uid) != []
    purged = served.volumes("purge", f"pvc-{uid}", "--yes", "--kubeconfig", str(plane.kubeconfig))
    assert purged.returncode == 0, purged.stderr


def _has_event(plane: ControlPlane, about: str, reason: str, word: str) -> bool:
    return any(r == reason and word in text for r, text in events(plane, "default", about))


def _idle_pod(name: str) -> dict[str, Any]:
    """A pod that no scheduler looks at."""
    containers = [{"name": "c", "image": "none.invalid/none"}]
    metadata = {"name": name, "namespace": NAMESPACE}
    spec = {"schedulerName": "nobody", "containers": containers, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _owner(pod: Any) -> dict[str, Any]:
    meta = pod["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}


# A class that goes


def test_class_deleted_while_a_claim_waits(nodes: Nodes, served: Agent) -> None:
    """It waits, is told for what, and is served as the class says when it is back."""
    plane, name = nodes.plane, "objects-brief"
    plane.apply(storage_class(name))
    until(plane, "capacity is published", lambda: served.free(name) == to_bytes(POOL_SIZE))
    large = nodes.claim("large", nodes.name(1), storageClassName=name, resources={"requests": {"storage": "5Gi"}})
    until(plane, "large is bound", lambda: claim_phase(plane, "large") == "Bound")
    waits = nodes.claim("waits", nodes.name(1), storageClassName=name, resources={"requests": {"storage": "3Gi"}})
    until(plane, "it does not fit", told(plane, "waits", "lacks 2Gi"))
    plane.kubectl("delete", "storageclass", name)
    until(plane, "its capacity is gone", lambda: served.free(name) is None)
    assert claim_phase(plane, "large") == "Bound"
    delete(plane, "large")
    uid = str(large["metadata"]["uid"])
    until(plane, "a volume of a class that is gone is deleted", lambda: phase(plane, volume_path(uid)) == "")
    assert served.files(uid) == []
    all_room_is_back(plane, served)

    send(nodes, "waits")
    until(plane, "it is told what it waits for", told(plane, "waits", name, "not found"))
    stays("it waits", lambda: claim_phase(plane, "waits") == "Pending", seconds=1)
    bound(nodes, "other")  # nobody else waits for it
    plane.apply(storage_class(name, reclaimPolicy="Retain", mountOptions=["noatime"]))
    send(nodes, "waits")
    until(plane, "it is served", lambda: claim_phase(plane, "waits") == "Bound")
    made = plane.send("GET", volume_path(waits["metadata"]["uid"])).body["spec"]
    assert (made["persistentVolumeReclaimPolicy"], made["mountOptions"]) == ("Retain", ["noatime"])
    plane.send("PATCH", volume_path(waits["metadata"]["uid"]), {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    delete(plane, "waits", "other")
    all_room_is_back(plane, served)
    plane.kubectl("delete", "storageclass", name)


def test_class_deleted_before_the_agent_has_looked(nodes: Nodes, served: Agent) -> None:
    """The claim was sent here and the class went while the agent was away: served when the class is back."""
    plane, name = nodes.plane, "objects-flicker"
    plane.apply(storage_class(name))
    until(plane, "capacity is published", lambda: served.free(name) is not None)
    assert served.program.stop() == 0
    uid = str(nodes.claim("sent", nodes.name(1), storageClassName=name)["metadata"]["uid"])
    until(plane, "it has its provisioner", lambda: _provisioner(plane, "sent") == names.DRIVER)
    plane.kubectl("delete", "storageclass", name)
    served.program.start()
    until(plane, "the agent is back", lambda: served.free(name) is None)
    bound(nodes, "other")
    assert (claim_phase(plane, "sent"), served.files(uid)) == ("Pending", [])
    plane.apply(storage_class(name))
    until(plane, "it is served", lambda: claim_phase(plane, "sent") == "Bound")
    assert served.files(uid) != []
    delete(plane, "sent", "other")
    all_room_is_back(plane, served)
    plane.kubectl("delete", "storageclass", name)


def send(nodes: Nodes, name: str) -> None:
    """As the scheduler does."""
    notes = {"metadata": {"annotations": {names.SELECTED_NODE: nodes.name(1)}}}
    assert nodes.plane.send("PATCH", f"{CLAIMS}/{name}", notes).status == 200


def _provisioner(plane: ControlPlane, name: str) -> Any:
    notes = plane.send("GET", f"{CLAIMS}/{name}").body["metadata"]["annotations"]
    return notes.get(names.STORAGE_PROVISIONER)


# Sizes that nobody can have


@pytest.mark.parametrize("size", ["2Ei", "7Ei", "9E", "100Ei", "6145Mi"])
def test_claim_that_is_too_large(nodes: Nodes, served: Agent, size: str) -> None:
    plane, name = nodes.plane, f"large-{size.lower()}"
    made = nodes.claim(name, nodes.name(1), resources={"requests": {"storage": size}})
    until(plane, "it is told that there is no room", told(plane, name, nodes.name(1), "free 6Gi"))
    until(plane, "it is sent back", lambda: _sent_to(plane, name) is None)
    bound(nodes, f"after-{size.lower()}")  # the queue goes on
    assert served.files(made["metadata"]["uid"]) == []
    delete(plane, name, f"after-{size.lower()}")
    all_room_is_back(plane, served)
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
    delete(plane, name)
    all_room_is_back(plane, served)


def test_claim_of_all_there_is(nodes: Nodes, served: Agent) -> None:
    plane = nodes.plane
    bound(nodes, "all", resources={"requests": {"storage": POOL_SIZE}})
    until(plane, "nothing is left", lambda: served.free() == 0)
    nodes.claim("more", nodes.name(1), resources={"requests": {"storage": "1"}})
    until(plane, "it is told that there is no room", told(plane, "more", "free 0"))
    delete(plane, "all", "more")
    all_room_is_back(plane, served)


@pytest.mark.parametrize("size", ["0", "-1Gi"])
def test_claim_of_nothing_is_refused_by_kubernetes(nodes: Nodes, size: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "none"}, "spec": spec}
    answer = nodes.plane.send("POST", CLAIMS, body)
    assert answer.status == 422
    assert "must be greater than zero" in answer.message


def _sent_to(plane: ControlPlane, name: str) -> Any:
    return plane.send("GET", f"{CLAIMS}/{name}").body["metadata"]["annotations"].get(names.SELECTED_NODE)
