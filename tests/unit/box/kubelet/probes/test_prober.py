"""The schedule of probes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tonnage.base.errors import HostError
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.kubelet.containers.runtime import Ended, NoneRuntime, Pretended, RunningContainer
from tonnage_box.kubelet.probes.probe_state import ProbeKind
from tonnage_box.kubelet.probes.prober import ContainerProbes, Prober
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.clock import run_virtual


class _Scripted(NoneRuntime):
    """Commands end as told: by their first word, one exit code after the other; the last one stays."""

    name = "scripted"

    def __init__(self, **codes: list[int]) -> None:
        super().__init__(LoopClock())
        self.codes = codes
        self.asked: list[tuple[float, str]] = []

    async def run(
        self, where: RunningContainer, argv: Sequence[str], *, timeout: float | None, limit: int
    ) -> tuple[int, bytes]:
        self.asked.append((asyncio.get_running_loop().time(), argv[0]))
        left = self.codes[argv[0]]
        code = left.pop(0) if len(left) > 1 else left[0]
        if code == -1:
            raise TimeoutError
        if code == -2:
            raise HostError("cannot")
        return code, b"words"


@dataclass
class _Bench:
    runtime: _Scripted
    prober: Prober
    process: Pretended
    told: list[str] = field(default_factory=list)
    changes: list[ProbeKind] = field(default_factory=list)

    def add(self, **more: Any) -> ContainerProbes:
        container = {"name": "c", **more}
        pod = msgspec.convert({"metadata": {"name": "p"}, "spec": {"containers": [container]}}, Pod)
        where = RunningContainer(pod, pod.spec.containers[0], self.process)
        return self.prober.add(
            where, self.changes.append, lambda _kind, reason, text: self.told.append(f"{reason} {text}")
        )


def _bench(**codes: list[int]) -> _Bench:
    runtime = _Scripted(**codes)
    return _Bench(runtime, Prober(runtime), Pretended("c", 0.0, lambda: None, LoopClock()))


def _probe(word: str, **more: Any) -> dict[str, Any]:
    return {"exec": {"command": [word]}, **more}


def test_asks_after_the_delay_and_once_a_period() -> None:
    async def main() -> None:
        bench = _bench(ready=[1, 1, 0])
        probes = bench.add(readinessProbe=_probe("ready", initialDelaySeconds=5, periodSeconds=2))
        assert not probes.ready
        await asyncio.sleep(12)
        assert [at for at, _ in bench.runtime.asked] == [5, 7, 9, 11]
        assert probes.ready
        assert bench.changes == [ProbeKind.READINESS]
        assert bench.told == ["Unhealthy Readiness probe failed: words"] * 2
        bench.process.ended = Ended(0, 0.0)
        await asyncio.sleep(100)
        assert len(bench.runtime.asked) == 4
        await bench.prober.close()

    run_virtual(main())


def test_the_startup_probe_comes_first() -> None:
    async def main() -> None:
        bench = _bench(up=[1, 1, 0], ready=[0], live=[0])
        probes = bench.add(
            startupProbe=_probe("up", periodSeconds=1, failureThreshold=30),
            livenessProbe=_probe("live", periodSeconds=10),
            readinessProbe=_probe("ready", periodSeconds=10),
        )
        await asyncio.sleep(1.5)
        assert (probes.started, probes.ready) == (False, False)
        await asyncio.sleep(10)
        assert (probes.started, probes.ready) == (True, True)
        assert bench.runtime.asked == [(0, "up"), (1, "up"), (2, "up"), (2, "live"), (2, "ready")]
        assert probes.failed() is None
        await bench.prober.close()

    run_virtual(main())


def test_failures_in_a_row_say_that_it_must_be_restarted() -> None:
    async def main() -> None:
        bench = _bench(live=[1, 1, 0, -1, 1, 1, 0])
        probes = bench.add(livenessProbe=_probe("live", periodSeconds=1))
        await asyncio.sleep(4.5)
        assert probes.failed() is None
        await asyncio.sleep(10)
        spec = probes.failed()
        assert spec is not None
        assert spec.kind is ProbeKind.LIVENESS
        assert len(bench.runtime.asked) == 6, "it is not asked again"
        assert bench.told[2] == 'Unhealthy Liveness probe failed: command timed out: "live" timed out after 1s'
        await bench.prober.close()

    run_virtual(main())


def test_an_error_is_no_answer() -> None:
    async def main() -> None:
        bench = _bench(live=[-2])
        probes = bench.add(livenessProbe=_probe("live", periodSeconds=10, failureThreshold=1))
        await asyncio.sleep(5)
        assert len(bench.runtime.asked) == 3, "three tries"
        assert bench.told == ["Unhealthy Liveness probe errored and resulted in failure state: cannot"]
        assert probes.failed() is None
        await bench.prober.close()

    run_virtual(main())


def test_idle_probes_have_no_tasks() -> None:
    async def main() -> None:
        bench = _bench(ready=[0])
        for _ in range(500):
            bench.add(readinessProbe=_probe("ready", periodSeconds=10))
        await asyncio.sleep(1)
        assert len(bench.runtime.asked) == 500
        assert len(asyncio.all_tasks()) == 1
        await bench.prober.close()

    run_virtual(main())
