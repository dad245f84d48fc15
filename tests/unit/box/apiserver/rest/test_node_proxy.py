"""nodes/proxy: what a kubelet answers, for nodes that are there."""

from __future__ import annotations

import pytest

from tonnage.base.errors import ApiError, ApiNotFoundError
from tonnage.kubernetes.api.kinds import NODES
from tonnage.kubernetes.client.client import Client
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store


async def test_the_kubelets_answer_is_passed_on() -> None:
    asked: list[tuple[str, str]] = []

    async def answer(node: str, path: str) -> tuple[str, bytes]:
        asked.append((node, path))
        return "text/plain", b"words"

    server = ApiServer(Store(extractor()), node_proxy=answer)
    await server.start()
    client = Client(server.transport())
    await client.create(NODES, {"metadata": {"name": "n"}})
    assert await client.read("/api/v1/nodes/n/proxy/stats/summary") == b"words"
    assert await client.read("/api/v1/nodes/n/proxy") == b"words"
    assert await client.read("/api/v1/nodes/n:10250/proxy/healthz") == b"words"
    assert await client.read("/api/v1/nodes/https:n:10250/proxy/configz") == b"words"
    assert asked == [("n", "stats/summary"), ("n", ""), ("n", "healthz"), ("n", "configz")]
    with pytest.raises(ApiError, match="name no port, or 10250"):
        await client.read("/api/v1/nodes/n:22/proxy/x")
    with pytest.raises(ApiNotFoundError):
        await client.read("/api/v1/nodes/other/proxy/metrics")
    with pytest.raises(ApiError, match="is not built here"):
        await client.post("/api/v1/nodes/n/proxy/run", {})
    await server.stop()


async def test_without_a_kubelet_it_is_rejected() -> None:
    server = ApiServer(Store(extractor()))
    await server.start()
    client = Client(server.transport())
    await client.create(NODES, {"metadata": {"name": "n"}})
    with pytest.raises(ApiError, match="no kubelet here answers"):
        await client.read("/api/v1/nodes/n/proxy/metrics")
    await server.stop()
