"""Of several replicas one works, and all serve metrics."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tonnage.box.apiserver.server.server import ApiServer
from tonnage.kube.client import Client
from tonnage.kube.leader_process import ElectedProcess, ReplicaConfig
from tonnage.observe.exporter import Address


class _Loop:
    def __init__(self, who: str, at_work: list[str], changed: asyncio.Event) -> None:
        self._who, self._at_work, self._changed = who, at_work, changed

    async def run(self) -> None:
        self._at_work.append(self._who)
        self._changed.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._at_work.remove(self._who)


@pytest.mark.slow
async def test_the_next_works_when_the_leader_stops(server: ApiServer) -> None:
    at_work: list[str] = []
    changed = asyncio.Event()
    registry = CollectorRegistry()
    gauges = {who: Gauge(f"leads_{who}", "1 for the leader", registry=registry) for who in "ab"}

    def replica(who: str) -> ElectedProcess:
        config = ReplicaConfig(who, "default", Address("127.0.0.1", 0))
        loop = _Loop(who, at_work, changed)
        client = Client(server.transport())
        return ElectedProcess(config, client, lambda *_: {"loop": loop}, name="lease", leads=gauges[who])

    first, second = replica("a"), replica("b")
    async with asyncio.timeout(60):
        await first.start()
        await changed.wait()
        await second.start()
        assert at_work == ["a"]
        assert registry.get_sample_value("leads_a") == 1
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(second.metrics_url).read())
        assert b"tonnage_" in text
        changed.clear()
        await first.stop()
        assert registry.get_sample_value("leads_a") == 0
        await changed.wait()
        assert at_work == ["b"]
        await second.stop()
        await second.stop()
    assert at_work == []
