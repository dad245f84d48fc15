"""Story 8: features are not implemented twice. The claim of a pod's ephemeral volume lives as a plain claim does.

The driver gets the same calls for both, and the API server the same writes, but for the owner and the finalizer of the
PersistentVolume.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage_box.testing.apiserver import ADMINISTRATOR, api_server
from tonnage_box.testing.node import FakeNode, fake_node
from tonnage_box.testing.objects import Objects
from tonnage_box.testing.wait import eventually

_CALL = re.compile(r"^call method=(\w+) code=OK ms=\S+ request=(.*)$", re.DOTALL)
_READS = ("GetCapacity", "ListVolumes", "Probe", "GetPluginInfo")


@dataclass
class RecordedTransport:
    """A transport that records writes."""

    inner: Transport
    writes: list[str] = field(default_factory=list)

    async def request(self, request: Request) -> Response:
        """As in Transport."""
        response = await self.inner.request(request)
        if request.method != "GET" and response.status < 300 and "/events" not in request.path:
            self.writes.append(f"{request.method} {request.path} {_text(request.body)}")
        return response

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """As in Transport."""
        return self.inner.stream(request)

    async def close(self) -> None:
        """As in Transport."""
        await self.inner.close()


def _text(body: Any) -> str:
    return body.decode() if isinstance(body, bytes) else json.dumps(body, sort_keys=True, default=str)


async def _life(node: FakeNode, recorded: RecordedTransport, calls: list[str], name: str, pod: str) -> list[str]:
    """The calls and the agent's writes of a claim's life: created, bound, released, deleted."""
    objects = Objects(node.client)
    owners = []
    if pod:
        made = await objects.pod(pod)
        owners = [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": made.metadata.uid, "controller": True}]
    recorded.writes.clear()
    calls.clear()
    claim = await objects.claim(name, owners=owners)
    await node.select(name)

    async def bound() -> bool:
        return await node.phase(name) == "Bound"

    await eventually(bound)
    volume = await node.release(name)
    await eventually(partial(_is_done, node, volume.metadata.name))
    assert await node.volumes() == []
    names_of = {claim.metadata.uid: "UID", volume.metadata.uid: "PV-UID", name: "CLAIM", pod: "POD"}
    return [_plain(line, names_of) for line in (*calls, *recorded.writes)]


async def _is_done(node: FakeNode, volume: str) -> bool:
    """Whether a PersistentVolume is gone, or only waits for Kubernetes' protection controller."""
    try:
        found = await node.client.get(kinds.VOLUMES, volume)
    except ApiNotFoundError:
        return True
    return bool(found.metadata.deleting) and found.metadata.finalizers == ["kubernetes.io/pv-protection"]


def _plain(line: str, names_of: dict[str, str]) -> str:
    for what, by in names_of.items():
        line = line.replace(what, by) if what else line
    line = re.sub(r'"resourceVersion": ?"\d+"|resourceVersion[=:]"?\d+"?', "RV", line)
    line = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", line)
    return re.sub(r'"[0-9a-f-]{36}"', '"SOME-UID"', line)


_ONCE = ("GetPluginCapabilities", "ControllerGetCapabilities", "NodeGetInfo")
"""What an agent asks of a driver when it starts."""


def _shared(lines: Sequence[str]) -> list[str]:
    """The lines without what may differ: the owner, the mark of ephemeral volumes.

    Capacity is left out, and the agent's mark in its Node: they are a node's, whatever its volumes are.
    """
    lines = [line for line in lines if not line.startswith(_ONCE) and "csistoragecapacities" not in line]
    lines = [line for line in lines if not line.startswith("PATCH /api/v1/nodes/")]
    for pattern in (r'"ownerReferences":\[[^]]*\]', r'(?<=tonnage.dev/ephemeral")(:| value: )"(true|false)"'):
        lines = [re.sub(pattern, "", line) for line in lines]
    return lines


async def test_story_8_ephemeral_and_plain_claims_share_one_implementation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tonnage.csi.server.dispatch")
    calls: list[str] = []

    class Calls(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found = _CALL.match(record.getMessage())
            if found and found[1] not in _READS:
                calls.append(f"{found[1]} {found[2]}")

    logging.getLogger("tonnage.csi.server.dispatch").addHandler(handler := Calls())
    try:
        async with api_server() as server:
            recorded = RecordedTransport(server.transport(ADMINISTRATOR))
            client = Client(recorded)
            await client.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
            await Objects(client).storage_class("late", default=True)
            async with fake_node(client, tmp_path) as node:
                plain = await _life(node, recorded, calls, "plain", "")
                ephemeral = await _life(node, recorded, calls, "app-scratch", "app")
    finally:
        logging.getLogger("tonnage.csi.server.dispatch").removeHandler(handler)
    assert sum(line.startswith("CreateVolume ") for line in plain) == 1
    assert sum(line.startswith("DeleteVolume ") for line in plain) == 1
    assert _shared(plain) == _shared(ephemeral)
    assert len(_shared(plain)) > 8, "so much of both is compared"
