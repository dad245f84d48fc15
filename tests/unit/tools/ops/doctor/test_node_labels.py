"""Labels of claims: who sets them, and what is missing."""

from __future__ import annotations

import pytest
from tests.unit.tools.ops.doctor.ward import Ward

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.tools.ops.doctor import node_labels
from tonnage.tools.ops.doctor.finding import Finding, Level


async def _scoping(ward: Ward, kube: Client) -> list[Finding]:
    return [f for f in await node_labels.check(ward.view, kube) if f.check == "node-labels"]


@pytest.mark.parametrize(
    ("served", "scope", "leads", "level", "text"),
    [
        (True, "auto", True, Level.FAIL, "the controller labels claims"),
        (True, "auto", False, Level.FAIL, "agents watch all claims"),
        (False, "auto", True, Level.OK, "the controller labels claims"),
        (False, "auto", False, Level.WARN, "agents watch all claims"),
        (False, "label", False, Level.FAIL, "so no volume is created"),
    ],
)
async def test_no_policy(
    ward: Ward, kube: Client, served: bool, scope: str, leads: bool, level: Level, text: str
) -> None:
    ward.view.there = frozenset()
    if not served:
        ward.view.served = frozenset()
    if not leads:
        ward.view.lease = None
    ward.view.files = {"tonnage-node": {"scope": scope}}

    (found,) = await _scoping(ward, kube)
    assert found.level is level
    assert text in found.text


async def test_agents_that_watch_all_claims_need_no_labels(ward: Ward, kube: Client) -> None:
    ward.view.there, ward.view.files = frozenset(), {"tonnage-node": {"scope": "all"}}
    ward.claim("c", metadata={"annotations": {names.SELECTED_NODE: "n1"}})

    assert await _scoping(ward, kube) == []


async def test_the_policy_does_nothing(ward: Ward, kube: Client) -> None:
    """It is said to be there, and this API server labels no claim."""
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": ward.view.namespace}})

    (found,) = await _scoping(ward, kube)

    assert found.level is Level.FAIL
    assert "the policy exists and does not work" in found.text
    assert (await kube.list(kinds.CLAIMS)).items == []


async def test_claims_without_their_label(ward: Ward, kube: Client) -> None:
    sent = {names.SELECTED_NODE: "n1"}
    ward.claim("good", metadata={"annotations": sent, "labels": {names.NODE_LABEL: "n1"}})
    ward.claim("bound", metadata={"annotations": sent}, volumeName="v")
    ward.claim("none", metadata={"annotations": sent})
    ward.claim("forged", metadata={"labels": {names.NODE_LABEL: "n2"}})

    bad = [f for f in await _scoping(ward, kube) if "without its label" in f.text]
    assert [f.about for f in bad] == ["team/forged, team/none"]


async def test_agents_are_not_held_to_their_node(ward: Ward, kube: Client) -> None:
    ward.view.there -= {"validatingadmissionpolicybindings/tonnage-agent"}

    (found,) = [f for f in await node_labels.check(ward.view, kube) if f.check == "node-restriction"]
    assert found.level is Level.FAIL
    assert "ValidatingAdmissionPolicyBinding tonnage-agent:" in found.text
