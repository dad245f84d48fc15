"""What scenes with claims and volumes of simulated nodes look at and wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.e2e.agents import Nodes
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import POOL_SIZE, Agent, events, until

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes


def storage_class(name: str, **more: Any) -> dict[str, Any]:
    """A class of our driver for claims that wait for their pod."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": names.DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
        **more,
    }


def phase(plane: ControlPlane, path: str) -> str:
    """Of a claim or a PersistentVolume; "" when it is gone."""
    found = plane.send("GET", path)
    return str(found.body.get("status", {}).get("phase", "")) if found.status == 200 else ""


def claim_path(nodes: Nodes, name: str) -> str:
    """Where the API server has a claim."""
    return f"/api/v1/namespaces/{nodes.namespace}/persistentvolumeclaims/{name}"


def claim_phase(nodes: Nodes, name: str) -> str:
    """Of a claim; "" when it is gone."""
    return phase(nodes.plane, claim_path(nodes, name))


def note(nodes: Nodes, name: str, key: str) -> str | None:
    """An annotation of a claim."""
    found: str | None = nodes.plane.send("GET", claim_path(nodes, name)).body["metadata"]["annotations"].get(key)
    return found


def volume_path(uid: str) -> str:
    """Where the API server has the PersistentVolume that was made for the claim of that uid."""
    return f"/api/v1/persistentvolumes/pvc-{uid}"


def bound(nodes: Nodes, name: str, *, node: int = 1, **more: Any) -> str:
    """A claim that has its volume; its uid."""
    uid = str(nodes.claim(name, nodes.name(node), **more)["metadata"]["uid"])
    until(nodes.plane, f"{name} is bound", lambda: claim_phase(nodes, name) == "Bound")
    return uid


def send(nodes: Nodes, name: str) -> None:
    """Send a claim to the first node, as the scheduler does."""
    notes = {"metadata": {"annotations": {names.SELECTED_NODE: nodes.name(1)}}}
    assert nodes.plane.send("PATCH", claim_path(nodes, name), notes).status == 200


def delete(nodes: Nodes, *claims: str) -> None:
    """Delete claims; nothing is waited for."""
    nodes.plane.kubectl("-n", nodes.namespace, "delete", "pvc", "--wait=false", "--ignore-not-found", *claims)


def told(nodes: Nodes, name: str, *words: str) -> Callable[[], bool]:
    """Whether an Event about the claim has all those words."""
    return lambda: any(all(w in text for w in words) for _, text in events(nodes.plane, nodes.namespace, name))


def all_room_is_back(node: Agent) -> None:
    """Wait until an agent publishes its whole pool."""
    until(node.plane, "all room is back", lambda: node.free() == to_bytes(POOL_SIZE))
