"""Everything that controllers in Go do through client-go: tests/integration/third_party/clientgo prints a line for each check."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.programs]


@pytest.fixture(scope="module")
def restarted(make_cluster: Callable[..., Any], go_program: Callable[[str], Path]) -> Any:
    """A cluster that has forgotten the past of its watches, so that going back to it is rejected."""
    go_program("clientgo")  # first, as it may skip
    cluster = make_cluster("--pool", "fake", "--runtime", "none")
    cluster.up()
    cluster.down()
    cluster.up()
    return cluster


@pytest.mark.parametrize("content_type", ["application/json", "application/vnd.kubernetes.protobuf"])
@pytest.mark.parametrize("watch_list", ["true", "false"])
def test_client_go_is_happy(
    restarted: Any, go_program: Callable[[str], Path], watch_list: str, content_type: str
) -> None:
    """watch_list: whether informers ask for the first list in the watch itself (sendInitialEvents)."""
    environment = {**restarted.environment, "KUBE_FEATURE_WatchListClient": watch_list}
    ended = subprocess.run(
        [str(go_program("clientgo")), f"-content-type={content_type}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    lines = [line for line in ended.stdout.splitlines() if not line.startswith("#")]

    assert [line for line in lines if not line.startswith("ok ")] == [], ended.stderr
    assert len(lines) >= 50
    assert ended.returncode == 0
