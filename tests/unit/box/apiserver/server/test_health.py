"""Paths without a resource."""

from __future__ import annotations

from tests.unit.box.apiserver.conftest import Api


async def test_documents(api: Api) -> None:
    assert (await api.get("/version"))["gitVersion"].startswith("v1.34.0+tonnage")
    for path in ("/readyz", "/livez", "/healthz"):
        assert (await api.send("GET", path)).body == b"ok"
    assert b"tonnage_apiserver_requests" in (await api.send("GET", "/metrics")).body
