"""Rights of the service accounts."""

from __future__ import annotations

from tests.unit.tools.ops.doctor.ward import Ward

from tonnage.kubernetes.client.client import Client
from tonnage.tools.ops.doctor import rbac
from tonnage.tools.ops.doctor.finding import Level
from tonnage.tools.ops.doctor.rbac import Right


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
