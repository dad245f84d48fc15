"""Requests and responses, the same over each transport."""

from __future__ import annotations

import msgspec
import pytest

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import JSON, Request


async def test_a_response_of_any_status_is_a_response(client: Client) -> None:
    request = Request("GET", "/api/v1/namespaces/default")
    assert (request.content_type, request.accept, request.body) == (JSON, JSON, b"")
    found = await client.transport.request(request)
    assert (found.status, msgspec.json.decode(found.body)["metadata"]["name"]) == (200, "default")
    assert (await client.transport.request(Request("GET", "/api/v1/namespaces/other"))).status == 404


async def test_a_stream_is_lines_and_a_rejection_is_raised_on_entering(client: Client) -> None:
    query = {"watch": "true", "fieldSelector": "metadata.name=default"}
    async with client.transport.stream(Request("GET", "/api/v1/namespaces", query)) as chunks:
        line = await anext(chunks)
    assert msgspec.json.decode(line.splitlines()[0])["type"] == "ADDED"
    with pytest.raises(ApiNotFoundError):
        async with client.transport.stream(Request("GET", "/api/v1/nothing", {"watch": "true"})):
            pytest.fail("it was entered")
