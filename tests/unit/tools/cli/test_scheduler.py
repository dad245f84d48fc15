"""The command line of `tonnage scheduler`."""

from __future__ import annotations

import pytest

from tonnage.base.observe.exporter import Address
from tonnage.kubernetes.api import names
from tonnage.scheduler.app import SchedulerConfig
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.tools.cli import replica
from tonnage.tools.cli.main import build_parser, main


def _configured(*arguments: str) -> SchedulerConfig:
    return replica.configured(build_parser("scheduler").parse_args(["scheduler", *arguments]), SchedulerConfig)


def test_in_a_pod_the_environment_says_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "tonnage-scheduler-1")
    monkeypatch.setenv("POD_NAMESPACE", "storage")
    config = _configured("--metrics", "0.0.0.0:9809")
    assert (config.identity, config.namespace, config.name) == ("tonnage-scheduler-1", "storage", names.SCHEDULER)
    assert config.strategy is ScoringStrategy.LEAST_ALLOCATED
    assert config.metrics == Address("0.0.0.0", 9809)


def test_by_hand() -> None:
    config = _configured("--name", "packing", "--scoring", "tightest-fit", "--identity", "me")
    assert (config.name, config.strategy, config.identity) == ("packing", ScoringStrategy.TIGHTEST_FIT, "me")
    assert config.metrics is None


def test_a_name_that_no_lease_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduler", "--name", "Not Good"]) == 2
    assert "want a DNS subdomain" in capsys.readouterr().err
