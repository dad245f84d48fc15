"""The policies of an installation that lists secrets and serves another driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.agents import Nodes
from tests.e2e.control_plane import ControlPlane, release

from tonnage.kubernetes.api import names
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
OTHER, OTHER_KEY = "csi.served.example.com", "topology.served.example.com/node"
CLAIMS = "/api/v1/namespaces/options/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes?dryRun=All"


def storage_class(name: str, provisioner: str, **parameters: str) -> dict[str, Any]:
    head = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    late = {"volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    return {**head, "provisioner": provisioner, "parameters": parameters, **late}


@pytest.fixture(scope="module")
def nodes(installed: ControlPlane) -> Iterator[Nodes]:
    """A node, and the policies of such an installation until the end."""
    installed.kubectl("create", "namespace", "options")
    chosen = Installation(secrets={"apps": ["key"], "all": []}, drivers={OTHER: OTHER_KEY}, kubernetes=release())
    for part in ("scope-policy.yaml", "agent-policy.yaml"):
        installed.kubectl("apply", "-f", "-", stdin=manifests.render_part(part, chosen))
    classes = (
        storage_class("options-served", OTHER),
        storage_class("options-back", names.DRIVER, **{names.ROLLBACK: "true"}),
    )
    installed.apply(*classes)
    made = Nodes(installed, "options", "options")
    node = made.add(1)
    claim = made.claim("mine", node)
    installed.until("the policy is at work", lambda: _named(made, claim, "apps", "key") == 201)
    yield made
    for part in ("scope-policy.yaml", "agent-policy.yaml"):
        installed.kubectl("apply", "-f", "-", stdin=manifests.render_part(part, Installation(kubernetes=release())))
    installed.until("the policy is as it was", lambda: _named(made, claim, "apps", "key") == 403)
    made.remove()  # with its pod goes the token that asks
    installed.kubectl("delete", "storageclass", "options-served", "options-back")
    installed.kubectl("delete", "namespace", "options", "--wait=false")


def _named(nodes: Nodes, claim: Any, namespace: str, name: str) -> int:
    """What becomes of a volume that names a secret."""
    source = {"driver": names.DRIVER, "volumeHandle": "x", "nodeStageSecretRef": {"namespace": namespace, "name": name}}
    body = nodes.volume(nodes.name(1), claim, csi=source)
    return nodes.plane.send("POST", VOLUMES, body, token=nodes.tokens[nodes.name(1)]).status


@pytest.mark.parametrize(
    ("namespace", "name", "status"),
    [("apps", "key", 201), ("apps", "other", 403), ("all", "any", 201), ("kube-system", "key", 403)],
)
def test_listed_secrets_may_be_named(namespace: str, name: str, status: int, nodes: Nodes) -> None:
    claim = nodes.plane.get("-n", "options", "pvc", "mine")
    assert _named(nodes, claim, namespace, name) == status


def test_volume_of_a_served_driver(nodes: Nodes) -> None:
    node = nodes.name(1)
    claim = nodes.claim("served", node, storageClassName="options-served")
    assert claim["metadata"]["labels"][names.NODE_LABEL] == node
    assert claim["metadata"]["annotations"][names.STORAGE_PROVISIONER] == OTHER

    def made(key: str, value: str, driver: str = OTHER) -> int:
        expression = {"key": key, "operator": "In", "values": [value]}
        place = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        source = {"driver": driver, "volumeHandle": "x"}
        body = nodes.volume(node, claim, storageClassName="options-served", csi=source, nodeAffinity=place)
        return nodes.plane.send("POST", VOLUMES, body, token=nodes.tokens[node]).status

    assert made(OTHER_KEY, node) == 201
    assert made(OTHER_KEY, "another") == 403
    assert made(names.TOPOLOGY_NODE, node) == 403
    assert made(names.TOPOLOGY_NODE, node, names.DRIVER) == 403  # the class is another driver's


@pytest.mark.parametrize(("storage_class", "status"), [("options-back", 200), ("tonnage-scratch", 403)])
def test_plain_claim_given_back_where_its_class_says_so(storage_class: str, status: int, nodes: Nodes) -> None:
    node = nodes.name(1)
    nodes.given(nodes.claim(f"back-{status}", node, storageClassName=storage_class))
    answer = nodes.plane.send("DELETE", f"{CLAIMS}/back-{status}?dryRun=All", token=nodes.tokens[node])
    assert answer.status == status, answer.body
