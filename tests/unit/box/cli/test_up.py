"""`tonnage up`: which settings a cluster gets, before it starts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

from tonnage.base.errors import InvalidError
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.tools.cli.main import build_parser
from tonnage_box.cli import up
from tonnage_box.data_dir import DataFolder, Settings

Run = Callable[..., Any]


def _parsed(*arguments: str) -> argparse.Namespace:
    return build_parser("up").parse_args(["up", *arguments])


def test_what_is_given_now_goes_over_what_is_stored() -> None:
    stored = Settings(nodes=3, capacity="tiers", starvation_guard=4, sources=["/a"])
    assert up._settings(_parsed(), stored) == stored
    given = _parsed("--nodes", "2", "--capacity", "exact", "--starvation-guard", "0", "--scoring", "balanced")
    found = up._settings(given, stored)
    assert (found.nodes, found.capacity, found.starvation_guard, found.sources) == (2, "exact", 0, ["/a"])
    assert found.scoring is ScoringStrategy.BALANCED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "--nodes 0: want 1 to 1000"),
        (["--port", "70000"], "--port 70000: want 0 to 65535"),
        (["--starvation-guard", "-1"], "--starvation-guard -1: want a number of reschedules, 0 for never"),
    ],
)
def test_a_wrong_number_is_rejected(arguments: list[str], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        up._settings(_parsed(*arguments), None)


def test_a_wrong_number_leaves_no_folder(tonnage: Run, tmp_path: Path) -> None:
    assert tonnage("up", "--nodes", "0", "--data", tmp_path / "data").code == 2
    assert not list(tmp_path.iterdir())


def test_a_detached_one_has_its_log_and_nothing_of_its_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, (lock, other) = DataFolder(tmp_path / "d"), os.pipe()

    def start(report: TextIO) -> int:
        print("said", file=sys.__stderr__, flush=True)
        at = {number: os.readlink(f"/proc/self/fd/{number}") for number in range(3)}
        is_open = [number for number in (lock, other) if os.path.exists(f"/proc/self/fd/{number}")]
        report.write(json.dumps({"at": at, "open": is_open, "session": os.getsid(0) == os.getpid()}) + "\n")
        report.flush()
        os._exit(7)

    assert up._detach(data, start) == 7
    os.close(lock)
    os.close(other)
    said = capsys.readouterr()
    assert said.err == "said\n", "what a failed start leaves in its log is shown"
    assert json.loads(said.out) == {
        "at": {"0": os.devnull, "1": str(data.log), "2": str(data.log)},
        "open": [],
        "session": True,
    }
