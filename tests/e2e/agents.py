"""Two nodes that have no kubelet, and the tokens that their agents would have: for tests of what agents may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.e2e.control_plane import ControlPlane

from tonnage.kubernetes.api import names

SYSTEM = names.SYSTEM_NAMESPACE
CLASS = names.SCRATCH_CLASS
ACCOUNT = "tonnage-node"


@dataclass
class Nodes:
    """Nodes of a prefix of their own, one agent's token each, and objects that belong to one of them."""

    plane: ControlPlane
    prefix: str
    namespace: str
    tokens: dict[str, str] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)

    def name(self, number: int) -> str:
        """A node's name."""
        return f"{self.prefix}-{number}"

    def add(self, number: int, *, name: str = "") -> str:
        """A node with its start-up taint, and its agent's token, bound to a pod there; the node's name."""
        node = name or self.name(number)
        taints = [{"key": names.STARTUP_TAINT, "effect": "NoSchedule"}, {"key": "people/own", "effect": "NoSchedule"}]
        conditions = [{"type": "PeoplesOwn", "status": "True", "reason": "Theirs"}]
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {"taints": taints}}
        body["status"] = {"conditions": conditions}
        self.uids[node] = self.plane.create(body)["metadata"]["uid"]
        pod = f"agent-{self.prefix}-{number}"
        self.plane.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": pod, "namespace": SYSTEM},
                "spec": {
                    "nodeName": node,
                    "serviceAccountName": ACCOUNT,
                    "containers": [{"name": "node", "image": "none.invalid/none"}],
                    "tolerations": [{"operator": "Exists"}],
                },
            }
        )
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}")
        self.tokens[node] = self.plane.kubectl("-n", SYSTEM, "create", "token", ACCOUNT, *bound).strip()
        return node

    def claim(self, name: str, node: str = "", **more: Any) -> Any:
        """A claim, sent to a node or to none."""
        notes = {names.SELECTED_NODE: node} if node else {}
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "annotations": {"people/own": "x", **notes},
                "labels": {"people/own": "x"},
                "ownerReferences": more.pop("owners", []),
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": CLASS,
                "resources": {"requests": {"storage": "1Gi"}},
                **more,
            },
        }
        return self.plane.create(body)

    def given(self, *claims: Any) -> None:
        """Wait until Kubernetes has written the provisioner of claims; where a policy does, it is there at once."""

        def all_have() -> bool:
            found = [self.plane.get("-n", self.namespace, "pvc", claim["metadata"]["name"]) for claim in claims]
            return all(names.STORAGE_PROVISIONER in claim["metadata"]["annotations"] for claim in found)

        self.plane.until("claims are given to their provisioner", all_have)

    def volume(self, node: str, claim: Any = None, **more: Any) -> dict[str, Any]:
        """The body of a PersistentVolume as that node's agent would write it."""
        uid = claim["metadata"]["uid"] if claim else ""
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": self.namespace,
            "name": claim["metadata"]["name"] if claim else "",
            "uid": uid,
        }
        expression = {"key": names.TOPOLOGY_NODE, "operator": "In", "values": [names.label_value(node)]}
        notes = {names.PROVISIONED_BY: names.DRIVER} | ({} if claim else {names.DISK: "wwn-1"})
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": more.pop("name", f"pvc-{uid}" if claim else f"static-{node}"[:60]),
                "labels": {names.NODE_LABEL: names.label_value(node)},
                "annotations": notes,
                "finalizers": [names.PROVISIONER_FINALIZER],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "storageClassName": CLASS,
                "persistentVolumeReclaimPolicy": "Retain",
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
                "csi": {"driver": names.DRIVER, "volumeHandle": f"scratch/pvc-{uid or node}"},
                **({"claimRef": reference} if claim else {}),
                **more,
            },
        }

    def capacity(self, node: str, name: str) -> dict[str, Any]:
        """The body of a capacity object as that node's agent would write it."""
        uid = self.uids[node]  # one of no node would be garbage collected
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
        return {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {
                "name": name,
                "namespace": SYSTEM,
                "labels": {names.NODE_LABEL: names.label_value(node)},
                "ownerReferences": [owner],
            },
            "storageClassName": CLASS,
            "nodeTopology": {"matchLabels": {names.TOPOLOGY_NODE: names.label_value(node)}},
            "capacity": "1Gi",
        }

    def event(self, node: str, name: str, about: dict[str, str]) -> dict[str, Any]:
        """The body of an Event as that node's agent would write it."""
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": about.get("namespace", "default")},
            "involvedObject": about,
            "type": "Normal",
            "reason": "Provisioning",
            "message": "x",
            "source": {"component": ACCOUNT, "host": node},
            "reportingComponent": ACCOUNT,
            "reportingInstance": node,
        }

    def remove(self) -> None:
        """Take the nodes and their pods away again."""
        for node in self.tokens:
            self.plane.kubectl("delete", "node", node, "--ignore-not-found")
        pods = self.plane.get("-n", SYSTEM, "pods")["items"]
        ours = [p["metadata"]["name"] for p in pods if p["metadata"]["name"].startswith(f"agent-{self.prefix}-")]
        if ours:
            self.plane.kubectl("-n", SYSTEM, "delete", "pod", "--grace-period=0", "--force", *ours)
