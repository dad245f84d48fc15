"""Volumes and classes that go at the wrong moment: a real control plane, agents as processes.

Each agent is `tonnage node` with its node's bound token and a real pool; there are no kubelets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.agents import Nodes
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import POOL_SIZE, Agent, agent, events, stays, until
from tests.e2e.scenes import (
    all_room_is_back,
    bound,
    claim_phase,
    delete,
    note,
    phase,
    send,
    storage_class,
    told,
    volume_path,
)

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
NAMESPACE = "objects"
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
    stays("the claim has its volume", lambda: claim_phase(nodes, "first") == "Bound", seconds=1)
    assert served.files(uid) != []
    delete(nodes, "first")
    until(plane, "the PersistentVolume is gone", lambda: phase(plane, volume_path(uid)) == "")
    assert served.files(uid) == []
    all_room_is_back(served)
    assert served.orphans() == []


def test_volume_of_an_ephemeral_claim_deleted_before_it(nodes: Nodes, served: Agent) -> None:
    """It has no finalizer of ours: its volume may outlive it for a moment."""
    plane = nodes.plane
    owner = plane.create(_idle_pod("short"))
    uid = bound(nodes, "short-disk", owners=[_owner(owner)])
    plane.kubectl("delete", "pv", f"pvc-{uid}", "--wait=false")
    plane.kubectl("-n", NAMESPACE, "delete", "pod", "short")
    until(plane, "the claim is gone", lambda: claim_phase(nodes, "short-disk") == "")
    until(plane, "the PersistentVolume is gone", lambda: phase(plane, volume_path(uid)) == "")
    until(plane, "the volume is gone", lambda: served.files(uid) == [])
    all_room_is_back(served)


def test_volume_of_an_ephemeral_claim_removed_by_force(nodes: Nodes, served: Agent) -> None:
    """The claim is Lost. When it goes with its pod, the volume goes, once it is old enough to be judged."""
    plane = nodes.plane
    owner = plane.create(_idle_pod("forced"))
    uid = bound(nodes, "forced-disk", owners=[_owner(owner)])
    vanish(plane, uid)
    until(plane, "the claim is lost", lambda: claim_phase(nodes, "forced-disk") == "Lost")
    assert served.files(uid) != []
    plane.kubectl("-n", NAMESPACE, "delete", "pod", "forced")
    until(plane, "the claim is gone", lambda: claim_phase(nodes, "forced-disk") == "")
    until(plane, "the volume is gone", lambda: served.files(uid) == [])
    all_room_is_back(served)


def test_volume_removed_by_force_is_an_orphan(nodes: Nodes, served: Agent) -> None:
    """Somebody's data: kept and told, whatever the class says; a person purges it."""
    plane = nodes.plane
    uid = bound(nodes, "lost")
    vanish(plane, uid)
    until(plane, "the claim is lost", lambda: claim_phase(nodes, "lost") == "Lost")
    delete(nodes, "lost")
    until(plane, "the claim is gone", lambda: claim_phase(nodes, "lost") == "")
    assert served.orphans() == [f"pvc-{uid}"]
    rejected = served.volumes("purge", f"pvc-{uid}", "--yes")
    assert rejected.returncode != 0, "nobody has asked the cluster"
    assert served.files(uid) != []
    purge(nodes, served, uid)


def test_retained_volume_deleted_before_its_claim_is_an_orphan(nodes: Nodes, served: Agent) -> None:
    """Its data stays, is told of, and can be had again."""
    plane = nodes.plane
    uid = bound(nodes, "kept", storageClassName=KEPT)
    plane.kubectl("delete", "pv", f"pvc-{uid}", "--wait=false")
    stays("the claim has its volume", lambda: claim_phase(nodes, "kept") == "Bound", seconds=1)
    assert served.orphans() == []
    delete(nodes, "kept")
    until(plane, "the PersistentVolume is gone", lambda: phase(plane, volume_path(uid)) == "")
    _is_kept_and_adopted(nodes, served, uid)


def test_retained_volume_deleted_by_hand_is_an_orphan(nodes: Nodes, served: Agent) -> None:
    plane = nodes.plane
    uid = bound(nodes, "let-go", storageClassName=KEPT)
    delete(nodes, "let-go")
    until(plane, "it is released", lambda: phase(plane, volume_path(uid)) == "Released")
    assert served.orphans() == []
    plane.kubectl("delete", "pv", f"pvc-{uid}", "--timeout=300s")
    assert served.files(uid) != []
    _is_kept_and_adopted(nodes, served, uid)


def purge(nodes: Nodes, served: Agent, uid: str) -> None:
    """A person gives up an orphan. The agent sees the room with its next volume, else within a minute."""
    ended = served.volumes("purge", f"pvc-{uid}", "--yes", "--kubeconfig", str(nodes.plane.kubeconfig))
    assert ended.returncode == 0, ended.stderr
    assert served.files(uid) == []
    bound(nodes, f"next-{uid}")
    delete(nodes, f"next-{uid}")
    all_room_is_back(served)


def _is_kept_and_adopted(nodes: Nodes, served: Agent, uid: str) -> None:
    plane, before = nodes.plane, served.files(uid)
    assert before != []
    assert served.orphans() == [f"pvc-{uid}"]
    flags = ("--kubeconfig", str(plane.kubeconfig), "--storage-class", KEPT, "--as", f"back-{uid}")
    adopted = served.volumes("adopt", f"pvc-{uid}", "--yes", *flags)
    assert adopted.returncode == 0, adopted.stderr
    assert served.orphans() == []
    nodes.claim(f"takes-{uid}", storageClassName=KEPT, volumeName=f"back-{uid}")
    until(plane, "it is had again", lambda: claim_phase(nodes, f"takes-{uid}") == "Bound")
    assert served.files(uid) == before
    delete(nodes, f"takes-{uid}")
    until(plane, "it is released", lambda: phase(plane, f"/api/v1/persistentvolumes/back-{uid}") == "Released")
    plane.kubectl("delete", "pv", f"back-{uid}", "--timeout=300s")
    purge(nodes, served, uid)


def test_orphans_are_told_on_the_node(nodes: Nodes, served: Agent) -> None:
    """By the agent itself, when the volume is old enough to be judged."""
    plane, node = nodes.plane, nodes.name(1)
    uid = bound(nodes, "told", storageClassName=KEPT)
    delete(nodes, "told")
    until(plane, "it is released", lambda: phase(plane, volume_path(uid)) == "Released")
    plane.kubectl("delete", "pv", f"pvc-{uid}", "--timeout=300s")
    until(plane, "it is told", lambda: _has_event(plane, node, "OrphanedVolumes", f"pvc-{uid}"))
    assert served.files(uid) != []
    purge(nodes, served, uid)


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
    until(plane, "large is bound", lambda: claim_phase(nodes, "large") == "Bound")
    waits = nodes.claim("waits", nodes.name(1), storageClassName=name, resources={"requests": {"storage": "3Gi"}})
    until(plane, "it does not fit", told(nodes, "waits", "pod needs 3Gi, 1Gi free"))
    plane.kubectl("delete", "storageclass", name)
    until(plane, "its capacity is gone", lambda: served.free(name) is None)
    assert claim_phase(nodes, "large") == "Bound"
    delete(nodes, "large")
    uid = str(large["metadata"]["uid"])
    until(plane, "a volume of a class that is gone is deleted", lambda: phase(plane, volume_path(uid)) == "")
    assert served.files(uid) == []
    all_room_is_back(served)

    send(nodes, "waits")
    until(plane, "it is told what it waits for", told(nodes, "waits", name, "not found"))
    stays("it waits", lambda: claim_phase(nodes, "waits") == "Pending", seconds=1)
    bound(nodes, "other")  # nobody else waits for it
    plane.apply(storage_class(name, reclaimPolicy="Retain", mountOptions=["noatime"]))
    send(nodes, "waits")
    until(plane, "it is served", lambda: claim_phase(nodes, "waits") == "Bound")
    made = plane.send("GET", volume_path(waits["metadata"]["uid"])).body["spec"]
    assert (made["persistentVolumeReclaimPolicy"], made["mountOptions"]) == ("Retain", ["noatime"])
    plane.send("PATCH", volume_path(waits["metadata"]["uid"]), {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    delete(nodes, "waits", "other")
    all_room_is_back(served)
    plane.kubectl("delete", "storageclass", name)


def test_class_deleted_before_the_agent_has_looked(nodes: Nodes, served: Agent) -> None:
    """The claim was sent here and the class went while the agent was away: served when the class is back."""
    plane, name = nodes.plane, "objects-flicker"
    plane.apply(storage_class(name))
    until(plane, "capacity is published", lambda: served.free(name) is not None)
    assert served.program.stop() == 0
    uid = str(nodes.claim("sent", nodes.name(1), storageClassName=name)["metadata"]["uid"])
    until(plane, "it has its provisioner", lambda: note(nodes, "sent", names.STORAGE_PROVISIONER) == names.DRIVER)
    plane.kubectl("delete", "storageclass", name)
    served.program.start()
    until(plane, "the agent is back", lambda: served.free(name) is None)
    bound(nodes, "other")
    assert (claim_phase(nodes, "sent"), served.files(uid)) == ("Pending", [])
    plane.apply(storage_class(name))
    until(plane, "it is served", lambda: claim_phase(nodes, "sent") == "Bound")
    assert served.files(uid) != []
    delete(nodes, "sent", "other")
    all_room_is_back(served)
    plane.kubectl("delete", "storageclass", name)
