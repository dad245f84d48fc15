"""The client of a simulated cluster: objects come on time, and go at the end of their lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tonnage.kubernetes.api.kinds import CLAIMS, DEPLOYMENTS, JOBS, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.simulate.cluster import bodies
from tonnage_box.simulate.cluster.bodies import NAMESPACE
from tonnage_box.simulate.cluster.feeder import Feeder, Lives
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.simulate.workload.arrivals import Arrival
from tonnage_box.simulate.workload.workload import StreamSpec, VolumeSpec

GIB = 1 << 30
VOLUMES = [VolumeSpec("1Gi")]


async def fed(kube: Client, informers: Informers, clock: LoopClock) -> Feeder:
    feeder = Feeder(kube, informers, clock)
    informers.start()
    await informers.wait_synced()
    feeder.zero = clock.monotonic()
    return feeder


def test_a_pod_that_comes_back_has_the_same_claim(play: Callable[..., Any]) -> None:
    stream = StreamSpec("s", "1/h", "1m", restarts=1, pause="30s", volumes=VOLUMES)

    async def scene(kube: Client, informers: Informers, clock: LoopClock) -> None:
        feeder = await fed(kube, informers, clock)
        pods, claims = informers.of(PODS).cache, informers.of(CLAIMS).cache
        await informers.wait_synced()
        await feeder.run(stream, [Arrival(10.0, (GIB,), (60.0, 20.0))])
        assert clock.monotonic() - feeder.zero == 10.0
        uids = set()
        for lifetime in (60.0, 20.0):
            await clock.sleep(31.0)
            (pod,), (claim,) = list(pods), list(claims)
            uids.add(claim.metadata.uid)
            assert (pod.metadata.name, feeder.lifetime(pod)) == ("s-0", lifetime)
            await kube.delete(PODS, "s-0", NAMESPACE, grace_seconds=0)
            await clock.sleep(1.0)
            assert list(pods) == []
        assert len(uids) == 1
        await clock.sleep(31.0)
        assert list(pods) == []
        assert all(claim.metadata.deleting for claim in claims)
        await feeder.close()

    play(scene)


@pytest.mark.parametrize(("kind", "resource"), [("Deployment", DEPLOYMENTS), ("Job", JOBS)])
def test_controllers_objects(play: Callable[..., Any], kind: Any, resource: Any) -> None:
    """A Deployment goes when the life of its pods is over, a Job when it is complete."""
    stream = StreamSpec("d", "1/h", "1m", kind=kind, burst=2, volumes=VOLUMES)

    async def scene(kube: Client, informers: Informers, clock: LoopClock) -> list[int]:
        feeder = await fed(kube, informers, clock)
        await feeder.run(stream, [Arrival(0.0, (GIB,), (60.0,))] * 2)
        await clock.sleep(1.0)
        body = bodies.pod("made", stream, [GIB])
        body["metadata"]["labels"] = {bodies.SET_LABEL: "d-0"}  # as its controller would
        pod = await kube.create(PODS, body, NAMESPACE)
        assert feeder.lifetime(pod) == (60.0 if kind == "Job" else None)
        counts = []
        for seconds in (50.0, 20.0):
            await clock.sleep(seconds)
            counts.append(len((await kube.list(resource, NAMESPACE)).items))
            if kind == "Job" and seconds == 50.0:
                conditions = [{"type": "Complete", "status": "True"}]
                await kube.patch(JOBS, "d-0", {"status": {"conditions": conditions}}, NAMESPACE, subresource="status")
        await feeder.close()
        return counts

    assert play(scene) == [1, 0]


@pytest.mark.parametrize(
    ("kind", "restarts", "lives"),
    [("Pod", 1, [1.0, 2.0, 2.0]), ("StatefulSet", 1, [1.0, None, None]), ("Deployment", 0, [None, None, None])],
)
def test_lives_of_one_pod(kind: str, restarts: int, lives: list[float | None]) -> None:
    stream = StreamSpec("s", "1/h", "1m", kind=kind, restarts=restarts)  # type: ignore[arg-type]
    found = Lives(stream, [Arrival(0.0, (), (1.0, 2.0))])
    assert [found.begin("p") for _ in range(3)] == lives
    assert found.begun.is_set()


def test_the_pods_of_a_job_end_each_in_its_own_time() -> None:
    pods = [Arrival(0.0, (), (seconds,)) for seconds in (1.0, 2.0)]
    found = Lives(StreamSpec("j", "1/h", "1m", kind="Job", burst=2), pods)
    assert [found.begin(name) for name in ("a", "b", "a-again")] == [1.0, 2.0, 2.0]
