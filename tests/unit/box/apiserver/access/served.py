"""An API server that listens, with tokens; roles and pods of an account in it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api.kinds import NAMESPACES, PODS, SERVICE_ACCOUNTS
from tonnage.kubernetes.client.client import Client
from tonnage_box.apiserver.access.access import ApiAccess
from tonnage_box.apiserver.server.auth import Credentials, ensure
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store
from tonnage_box.testing.clock import ManualClock

Kubectl = Callable[..., Awaitable[str]]
TOKEN_PATH = "/api/v1/namespaces/default/serviceaccounts/robot/token"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


@dataclass
class Served:
    """A server that listens."""

    server: ApiServer
    credentials: Credentials
    clock: ManualClock
    session: aiohttp.ClientSession
    client: Client

    @property
    def access(self) -> ApiAccess:
        return self.server.access

    async def send(
        self, method: str, path: str, body: Any = None, *, token: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and body of an answer; token "": that of the kubeconfig."""
        sent = {"Authorization": f"Bearer {token or self.credentials.token}", **(headers or {})}
        async with self.session.request(method, self.server.url + path, json=body, headers=sent) as answer:
            return answer.status, await answer.json(content_type=None)

    async def token(self, *, want: int = 201, path: str = TOKEN_PATH, **spec: Any) -> str:
        """A new token of the account robot."""
        status, body = await self.send("POST", path, {"spec": spec})
        assert status == want, body
        return str(body["status"]["token"]) if want == 201 else str(body["message"])


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    clock = ManualClock()
    credentials = ensure(tmp_path / "tls", RealClock())
    server = ApiServer(Store(extractor()), credentials=credentials, clock=clock)
    await server.start()
    await server.listen()
    client = Client(server.transport())
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "robot"}}, "default")
    context = ssl.create_default_context(cafile=str(credentials.certificate))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield Served(server, credentials, clock, session, client)
    await server.stop()


async def make_pod(served: Served, name: str = "p", account: str = "robot", node: str = "") -> str:
    """uid of a new pod that runs as the account."""
    spec: dict[str, Any] = {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]}
    if node:
        spec["nodeName"] = node
    pod = await served.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")
    return pod.metadata.uid


async def make_namespace(served: Served, name: str) -> None:
    await served.client.create(NAMESPACES, {"metadata": {"name": name}})


RBAC = "/apis/rbac.authorization.k8s.io/v1"
POD_PATH = "/api/v1/namespaces/default/pods"
ROBOT = [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}]


async def bind(served: Served, role: str, *, namespace: str = "default", kind: str = "ClusterRole") -> None:
    path = f"{RBAC}/namespaces/{namespace}/rolebindings" if namespace else f"{RBAC}/clusterrolebindings"
    body = {"metadata": {"name": f"r-{role}"}, "roleRef": {"kind": kind, "name": role}, "subjects": ROBOT}
    status, answer = await served.send("POST", path, body)
    assert status == 201, answer


async def role(served: Served, name: str, *rules: Any, namespace: str = "", token: str = "") -> tuple[int, Any]:
    path = f"{RBAC}/namespaces/{namespace}/roles" if namespace else f"{RBAC}/clusterroles"
    return await served.send("POST", path, {"metadata": {"name": name}, "rules": list(rules)}, token=token)
