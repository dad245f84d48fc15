"""Nodes that differ: each gets the agent of its group, and of one only; the API server takes all that is rendered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.control_plane import ControlPlane, release

from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import GROUP_LABEL, Installation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NAMESPACE = "grouped"
NODES = {"grouped-plain": {}, "grouped-nvme": {GROUP_LABEL: "nvme"}, "grouped-else": {GROUP_LABEL: "other"}}
CHOSEN = Installation(
    namespace=NAMESPACE,
    groups={"nvme": [{"name": "scratch", "kind": "lvm", "path": "vg0"}], "hdd": [{"name": "a", "kind": "image", "path": "/a"}]},
    network_policy=True,
    kubernetes=release(),
)  # fmt: skip


@pytest.fixture
def grouped(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Three nodes without kubelets, and a namespace."""
    control_plane.kubectl("create", "namespace", NAMESPACE)
    control_plane.kubectl("-n", NAMESPACE, "create", "serviceaccount", "tonnage-node")
    for name, labels in NODES.items():
        meta = {"name": name, "labels": {"kubernetes.io/os": "linux", **labels}}
        control_plane.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    yield control_plane
    control_plane.kubectl("delete", "node", *NODES)
    control_plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_each_node_gets_the_agent_of_its_group(grouped: ControlPlane) -> None:
    everything = manifests.render(CHOSEN)
    grouped.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=everything)
    for part in ("config.yaml", "node.yaml", "networkpolicy.yaml"):
        grouped.kubectl("apply", "--validate=strict", "-f", "-", stdin=manifests.render_part(part, CHOSEN))

    def placed() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for pod in grouped.get("-n", NAMESPACE, "pods")["items"]:
            terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            (field,) = terms["nodeSelectorTerms"][0]["matchFields"]
            if field["values"][0] in NODES:  # others may have nodes here too
                found.setdefault(field["values"][0], set()).add(pod["metadata"]["ownerReferences"][0]["name"])
        return found

    wanted = {
        "grouped-plain": {"tonnage-node"},
        "grouped-nvme": {"tonnage-node-nvme"},
        "grouped-else": {"tonnage-node"},
    }
    grouped.until("each node has one agent", lambda: placed() == wanted)
    maps = {c["metadata"]["name"]: c["data"] for c in grouped.get("-n", NAMESPACE, "configmaps")["items"]}
    assert "path: vg0" in maps["tonnage-node-nvme"]["node.yaml"]
    assert "path: /var/lib/tonnage" in maps["tonnage-node"]["node.yaml"]

    grouped.kubectl("label", "node", "grouped-plain", f"{GROUP_LABEL}=hdd")
    wanted["grouped-plain"] = {"tonnage-node-hdd"}
    grouped.until("a node that joins a group gets its agent", lambda: placed() == wanted)
