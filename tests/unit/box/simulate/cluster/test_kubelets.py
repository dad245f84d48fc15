"""Simulated kubelets: pods run for their lifetime, then end as their kind does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.simulate.cluster.bodies import NAMESPACE
from tonnage_box.simulate.cluster.kubelets import Kubelets
from tonnage_box.simulate.virtual_time import LoopClock

POD: dict[str, Any] = {
    "metadata": {"name": "p"},
    "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "none"}]},
}


@pytest.mark.parametrize(
    ("lifetime", "restarts", "phases"),
    [
        (60.0, "Never", ["Running", "Succeeded", "gone"]),
        (60.0, "Always", ["Running", "gone", "gone"]),
        (None, "Always", ["Running", "Running", "gone"]),
    ],
)
def test_life_of_a_pod(play: Callable[..., Any], lifetime: float | None, restarts: str, phases: list[str]) -> None:
    """After 30 s, after 90 s, and when somebody has deleted it."""

    async def scene(kube: Client, informers: Informers, clock: LoopClock) -> list[str]:
        kubelets = Kubelets(kube, informers, clock, lambda pod: lifetime)
        cache, seen = informers.of(PODS).cache, list[str]()
        informers.start()
        await informers.wait_synced()
        await kube.create(PODS, POD | {"spec": {**POD["spec"], "restartPolicy": restarts}}, NAMESPACE)

        async def look(seconds: float) -> bool:
            await clock.sleep(seconds)
            pod = cache.get(f"{NAMESPACE}/p")
            seen.append(pod.status.phase if pod is not None else "gone")
            return pod is not None

        await look(30.0)
        if await look(60.0):
            await kube.delete(PODS, "p", NAMESPACE)
        await look(1.0)
        await kubelets.close()
        return seen

    assert play(scene) == phases
