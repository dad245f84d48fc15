"""Whole runs: what is known beforehand comes out, nothing is given twice, and the same seed gives the same result."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given
from tests.examples import examples

from tonnage.base.errors import ExhaustedError
from tonnage_box.simulate.cluster.agent import Agent, Order
from tonnage_box.simulate.policy import POLICIES
from tonnage_box.simulate.simulation import RunOptions, Simulation
from tonnage_box.simulate.tally import Result
from tonnage_box.simulate.workload import workload
from tonnage_box.simulate.workload.arrivals import arrivals, expected
from tonnage_box.simulate.workload.workload import SimulatedNodes, Workload

Make = Callable[..., Workload]
GIB = 1024**3
EXAMPLES = sorted((Path(__file__).parents[4] / "examples/workloads").glob("*.yaml"))


def nodes(count: int, **spec: object) -> list[SimulatedNodes]:
    return [SimulatedNodes(count=count, **{"pools": {"scratch": "100Gi"}, **spec})]  # type: ignore[arg-type]


def simulate(made: Workload, on: list[SimulatedNodes], policy: str = "least-allocated", seed: int = 0) -> Result:
    return Simulation(made, on, POLICIES[policy], RunOptions(seed=seed)).run()


def test_all_are_placed_where_there_is_room(make_workload: Make) -> None:
    result = simulate(make_workload({"arrivals": "even"}), nodes(5))
    assert (result.pods, result.placed, result.volumes) == (599, 599, 599)
    assert (result.attempts_rejected, result.rescheduled, result.decisions) == (0, 0, 599)
    assert result.peak_allocation == pytest.approx(100 / 500, abs=0.01)  # 600 an hour for 10 minutes
    assert 0 < result.queue_p50 <= result.queue_p99 <= result.queue_max < 1


def test_an_exact_fit_is_filled_and_no_more(make_workload: Make) -> None:
    stream = {"rate": "1/m", "burst": 30, "arrivals": "even", "lifetime": "2d", "volumes": [{"size": "10Gi"}]}
    result = simulate(make_workload(stream, duration="90s"), nodes(2))
    assert (result.pods, result.placed, result.waiting) == (30, 20, 10)
    assert result.peak_allocation == 1.0
    assert result.attempts_rejected >= 10


def test_waiting_pods_start_when_others_end(make_workload: Make) -> None:
    stream = {"rate": "1/m", "burst": 30, "arrivals": "even", "lifetime": "1m", "volumes": [{"size": "10Gi"}]}
    result = simulate(make_workload(stream, duration="90s"), nodes(2))
    assert (result.placed, result.waiting) == (30, 0)
    assert 60 < result.queue_max < 75


def test_without_tracking_nodes_send_pods_back(make_workload: Make) -> None:
    """A burst of pods before anything is published again: what kube-scheduler does not count, agents must reject."""
    stream = {"rate": "1/m", "burst": 40, "arrivals": "even", "lifetime": "2d", "volumes": [{"size": "10Gi"}] * 2}
    made = make_workload(stream, duration="90s", delays={"decide": "0s"})
    tracked, untracked = (simulate(made, nodes(8), name) for name in ("least-allocated", "untracked"))
    assert tracked.rescheduled == 0 < untracked.rescheduled
    assert tracked.placed == 40


def test_moments_have_no_rounding_errors(make_workload: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of one moment would change places, and the same seed would give another result than before."""
    made = make_workload({"rate": "400/h", "volumes": [{"size": "1Gi"}] * 3})
    simulation = Simulation(made, nodes(5), POLICIES["least-allocated"])
    come, decided, sent = simulation._come, simulation.scheduling._decided, simulation.scheduling.sent
    came, expected_writes, writes = list[float](), list[float](), list[float]()

    def note_arrival(*pod: Any) -> None:
        came.append(simulation.events.now)
        come(*pod)

    def note_decision(*decision: Any) -> None:
        expected_writes.extend(simulation.events.now + simulation._write * number for number in (1, 2, 3))
        decided(*decision)

    def note_write(*claim: Any) -> None:
        writes.append(simulation.events.now)
        sent(*claim)

    monkeypatch.setattr(simulation, "_come", note_arrival)
    monkeypatch.setattr(simulation.scheduling, "_decided", note_decision)
    monkeypatch.setattr(simulation.scheduling, "sent", note_write)
    assert simulation.run().placed == len(came)
    assert came == [arrival.time for arrival in arrivals(made.streams[0], 3600.0, seed=0)]
    assert sorted(writes) == sorted(expected_writes)


def test_a_pod_comes_back_to_its_volumes(make_workload: Make) -> None:
    stream = {"rate": "10/h", "arrivals": "even", "lifetime": "1m", "restarts": 2, "pause": "5s"}
    simulation = Simulation(make_workload(stream), nodes(3), POLICIES["least-allocated"])
    result = simulation.run()
    assert (result.pods, result.placed, result.volumes) == (27, 27, 9)
    assert all(agent.free == agent.pools for agent in simulation.agents.values())


def test_cpu_that_is_gone_strands_storage(make_workload: Make) -> None:
    stream = {"rate": "1/m", "burst": 4, "arrivals": "even", "lifetime": "2d", "cpu": "16"}
    result = simulate(make_workload(stream, duration="70s"), nodes(2, cpu="32"))
    assert result.placed == 4
    assert result.stranded_peak == pytest.approx(0.98)


def test_classes_share_a_pool(make_workload: Make) -> None:
    stream = {
        "rate": "1/m", "burst": 10, "arrivals": "even", "lifetime": "2d",
        "volumes": [{"class": "a", "size": "10Gi"}, {"class": "b", "size": "15Gi"}],
    }  # fmt: skip
    result = simulate(make_workload(stream, duration="70s", classes={"a": "scratch", "b": "scratch"}), nodes(2))
    assert (result.placed, result.peak_allocation) == (8, 1.0)


@pytest.mark.slow
def test_a_hundred_nodes_and_ten_thousand_pods(tell: Callable[[str], None]) -> None:
    made = workload.load(next(file for file in EXAMPLES if file.stem == "batch-scratch"))
    scale = 10_000 / expected(made)
    on = workload.load_nodes("100", made)
    result = Simulation(made, on, POLICIES["least-allocated"], RunOptions(seed=7, scale=scale)).run()
    tell(f"{result.pods} pods on 100 nodes: {result.placed} placed, {result.rescheduled} sent back")
    assert 7000 < result.pods < 13000  # some hundred waves of a hundred pods: give or take three times ten of them
    assert (result.placed, result.rescheduled) == (result.pods, 0)


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_run(file: Path) -> None:
    made = workload.load(file)
    result = Simulation(made, workload.load_nodes("20", made), POLICIES["tightest-fit"], RunOptions(scale=0.1)).run()
    assert result.placed > 0


@pytest.mark.slow
def test_hash_seeds_change_nothing() -> None:
    """Sets of names are in another order in each process; results must not be."""
    command = [sys.executable, "-m", "tonnage", "simulate", str(EXAMPLES[0]), "--nodes", "3", "--pods", "200"]
    command += ["--policy", "least-allocated,untracked", "-o", "json"]
    told = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert b'"pods"' in told[0]


SIZES = st.sampled_from(["1Gi", "7Gi", "30Gi", {"uniform": ["1Gi", "40Gi"]}, {"choice": {"2Gi": 3, "90Gi": 1}}])
STREAMS = st.lists(
    st.fixed_dictionaries(
        {
            "burst": st.integers(1, 12),
            "rate": st.sampled_from(["10/h", "40/h"]),
            "lifetime": st.sampled_from(["20s", "30m", {"exponential": "20m"}]),
            "restarts": st.integers(0, 2),
            "cpu": st.sampled_from(["100m", "3"]),
            "volumes": st.lists(st.fixed_dictionaries({"size": SIZES, "class": st.sampled_from("ab")}), max_size=3),
        }
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@examples(12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(streams=STREAMS, seed=st.integers(0, 99), policy=st.sampled_from(sorted(POLICIES)), shared=st.booleans())
def test_nothing_is_given_twice_and_seeds_repeat(
    make_workload: Make, streams: list[dict[str, object]], seed: int, policy: str, shared: bool
) -> None:
    pools = {"p": "100Gi"} if shared else {"a": "100Gi", "b": "60Gi"}
    made = make_workload(
        *streams, node={"pools": pools, "cpu": "8"}, classes={"a": "p", "b": "p"} if shared else {}, duration="1h"
    )
    on = workload.load_nodes("3", made)
    simulation = Simulation(made, on, POLICIES[policy], RunOptions(seed=seed))
    lowest: list[int] = []
    _watch_pools(simulation, lowest)
    result = simulation.run()
    assert min(lowest, default=0) >= 0
    columns = simulation.scheduling.cluster.columns
    assert all(free >= 0 for column in columns.free.values() for free in column)
    assert result.placed <= result.pods
    assert result.peak_allocation <= 1
    assert policy == "untracked" or result.rescheduled == 0
    assert Simulation(made, on, POLICIES[policy], RunOptions(seed=seed)).run() == result


def _watch_pools(simulation: Simulation, lowest: list[int]) -> None:
    """Look at all pools whenever a volume comes or goes."""
    hold = simulation.tally.hold

    def look(size: int) -> None:
        hold(size)
        lowest.append(min(free for agent in simulation.agents.values() for free in agent.free.values()))
        total = sum(agent.pools[p] - agent.free[p] for agent in simulation.agents.values() for p in agent.pools)
        assert total == simulation.tally.held

    setattr(simulation.tally, "hold", look)  # noqa: B010


def test_a_pool_does_not_give_what_it_has_not(make_workload: Make) -> None:
    """The check that the runs above rely on."""
    simulation = Simulation(make_workload(), nodes(1), POLICIES["least-allocated"])
    agent: Agent = simulation.agents["node-0"]
    source = next(iter(agent._last))
    with pytest.raises(
        ExhaustedError, match="node-0: 107374182401 bytes were booked in scratch, which has 107374182400"
    ):
        agent.create(Order("one", source, 100 * GIB + 1, 1))


def test_few_nodes_can_be_compared(make_workload: Make) -> None:
    """One that fits is enough."""
    made = make_workload({"arrivals": "even", "lifetime": "2d", "volumes": [{"size": "50Gi"}]})
    simulation = Simulation(made, nodes(400), POLICIES["least-allocated"], RunOptions(least=1))
    result = simulation.run()
    assert (result.placed, result.rescheduled) == (599, 0)


@pytest.mark.slow
def test_a_part_of_the_nodes_can_be_compared(make_workload: Make) -> None:
    """Comparing all nodes finds the large ones each time; comparing 100 of 300 meets small ones too."""
    made = make_workload({"arrivals": "even", "cpu": "4", "lifetime": "2d"})
    on = [*nodes(200, cpu="8"), *nodes(100, cpu="64")]
    runs = [Simulation(made, on, POLICIES["least-allocated"], RunOptions(share=share)) for share in (0.0, 1.0)]
    assert [run.run().placed for run in runs] == [599, 599]
    small = [sum(agent.free != agent.pools for agent in list(run.agents.values())[:200]) for run in runs]
    assert small[1] == 0 < small[0]
