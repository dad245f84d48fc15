"""The order, restarts and ends of a pod's containers, with time in the test's hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from tonnage.kubernetes.api.pods import Container, Pod
from tonnage_box.kubelet.containers.containers import Containers, Run
from tonnage_box.kubelet.containers.runtime import Ended, NoneRuntime, Pretended
from tonnage_box.kubelet.pods import status as statuses
from tonnage_box.testing.clock import ManualClock


@dataclass
class _Bench:
    """Containers of one pod, and what was told."""

    clock: ManualClock
    containers: Containers
    told: list[tuple[str, str]] = field(default_factory=list)

    async def sync(self) -> float | None:
        return await self.containers.sync({})

    def end(self, run: Run, code: int) -> None:
        assert isinstance(run.process, Pretended)
        run.process.ended = Ended(code, self.clock.now)

    @property
    def phase(self) -> str:
        return statuses.phase(self.containers)

    def states(self) -> list[str]:
        now = self.clock.now
        built = statuses.build(self.containers.pod, self.containers, address="127.0.0.1", started="", now=now)
        return ["/".join(s["state"]) for s in built.get("initContainerStatuses", []) + built["containerStatuses"]]


def _bench(**spec: Any) -> _Bench:
    body = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "a"}], **spec}}
    clock = ManualClock(1_000_000.0)
    told: list[tuple[str, str]] = []

    async def no_environment(_pod: Pod, _container: Container) -> dict[str, str]:
        return {}

    def tell(_kind: str, reason: str, message: str) -> None:
        told.append((reason, message))

    pod = msgspec.convert(body, Pod)
    return _Bench(clock, Containers(pod, NoneRuntime(clock), clock, no_environment, tell, lambda: None), told)


async def test_restarts_wait_longer_and_longer() -> None:
    bench = _bench()
    (run,) = bench.containers.mains
    assert await bench.sync() is None
    waits = []
    for _ in range(9):
        bench.end(run, 1)
        wait = await bench.sync() or 0.0
        waits.append(wait)
        assert bench.phase == "Running"
        assert run.running is (wait == 0)
        bench.clock.now += wait
        await bench.sync()
        assert run.running
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300, 300]
    assert run.attempt == 9
    bench.clock.now += 901  # long without a crash
    bench.end(run, 1)
    assert await bench.sync() is None
    assert run.running


async def test_a_look_in_between_starts_nothing_early() -> None:
    bench = _bench()
    (run,) = bench.containers.mains
    await bench.sync()
    for _ in range(2):
        bench.end(run, 1)
        await bench.sync()
    bench.clock.now += 4
    assert await bench.sync() == 6
    assert not run.running
    assert bench.states() == ["waiting"]
    assert [reason for reason, _ in bench.told] == ["BackOff"]


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        ("Always", 0, "Running"),
        ("Always", 1, "Running"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 1, "Running"),
        ("Never", 0, "Succeeded"),
        ("Never", 1, "Failed"),
    ],
)
async def test_policies(policy: str, code: int, phase: str) -> None:
    bench = _bench(restartPolicy=policy)
    (run,) = bench.containers.mains
    await bench.sync()
    assert bench.phase == "Running"
    bench.end(run, code)
    await bench.sync()
    assert (bench.phase, run.running) == (phase, phase == "Running")
    assert bench.containers.over is (phase != "Running")


async def test_one_of_two_that_failed_makes_the_pod_fail_at_the_end() -> None:
    bench = _bench(restartPolicy="Never", containers=[{"name": "a"}, {"name": "b"}])
    first, second = bench.containers.mains
    await bench.sync()
    bench.end(first, 2)
    await bench.sync()
    assert bench.phase == "Running"
    bench.end(second, 0)
    await bench.sync()
    assert bench.phase == "Failed"


async def test_sidecars_start_first_and_stop_last() -> None:
    bench = _bench(initContainers=[{"name": "s", "restartPolicy": "Always"}, {"name": "i"}])
    side, init = bench.containers.inits
    (main,) = bench.containers.mains
    await bench.sync()
    assert (side.running, init.ended is not None, main.running) == (True, True, True)
    assert bench.states() == ["running", "terminated", "running"]
    bench.end(side, 1)
    await bench.sync()
    assert (side.running, side.attempt, main.attempt) == (True, 1, 0)
    assert bench.containers.stop(5.0) is True
    assert not bench.containers.alive


async def test_nothing_is_started_after_a_stop() -> None:
    bench = _bench()
    await bench.sync()
    bench.containers.stop(0.0)
    await bench.sync()
    assert not bench.containers.alive
    assert bench.phase == "Succeeded"


async def test_what_the_status_knows_and_the_machine_does_not_has_failed() -> None:
    running = {"name": "a", "restartCount": 3, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    bench = _bench(restartPolicy="Never")
    pod = bench.containers.pod
    fresh = msgspec.structs.replace(pod, status=msgspec.convert({"containerStatuses": [running]}, type(pod.status)))
    bench.containers.pod = fresh
    bench.containers.adopt([])
    await bench.sync()
    assert bench.phase == "Failed"
    assert bench.containers.mains[0].attempt == 3


def _with_ephemeral(bench: _Bench, **container: Any) -> Run:
    spec = msgspec.to_builtins(bench.containers.pod.spec, str_keys=True)
    body = {
        "metadata": {"name": "p", "uid": "u"},
        "spec": spec | {"ephemeralContainers": [{"name": "look"} | container]},
    }
    bench.containers.add_ephemeral(msgspec.convert(body, Pod))
    (run,) = bench.containers.ephemerals
    return run


async def test_an_ephemeral_container_starts_once_and_counts_for_nothing() -> None:
    bench = _bench(restartPolicy="OnFailure")
    await bench.sync()
    run = _with_ephemeral(bench)
    assert bench.containers.ephemerals == [run]  # not one more
    await bench.sync()
    assert run.running
    bench.end(run, 1)
    await bench.sync()
    assert (run.attempt, run.running, bench.phase) == (0, False, "Running")
    built = statuses.build(bench.containers.pod, bench.containers, address="", started="", now=bench.clock.now)
    (status,) = built["ephemeralContainerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 1
    assert not status["ready"]
    ready = {c["type"]: c["status"] for c in built["conditions"]}["Ready"]
    assert ready == "True"
    bench.end(bench.containers.mains[0], 0)
    assert bench.phase == "Succeeded"


async def test_an_ephemeral_container_starts_though_init_containers_fail() -> None:
    bench = _bench(initContainers=[{"name": "i", "restartPolicy": "Always", "startupProbe": {}}])
    run = _with_ephemeral(bench, targetContainerName="a")
    await bench.sync()
    assert run.running
    assert ("NotSupported", "container look does not see the processes of container a: not done by this kubelet") in (
        bench.told
    )


async def test_what_has_no_effect_in_an_ephemeral_container_is_reported() -> None:
    bench = _bench()
    run = _with_ephemeral(bench, securityContext={"capabilities": {"add": ["SYS_PTRACE"]}})
    await bench.sync()
    assert run.running
    (text,) = (message for reason, message in bench.told if reason == "NotSupported")
    assert text.startswith("container look: securityContext.capabilities: CAP_SYS_PTRACE cannot be added")


async def test_a_pod_ends_with_its_ephemeral_containers() -> None:
    bench = _bench()
    run = _with_ephemeral(bench)
    await bench.sync()
    assert bench.containers.stop(0.0)
    assert run.ended is not None
