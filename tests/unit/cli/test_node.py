"""The command line of `tonnage node`, and which cluster a verb means."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage.cli import node
from tonnage.cli.main import build_parser
from tonnage.errors import InvalidError, NotFoundError

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_NAME", "POD_NAMESPACE", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def _parsed(*arguments: object) -> argparse.Namespace:
    return build_parser("node").parse_args(["node", *map(str, arguments)])


def test_the_command_line_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("bind: controller\nscope: all\npools: [{kind: fake, name: b, size: 1Gi}]\n")
    config = node.configured(_parsed("--config", file, "--pool", "fake,name=a,size=1Gi", "--scope", "label"))
    assert [pool.name for pool in config.driver.pools] == ["a", "b"]
    assert (config.agent.binding, config.agent.scope) == ("controller", "label")


def test_the_environment_names_node_and_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "n1")
    monkeypatch.setenv("POD_NAMESPACE", "storage")
    config = node.configured(_parsed("--pool", "fake,size=1Gi"))
    assert (config.driver.node_name, config.agent.node_name, config.agent.namespace) == ("n1", "n1", "storage")


def test_without_pools() -> None:
    with pytest.raises(InvalidError, match="no pools: name at least one"):
        node.configured(_parsed())


def test_check_shows_faults_and_starts_nothing(tonnage: Run, tmp_path: Path) -> None:
    shown = tonnage("node", "--check", "--kubelet", tmp_path, "--pool", "fake,size=1Gi", "--node-name", "n1")
    assert shown.code == 2
    assert f"[FAULT] registry: registry {tmp_path}/plugins_registry is not there" in shown.out
    assert not list(tmp_path.iterdir())


def test_a_cluster_that_does_not_run(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    node.add_cluster_arguments(parser)
    with pytest.raises(NotFoundError, match=r"no cluster runs in .*: name another with --data or --kubeconfig"):
        node.cluster_of(parser.parse_args(["--data", str(tmp_path / "none")]))
