"""Paths without a resource."""

from __future__ import annotations

import pytest
from tests.unit.box.apiserver.api import Api


async def test_documents(api: Api) -> None:
    assert (await api.get("/version"))["gitVersion"].startswith("v1.36.0+tonnage")
    for path in ("/readyz", "/livez", "/healthz"):
        assert (await api.send("GET", path)).body == b"ok"
    assert b"tonnage_apiserver_requests" in (await api.send("GET", "/metrics")).body


@pytest.mark.parametrize("word", ["readyz", "livez", "healthz"])
async def test_checks_are_named_and_asked_alone(api: Api, word: str) -> None:
    answer = await api.send("GET", f"/{word}", query={"verbose": ""})
    assert answer.body.decode().splitlines() == ["[+]ping ok", "[+]log ok", "[+]etcd ok", f"{word} check passed"]
    assert (await api.send("GET", f"/{word}/etcd")).body == b"ok"
    assert (await api.send("GET", f"/{word}/nothing")).status == 404
    left_out = await api.send("GET", f"/{word}", query={"verbose": "", "exclude": "etcd"})
    assert b"[+]etcd excluded: ok" in left_out.body
