"""Of several replicas one works, and all serve metrics."""

from __future__ import annotations

import asyncio
import urllib.request
from random import Random

import pytest
from prometheus_client import CollectorRegistry, Gauge
from tests.restored import Front

from tonnage.base.observe.exporter import Address
from tonnage.kubernetes.api.kinds import CONFIG_MAPS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.leader_process import ElectedProcess, ReplicaConfig
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.simulate.virtual_time import LoopClock


class _Watcher:
    """A loop that watches, and shows which ConfigMaps its term sees."""

    def __init__(self, informers: Informers) -> None:
        self.seen = informers.of(CONFIG_MAPS, namespace="default").cache

    async def run(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.virtual_time
async def test_a_leader_starts_anew_where_a_restored_server_has_passed_the_version_it_saw() -> None:
    front = Front(LoopClock(), Random(1))
    await front.restore(None)
    line, other = front.line(), Client(front.line())
    terms: list[_Watcher] = []

    def loops(informers: Informers, _events: EventRecorder) -> dict[str, _Watcher]:
        terms.append(_Watcher(informers))
        return {"watcher": terms[-1]}

    async def make(name: str, **data: str) -> None:
        await other.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": data}, "default")

    async def seen(*names: str) -> None:
        async with asyncio.timeout(600):
            while not terms or {one.metadata.name for one in terms[-1].seen} != set(names):
                await asyncio.sleep(1)

    leads = Gauge("leads_after_restore", "1 for the leader", registry=CollectorRegistry())
    config = ReplicaConfig("a", "default")
    process = ElectedProcess(config, Client(line), loops, name="lease", leads=leads, clock=LoopClock())
    await process.start()
    await make("old")
    await seen("old")
    backup = front.back_up()
    await make("forgotten")
    await asyncio.sleep(20)
    await seen("old", "forgotten")
    line.cut()
    line.mend()
    await asyncio.sleep(20)
    assert len(terms) == 1, "an outage alone is no other history"
    line.cut()
    await front.restore(backup)
    for number in range(50):
        await make(f"new-{number}")
    line.mend()
    await asyncio.sleep(3)
    await seen("old", *(f"new-{number}" for number in range(50)))
    assert len(terms) == 2
    await process.stop()
    await front.stop()


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
