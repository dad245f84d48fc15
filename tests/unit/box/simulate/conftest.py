"""Small workloads, read as the file would be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tonnage_box.simulate.workload import workload


@pytest.fixture
def make_workload(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., workload.Workload]:
    """make_workload(*streams, **more): each stream with defaults for what it does not say."""

    def make(*streams: dict[str, Any], **more: Any) -> workload.Workload:
        file: Path = tmp_path_factory.mktemp("workload") / "workload.yaml"
        defaults = {"rate": "600/h", "lifetime": "10m", "volumes": [{"size": "1Gi"}]}
        named = [{"name": f"s{number}", **defaults, **stream} for number, stream in enumerate(streams or ({},))]
        body = {"duration": "1h", "node": {"pools": {"scratch": "100Gi"}}, **more, "streams": named}
        file.write_bytes(msgspec.yaml.encode(body))
        return workload.load(file)

    return make
