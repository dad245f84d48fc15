"""Service account tokens for CSI drivers: asked for with the pod's name, and kept for most of their time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage_box.kubelet.volumes.service_tokens import KEY, ServiceTokens

POD = msgspec.convert(
    {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"serviceAccountName": "me"}}, Pod
)


class _Server:
    """Answers TokenRequests; the API server's own answer is tested with it."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.asked: list[tuple[str, Any]] = []

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        self.asked.append((path, body["spec"]))
        end = rfc3339(self.now + body["spec"].get("expirationSeconds", 3600))
        status = {"token": f"t{len(self.asked)}", "expirationTimestamp": end}
        return msgspec.json.encode({**body, "status": status})


async def test_asks_for_each_audience_and_again_when_most_time_has_gone() -> None:
    server = _Server()
    tokens = ServiceTokens(cast("Client", server), now=lambda: server.now)
    requests: list[dict[str, Any]] = [{"audience": ""}, {"audience": "vault", "expirationSeconds": 600}]
    first = json.loads((await tokens.of(POD, requests))[KEY])
    assert {audience: entry["token"] for audience, entry in first.items()} == {"": "t1", "vault": "t2"}
    path, spec = server.asked[1]
    assert path == "/api/v1/namespaces/ns/serviceaccounts/me/token"
    assert spec["audiences"] == ["vault"]
    assert spec["boundObjectRef"] == {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u"}
    assert server.asked[0][1]["audiences"] == []
    server.now += 479
    assert json.loads((await tokens.of(POD, requests))[KEY]) == first
    server.now += 2
    later = json.loads((await tokens.of(POD, requests))[KEY])
    assert (later[""]["token"], later["vault"]["token"]) == ("t1", "t3")
    tokens.forget("u")
    await tokens.of(POD, requests[:1])
    assert len(server.asked) == 4


async def test_nothing_is_asked_for_nothing() -> None:
    server = _Server()
    assert await ServiceTokens(cast("Client", server)).of(POD, []) == {}
    assert server.asked == []
