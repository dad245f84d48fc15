"""Workload files: what is wrong is rejected by name; what is drawn is what was asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage.base.errors import InvalidError
from tonnage_box.simulate.workload import workload
from tonnage_box.simulate.workload.workload import Workload

Make = Callable[..., Workload]
GIB = 1024**3


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ({"rate": "5"}, "stream s0: '5' is no rate"),
        ({"rate": "0/h"}, "the rate must be above 0"),
        ({"lifetime": "5 minutes"}, "'5 minutes' is no duration"),
        ({"lifetime": {"weibull": 1}}, "is no distribution: there are a value, uniform"),
        ({"lifetime": {"uniform": ["2h", "1h"]}}, "its least above its most"),
        ({"volumes": [{"size": "0"}]}, "'0' is no size"),
        ({"volumes": [{"size": {"choice": {"1Gi": 0}}}]}, "one is above 0"),
        ({"volumes": [{"size": {"lognormal": ["1Gi", 9]}}]}, "sigma from 0 to 5"),
        ({"day": {24: 1}}, "hours from 0 to 23"),
        ({"day": {0: 0}}, "no hour with a share above 0"),
        ({"burst": 0}, "burst must be at least 1"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"arrivals": "tidal"}, "tidal"),
    ],
)
def test_rejected_by_name(make_workload: Make, stream: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        make_workload(stream)


def test_nodes_from_a_number_or_a_file(make_workload: Make, tmp_path: Path) -> None:
    made = make_workload()
    assert [node.count for node in workload.load_nodes("7", made)] == [7]
    file = tmp_path / "nodes.yaml"
    file.write_text("nodes:\n- {count: 2, pools: {scratch: 1Ti}}\n- {pools: {scratch: 2Ti}, cpu: '64'}\n")
    assert [(n.count, n.cpu) for n in workload.load_nodes(str(file), made)] == [(2, "32"), (1, "64")]
    file.write_text("nodes: [{pools: {fast: 1Ti}}]")
    with pytest.raises(InvalidError, match="no node has a pool scratch"):
        workload.load_nodes(str(file), made)
    with pytest.raises(InvalidError, match="count and pods must be at least 1"):
        workload.load_nodes("0", made)
