"""A transport with latency: requests take their time and are counted by resource."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tonnage.kubernetes.api.kinds import NAMESPACES, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.simulate.cluster.transport import SlowTransport, Traffic
from tonnage_box.simulate.virtual_time import LoopClock


def test_latency_and_counts(play: Callable[..., Any]) -> None:
    traffic = Traffic()

    async def scene(kube: Client, informers: Informers, clock: LoopClock) -> None:
        cache = informers.of(NAMESPACES).cache
        informers.start()
        await informers.wait_synced()
        traffic.clear()
        began = clock.monotonic()
        await kube.create(NAMESPACES, {"metadata": {"name": "space"}})
        assert clock.monotonic() - began == 2.0
        assert cache.get("space") is None
        await clock.sleep(3.5)
        assert cache.get("space") is not None
        await kube.list(PODS)
        assert dict(traffic.writes) == {"namespaces": 1}
        assert traffic.messages["namespaces"] == 1
        traffic.clear()
        assert not traffic.writes
        assert not traffic.messages

    play(scene, lambda inner, clock: SlowTransport(inner, traffic, clock, write=2.0, watch=3.0))
