"""The policy tonnage-empty-dir on a real API server: the same pods as the box's own rewrite, with the same outcome."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import until

from tonnage.kubernetes.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.since("1.36"), pytest.mark.timeout(600)]
PODS = "/api/v1/namespaces/{}/pods?dryRun=All"
LIMIT = {"sizeLimit": "1Gi"}


@pytest.fixture(scope="module")
def team(installed: ControlPlane) -> Iterator[ControlPlane]:
    """With the namespaces `limited`, which has the label, and `plain`."""
    for name, labels in (("limited", {names.EMPTY_DIR: "limited"}), ("plain", {})):
        installed.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})

    def has_account() -> bool:
        return all(installed.get("serviceaccounts", "-n", name)["items"] for name in ("limited", "plain"))

    until(installed, "accounts of the namespaces", has_account)
    until(installed, "the policy acts", lambda: "ephemeral" in _made(installed, "limited", LIMIT))
    yield installed
    installed.kubectl("delete", "namespace", "limited", "plain", "--wait=false")


def _made(plane: ControlPlane, namespace: str, source: Any, labels: Any = None, **more: Any) -> dict[str, Any]:
    """The volume of a new pod, as the API server would store it."""
    volumes = [{"name": "first", "emptyDir": {}}, {"name": "v", "emptyDir": source}]
    spec = {"containers": [{"name": "c", "image": "i"}], "volumes": volumes, **more}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels or {}}, "spec": spec}
    answer = plane.send("POST", PODS.format(namespace), body)
    assert answer.status == 201, answer.body
    first, second, *_ = answer.body["spec"]["volumes"]
    assert first == volumes[0]
    return dict(second)


def test_it_becomes_a_volume_of_the_default_class(team: ControlPlane) -> None:
    made = _made(team, "limited", LIMIT)
    assert made.keys() == {"name", "ephemeral"}
    claim = made["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert (claim["accessModes"], claim["resources"]) == (["ReadWriteOnce"], {"requests": {"storage": "1Gi"}})
    assert "storageClassName" not in claim
    assert "ephemeral" in _made(team, "plain", LIMIT, {names.EMPTY_DIR: "limited"})


@pytest.mark.parametrize(
    ("namespace", "source", "labels", "more"),
    [
        ("plain", LIMIT, {}, {}),
        ("limited", {}, {}, {}),
        ("limited", {"sizeLimit": "0"}, {}, {}),
        ("limited", {**LIMIT, "medium": "Memory"}, {}, {}),
        ("limited", LIMIT, {names.EMPTY_DIR: "off"}, {}),
        ("limited", LIMIT, {}, {"nodeName": "n1"}),
        ("kube-system", LIMIT, {names.EMPTY_DIR: "limited"}, {}),
        (names.SYSTEM_NAMESPACE, LIMIT, {names.EMPTY_DIR: "limited"}, {}),
    ],
)
def test_what_stays(namespace: str, source: Any, labels: Any, more: Any, team: ControlPlane) -> None:
    assert _made(team, namespace, source, labels, **more) == {"name": "v", "emptyDir": source}
