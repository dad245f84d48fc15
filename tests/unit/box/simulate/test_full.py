"""Everything real on a virtual clock: it agrees with the quick simulation, and controllers make what the trace says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tonnage_box.simulate.full import FullSimulation
from tonnage_box.simulate.policy import POLICIES
from tonnage_box.simulate.simulation import RunOptions, Simulation
from tonnage_box.simulate.tally import Result
from tonnage_box.simulate.workload.workload import SimulatedNodes, Workload

Make = Callable[..., Workload]
NODES = [
    SimulatedNodes(count=4, cpu="8", pools={"scratch": "100Gi"}),
    SimulatedNodes(count=2, cpu="4", pools={"scratch": "300Gi"}),
]


def full(made: Workload, on: list[SimulatedNodes], policy: str = "least-allocated", seed: int = 0) -> Result:
    return FullSimulation(made, on, POLICIES[policy], RunOptions(seed=seed)).run()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["least-allocated", "tightest-fit"])
def test_both_fidelities_place_alike(make_workload: Make, policy: str) -> None:
    """The same pods go to the same nodes, one after the other, through hours of coming and going. (Where many wait for
    the same capacity, who comes first is a matter of milliseconds, which differ.)"""
    made = make_workload(
        {
            "rate": "24/h",
            "cpu": "1",
            "lifetime": {"exponential": "40m"},
            "volumes": [{"size": {"uniform": ["5Gi", "50Gi"]}}],
        },
        {"rate": "8/h", "cpu": "500m", "lifetime": "30m", "volumes": [{"size": "20Gi"}, {"size": "1Gi"}]},
        {"rate": "5/h", "cpu": "250m", "volumes": []},
        duration="90m",
    )
    placements: list[dict[str, str]] = []
    results = []
    for fidelity in (Simulation, FullSimulation):
        nodes: dict[str, str] = {}
        results.append(fidelity(made, NODES, POLICIES[policy], RunOptions(seed=3, placed=nodes.__setitem__)).run())
        placements.append(nodes)
    assert len(placements[0]) > 40
    assert placements[0] == placements[1]
    quick, whole = results
    assert (quick.pods, quick.placed, quick.volumes) == (whole.pods, whole.placed, whole.volumes)
    assert (quick.rescheduled, whole.rescheduled) == (0, 0)
    assert quick.peak_allocation == pytest.approx(whole.peak_allocation, abs=0.05)
    assert not quick.counted
    assert whole.counted


@pytest.mark.slow
def test_both_fidelities_let_pods_wait_alike(make_workload: Make) -> None:
    stream = {"rate": "1/m", "burst": 30, "arrivals": "even", "lifetime": "1m", "volumes": [{"size": "10Gi"}]}
    made = make_workload(stream, duration="90s")
    on = [SimulatedNodes(count=2, pools={"scratch": "100Gi"})]
    quick, whole = Simulation(made, on, POLICIES["least-allocated"]).run(), full(made, on)
    assert (
        (quick.placed, quick.waiting, quick.peak_allocation)
        == (whole.placed, whole.waiting, whole.peak_allocation)
        == (30, 0, 1)
    )
    assert whole.queue_max == pytest.approx(quick.queue_max, rel=0.2)


@pytest.mark.slow
def test_the_estimate_of_writes_is_near_the_count(make_workload: Make) -> None:
    made = make_workload({"rate": "20/h", "arrivals": "even", "lifetime": "10m"})
    quick = Simulation(made, NODES, POLICIES["least-allocated"]).run()
    assert full(made, NODES).api_writes_per_pod == pytest.approx(quick.api_writes_per_pod, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "restarts", "pods"), [("Deployment", 0, 30), ("Job", 0, 30), ("StatefulSet", 1, 60)])
def test_controllers_make_the_pods(make_workload: Make, kind: str, restarts: int, pods: int) -> None:
    stream = {"kind": kind, "rate": "10/h", "burst": 3, "arrivals": "even", "lifetime": "2m", "restarts": restarts}
    made = make_workload(stream, duration="61m", settle="30m")
    simulation = FullSimulation(made, NODES, POLICIES["least-allocated"])
    result = simulation.run()
    assert (result.pods, result.placed) == (pods, pods)
    assert result.volumes == 30
    assert simulation.tally.held == 0
    quick = Simulation(made, NODES, POLICIES["least-allocated"]).run()
    assert (quick.pods, quick.placed, quick.volumes) == (pods, pods, 30)


def test_a_pod_without_controller_comes_back_to_its_volumes(make_workload: Make) -> None:
    stream = {"rate": "10/h", "arrivals": "even", "lifetime": "1m", "restarts": 2, "pause": "5s"}
    simulation = FullSimulation(make_workload(stream, settle="30m"), NODES, POLICIES["least-allocated"])
    result = simulation.run()
    assert (result.pods, result.placed, result.volumes) == (27, 27, 9)
    assert simulation.tally.held == 0


@pytest.mark.slow
def test_without_tracking_agents_send_claims_back(make_workload: Make) -> None:
    stream = {"rate": "1/m", "burst": 24, "arrivals": "even", "lifetime": "2d", "volumes": [{"size": "20Gi"}] * 2}
    made = make_workload(stream, duration="90s", delays={"decide": "0s"})
    on = [SimulatedNodes(count=10, pools={"scratch": "100Gi"})]
    tracked, untracked = (full(made, on, name) for name in ("least-allocated", "untracked"))
    assert tracked.rescheduled == 0 < untracked.rescheduled
    assert tracked.placed == 20
    assert tracked.waiting == 4
    assert tracked.attempts_rejected >= 4


@pytest.mark.slow
def test_seeds_repeat(make_workload: Make) -> None:
    stream = {"rate": "20/h", "lifetime": {"exponential": "20m"}, "volumes": [{"size": {"uniform": ["1Gi", "90Gi"]}}]}
    made = make_workload(stream, {**stream, "kind": "Job", "burst": 2, "rate": "4/h"})
    assert full(made, NODES, seed=1) == full(made, NODES, seed=1) != full(made, NODES, seed=2)


def test_progress_is_told(make_workload: Make) -> None:
    made = make_workload({"rate": "4/h"})
    for fidelity in (Simulation, FullSimulation):
        shares: list[float] = []
        fidelity(made, NODES, POLICIES["least-allocated"], RunOptions(progress=shares.append)).run()
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        assert len(shares) > 10
