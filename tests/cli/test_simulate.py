"""`tonnage simulate` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tonnage.cli.main import main

EXAMPLE = str(Path(__file__).parents[2] / "examples/workloads/ci-burst.yaml")


def test_policies_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", EXAMPLE, "--nodes", "2", "--pods", "60", "--policy", "most-free,untracked"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ci-burst.yaml: 2 nodes with 1800Gi, 24 h, seed 0"
    assert lines[1].split() == ["most-free", "untracked"]
    came = next(line.split() for line in lines if "pods that came" in line)
    assert came[-1] == came[-2]
    assert int(came[-1]) > 0


def test_everything_real_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "runs.svg"
    assert main(["simulate", EXAMPLE, "--nodes", "2", "--pods", "30", "--full", "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "API writes a pod (counted)" in out
    assert "ci-burst.yaml on 2 nodes" in picture.read_text()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--policy", "best"], "there is no policy 'best'"),
        (["--pods", "0"], "--pods 0: at least 1"),
        (["--score-nodes", "101"], "--score-nodes 101: from 0 to 100"),
        (["--score-least", "0"], "--score-least 0: at least 1"),
        (["--plot", "runs.pdf"], "--plot runs.pdf: the name must end in .png or .svg"),
        (["--plot", "no-such-folder/runs.svg"], "there is no folder no-such-folder"),
        (["--nodes", "no-such-file.yaml"], "no-such-file.yaml cannot be read"),
    ],
)
def test_refused_by_name(capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    assert main(["simulate", EXAMPLE, "--nodes", "2", *more]) == 2
    assert words in capsys.readouterr().err
