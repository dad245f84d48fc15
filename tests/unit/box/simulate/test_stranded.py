"""Stranded storage: free bytes on nodes that no pod of the workload fits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tonnage_box.simulate.policy import POLICIES
from tonnage_box.simulate.simulation import Simulation
from tonnage_box.simulate.stranded import SAMPLES, Stranded
from tonnage_box.simulate.tally import Tally
from tonnage_box.simulate.workload.workload import SimulatedNodes, Workload

Make = Callable[..., Workload]


@pytest.mark.parametrize(("cpu", "size", "share"), [("1", "10Gi", 0.0), ("1", "70Gi", 0.25), ("9", "10Gi", 1.0)])
def test_share_of_all_storage(make_workload: Make, cpu: str, size: str, share: float) -> None:
    made = make_workload({"cpu": cpu, "volumes": [{"size": size}]})
    sizes = [SimulatedNodes(cpu="8", pools={"scratch": pool}) for pool in ("50Gi", "150Gi")]
    run, tally = Simulation(made, sizes, POLICIES["least-allocated"]), Tally()
    stranded = Stranded(run.scheduling.cluster, made, run._templates, run.agents.values())
    stranded.sample(tally)
    assert list(tally.stranded) == [share]
    stranded.plan(run.events, tally, 60.0)
    run.events.run(60.0)
    assert len(tally.stranded) == 1 + SAMPLES
