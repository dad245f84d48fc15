"""A healthy installation on two nodes, as an API server would tell of it; tests then break one thing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.unit.tools.ops.doctor.ward import Ward

from tonnage.kubernetes.api.kinds import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from tonnage.kubernetes.client.client import Client
from tonnage_box.apiserver.request.user import ApiUser
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store


@pytest.fixture
def ward() -> Ward:
    """A healthy installation: nodes n1 and n2, class fast."""
    return Ward()


async def restricted(server: ApiServer) -> Client:
    """A client of a user who may do everything but ask for reviews about others."""
    admin = Client(server.transport())
    group = "rbac.authorization.k8s.io"
    groups = ["", "admissionregistration.k8s.io", "apps", "authentication.k8s.io", "storage.k8s.io"]
    rules = [{"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["get"]}]
    await admin.create(CLUSTER_ROLES, {"metadata": {"name": "most"}, "rules": rules})
    subjects = [{"apiGroup": group, "kind": "User", "name": "jane"}]
    ref = {"apiGroup": group, "kind": "ClusterRole", "name": "most"}
    await admin.create(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": "jane"}, "roleRef": ref, "subjects": subjects})
    return Client(server.transport(ApiUser("jane")))


@pytest.fixture
async def kube() -> AsyncIterator[Client]:
    """A client of a server that serves no policies, whose user may not ask for reviews about others."""
    server = ApiServer(Store(extractor()))
    await server.start()
    yield await restricted(server)
    await server.stop()
