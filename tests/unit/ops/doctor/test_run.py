"""The whole of it over an API server in this process, and checks that ask it something."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.unit.ops.doctor.conftest import NOW, Ward

from tonnage.aio.clock import RealClock
from tonnage.api import kinds, names
from tonnage.box.apiserver.server.server import ApiServer, extractor
from tonnage.box.apiserver.storage.store import MemoryStore
from tonnage.kube.client import Client
from tonnage.ops import cluster_snapshot
from tonnage.ops.doctor import node_labels, rbac
from tonnage.ops.doctor.finding import Finding, Level
from tonnage.ops.doctor.rbac import Right
from tonnage.ops.doctor.run import examine


@pytest.fixture
async def kube() -> AsyncIterator[Client]:
    """A client of a server that serves no policies, no DaemonSets and no reviews about others, as a box."""
    server = ApiServer(MemoryStore(extractor()))
    await server.start()
    yield Client(server.transport("system:admin"))
    await server.stop()


async def test_nothing_is_there(kube: Client) -> None:
    found = await examine(kube, names.SYSTEM_NAMESPACE, clock=RealClock())

    assert {f.check for f in found if f.level is Level.FAIL} == {"agents", "csidriver", "registration"}
    assert all(f.todo for f in found if f.level is not Level.OK)


async def test_what_is_read(kube: Client) -> None:
    await kube.create(kinds.NODES, {"metadata": {"name": "n1"}})
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": "sys"}})
    labels = {"app.kubernetes.io/name": "tonnage", "app.kubernetes.io/component": "node"}
    for name, text in (("good", "pools: [{name: a, kind: image}]\nscope: all"), ("bad", "pools: 3"), ("worse", "{")):
        body = {"metadata": {"name": name, "labels": labels}, "data": {"node.yaml": text}}
        await kube.create(kinds.CONFIG_MAPS, body, "sys")
    late = {"provisioner": names.DRIVER, "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    await kube.create(kinds.STORAGE_CLASSES, {"metadata": {"name": "fast"}, **late})
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}
    claim = await kube.create(kinds.CLAIMS, {"metadata": {"name": "c"}, "spec": spec}, "sys")
    about = {"kind": "PersistentVolumeClaim", "name": "c", "namespace": "sys", "uid": claim.metadata.uid}
    event = {"metadata": {"name": "e"}, "involvedObject": about, "type": "Warning", "message": "no"}
    await kube.create(kinds.EVENTS, event, "sys")

    found = await cluster_snapshot.read(kube, "sys", now=NOW)

    assert found.node_names == {"n1"}
    assert "storage.k8s.io/v1/csistoragecapacities" in found.served
    assert isinstance(found.files["good"], dict)
    assert found.scopes() == {"all"}
    assert isinstance(found.files["bad"], str)
    assert isinstance(found.files["worse"], str)
    assert [e.message for e in found.events[claim.metadata.uid]] == ["no"]
    assert [c.metadata.name for c in found.our_claims] == ["c"]


# Scoping without a policy


async def _scoping(ward: Ward, kube: Client) -> list[Finding]:
    return [f for f in await node_labels.check(ward.view, kube) if f.check == "scoping"]


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

    (found,) = [f for f in await node_labels.check(ward.view, kube) if f.check == "restraint"]
    assert found.level is Level.FAIL
    assert "ValidatingAdmissionPolicyBinding tonnage-agent:" in found.text


# Access


async def test_rights_that_may_not_be_asked_for(ward: Ward, kube: Client) -> None:
    found = await rbac.check(ward.view, kube)

    assert [(f.about, f.level) for f in found] == [("tonnage-node", Level.WARN), ("tonnage-controller", Level.WARN)]


def test_rights_are_those_of_the_roles() -> None:
    found = rbac.rights("rbac-node.yaml", "sys")

    assert Right("create", "", "persistentvolumes") in found
    assert Right("patch", "", "persistentvolumeclaims/status") in found
    assert Right("get", "", "namespaces", "kube-system") in found
    assert Right("delete", "storage.k8s.io", "csistoragecapacities", "", "sys") in found
    assert not [right for right in found if right.verb == "deletecollection"]
    assert Right("patch", "", "persistentvolumeclaims/status").attributes() == {
        "verb": "patch",
        "resource": "persistentvolumeclaims",
        "subresource": "status",
    }
