"""How a plan of pool set-up runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.base.errors import HostError
from tonnage.storage.pools.setup_plan import PoolSetupPlan, Step


def test_a_plan_runs_its_steps_in_order(tmp_path: Path) -> None:
    folder, file = tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"
    steps = (Step(("mkdir", "-p", str(folder)), "make it"), Step(("touch", str(file)), "fill it"))
    done: list[str] = []

    PoolSetupPlan(steps).run(lambda step: done.append(str(step)))

    assert done == [f"mkdir -p {folder}", f"touch {file}"]
    assert file.exists()


def test_a_step_that_fails_ends_the_plan(tmp_path: Path) -> None:
    steps = (Step(("false",), "try it"), Step(("touch", str(tmp_path / "x")), "never"))
    with pytest.raises(HostError, match=r"^try it: "):
        PoolSetupPlan(steps).run(lambda step: None)
    assert not (tmp_path / "x").exists()
