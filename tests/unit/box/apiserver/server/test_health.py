"""Paths without a resource."""

from __future__ import annotations

from typing import Any


async def test_documents(api: Any) -> None:
    assert (await api.get("/version"))["gitVersion"].startswith("v1.34.0+tonnage")
    for path in ("/readyz", "/livez", "/healthz"):
        assert (await api.send("GET", path)).body == b"ok"
    assert b"tonnage_apiserver_requests" in (await api.send("GET", "/metrics")).body
