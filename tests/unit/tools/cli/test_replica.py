"""Options of processes of which one replica is leader."""

from __future__ import annotations

import argparse

import pytest

from tonnage.scheduler.app import SchedulerConfig
from tonnage.tools.cli import replica


def _configured(*arguments: str) -> SchedulerConfig:
    parser = argparse.ArgumentParser()
    replica.add_arguments(parser, SchedulerConfig)
    return replica.configured(parser.parse_args(arguments), SchedulerConfig)


def test_a_replica_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_NAME", raising=False)
    host, _, process = _configured().identity.rpartition("-")
    assert host
    assert process.isdecimal()
    assert _configured("--identity", "me").identity == "me"
    monkeypatch.setenv("POD_NAME", "pod-1")
    assert _configured().identity == "pod-1"
